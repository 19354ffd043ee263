//! The unfinished output: a file beside its target, with a journal of how much of it lasts.
//! Owns both names, the lock on them and the rename at the end; knows slabs as a number only.
//!
//! `OUT.part` has its full length from the start; `OUT.part.json` says how many slabs of it are on the disk, and of what.
//! It is written after the data was synced, so it never promises too much, also when the power goes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::io::{read_exact_at, write_all_at};

/// An output that is being written. Dropping it leaves the files as they are, to be taken up later.
#[derive(Debug)]
pub(crate) struct Part {
    file: File,
    target: PathBuf,
    path: PathBuf,
    journal: PathBuf,
    of: String,
    /// One thread at a time writes the journal.
    noting: Mutex<()>,
}

/// What the journal holds.
#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    /// What the output is made of: sources, options, this program.
    of: String,
    /// Slabs that are on the disk, from the first on.
    slabs: u64,
}

impl Part {
    /// All files that are written on the way to `target`: itself, the part, its journal, and the journal's next state.
    pub(crate) fn names(target: &Path) -> [PathBuf; 4] {
        ["", ".part", ".part.json", ".part.json.new"].map(|end| {
            let mut name = target.file_name().unwrap_or_default().to_owned();
            name.push(end);
            target.with_file_name(name)
        })
    }

    /// Takes up the part beside `target` that was made of the same, or starts anew. Gives the number of slabs that are
    /// there.
    ///
    /// # Errors
    /// The folder cannot be written, another process writes this output, or there is less room than is needed.
    pub(crate) fn open(target: &Path, header: &[u8], n_bytes: u64, of: String) -> Result<(Part, u64), Error> {
        if target.file_name().is_none() || target.is_dir() {
            return Err(Error::input(target, "is a folder, the name of a file expected"));
        }
        let [_, path, journal, _] = Part::names(target);
        let error = |action| move |source| Error::io(target, action, source);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(error("create a file beside it"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::input(target, "another process is writing it; wait for it, or give another name"));
            }
            // Some file systems have no locks.
            Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::Error(e)) => return Err(Error::io(target, "lock", e)),
        }
        let part = Part { file, target: target.to_owned(), path, journal, of, noting: Mutex::new(()) };
        let slabs = part.there(header, n_bytes);
        if slabs == 0 {
            let _ = fs::remove_file(&part.journal);
            part.begin(header, n_bytes).inspect_err(|_| part.discard())?;
        }
        Ok((part, slabs))
    }

    /// The open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Where the unfinished bytes lie.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes what is written last, and says in the journal that it does.
    pub(crate) fn note(&self, slabs: u64) -> Result<(), Error> {
        let _one = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        self.file.sync_data().map_err(|e| Error::io(&self.target, "sync", e))?;
        let journal = Journal { of: self.of.clone(), slabs };
        let text = serde_json::to_vec(&journal).expect("strings and numbers");
        let [.., new] = Part::names(&self.target);
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.journal));
        written.map_err(|e| {
            let _ = fs::remove_file(&new);
            Error::io(&self.journal, "write", e)
        })
    }

    /// Puts the file under its name.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let put = || {
            self.file.sync_all().map_err(|e| Error::io(&self.target, "sync", e))?;
            fs::rename(&self.path, &self.target).map_err(|e| Error::io(&self.target, "rename the finished file", e))
        };
        put().inspect_err(|_| self.discard())?;
        let _ = fs::remove_file(&self.journal);
        // Only Unix opens folders as files; elsewhere the rename is all there is.
        #[cfg(unix)]
        {
            let folder = match self.target.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            File::open(folder).and_then(|f| f.sync_all()).map_err(|e| Error::io(folder, "sync", e))?;
        }
        Ok(())
    }

    /// Removes what there is of it; nobody is left to tell when that is refused.
    pub(crate) fn discard(&self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.journal);
    }

    /// Slabs of an earlier run that can be used.
    fn there(&self, header: &[u8], n_bytes: u64) -> u64 {
        let same = || {
            let text = fs::read(&self.journal).ok()?;
            let journal: Journal = serde_json::from_slice(&text).ok()?;
            let mut found = vec![0; header.len()];
            let whole = self.file.metadata().ok()?.len() == n_bytes;
            read_exact_at(&self.file, &mut found, 0).ok()?;
            (journal.of == self.of && whole && found == header).then_some(journal.slabs)
        };
        same().unwrap_or(0)
    }

    fn begin(&self, header: &[u8], n_bytes: u64) -> Result<(), Error> {
        self.file.set_len(0).map_err(|e| Error::io(&self.target, "write", e))?;
        if let Some(free) = free_bytes(&self.file)
            && free < n_bytes
        {
            let mib = |n: u64| n.div_ceil(1 << 20);
            let what = format!(
                "{} MiB are needed, {} MiB are free: make room, or choose a smaller type",
                mib(n_bytes),
                mib(free)
            );
            return Err(Error::input(&self.target, what));
        }
        self.file.set_len(n_bytes).map_err(|e| Error::io(&self.target, "write", e))?;
        write_all_at(&self.file, header, 0).map_err(|e| Error::io(&self.target, "write", e))
    }
}

/// Room on the file system, if it tells.
#[cfg(unix)]
fn free_bytes(file: &File) -> Option<u64> {
    let stat = rustix::fs::fstatvfs(file).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(not(unix))]
fn free_bytes(_: &File) -> Option<u64> {
    None
}
