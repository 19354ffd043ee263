//! The unfinished output: a file beside its target, with a journal of how much of it lasts.
//! Owns both names, the lock on them and the rename at the end; knows slabs as a number only.
//!
//! `OUT.part` has its full length from the start; `OUT.part.json` says how many slabs of it are on the disk, and of what.
//! It is written after the data was synced, so it never promises too much, also when the power goes. The journal is there
//! before the first byte of data, and names the file that it belongs to: a file of that name without it is somebody
//! else's (an unfinished download, say), and is neither used nor overwritten.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::own;
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
    /// The part that it was written for, where the system tells files apart by more than names.
    part: Option<String>,
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
    /// there, out of `n_slabs`.
    ///
    /// # Errors
    /// The folder cannot be written, another process writes this output, there is less room than is needed, or `target` is a
    /// folder, a link or a device. A link, or a file that is not this user's, has the name of a part; or a part has no journal
    /// that fits it.
    pub(crate) fn open(
        target: &Path,
        header: &[u8],
        (n_bytes, n_slabs): (u64, u64),
        of: String,
    ) -> Result<(Part, u64), Error> {
        if target.file_name().is_none() || target.is_dir() {
            return Err(Error::input(target, "is a folder, the name of a file expected"));
        }
        if gguf::is_link_or_device(target) {
            return Err(Error::input(target, "is a link or a device; give the name of a file"));
        }
        let [_, path, journal, _] = Part::names(target);
        let file = own::open_or_create(&path, target)?;
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
        let slabs = part.there(header, n_bytes, n_slabs).inspect_err(|_| part.drop_if_empty())?;
        if slabs == 0 {
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
        let journal = Journal { of: self.of.clone(), part: own::identity(&self.file), slabs };
        let text = serde_json::to_vec(&journal).expect("strings and numbers");
        let [.., new] = Part::names(&self.target);
        let written = own::write_new(&new, &text).and_then(|()| fs::rename(&new, &self.journal));
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

    /// Removes a part that was only just created.
    fn drop_if_empty(&self) {
        if self.file.metadata().is_ok_and(|m| m.len() == 0) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Slabs of an earlier run that can be used; 0 where there is no such run, or one of something else.
    fn there(&self, header: &[u8], n_bytes: u64, n_slabs: u64) -> Result<u64, Error> {
        let len = self.file.metadata().map_err(|e| Error::io(&self.path, "look at", e))?.len();
        let Some(text) = own::read(&self.journal, MAX_JOURNAL_BYTES)? else {
            return if len == 0 { Ok(0) } else { Err(self.foreign("has no journal beside it")) };
        };
        let Ok(journal) = serde_json::from_slice::<Journal>(&text) else {
            return Err(self.foreign("has a damaged journal"));
        };
        // Before anything was promised there is nothing to be wrong; the part may be a new one.
        if journal.slabs == 0 && len == 0 {
            return Ok(0);
        }
        if journal.part != own::identity(&self.file) {
            return Err(self.foreign("has the journal of another file"));
        }
        let mut found = vec![0; header.len()];
        let whole = read_exact_at(&self.file, &mut found, 0).is_ok();
        if journal.slabs == 0 || journal.of != self.of || (whole && found != header) {
            return Ok(0);
        }
        if !whole || len != n_bytes || journal.slabs > n_slabs {
            return Err(self.foreign("does not have what its journal says"));
        }
        Ok(journal.slabs)
    }

    /// A part that is not to be touched.
    fn foreign(&self, why: &str) -> Error {
        let journal = self.journal.display();
        let what = format!(
            "{why} ({journal}): it is damaged, or was not left by an earlier run; remove both to start anew, or give the \
             output another name"
        );
        Error::input(&self.path, what)
    }

    fn begin(&self, header: &[u8], n_bytes: u64) -> Result<(), Error> {
        // First: what was promised of the part before is not true from here on.
        self.note(0)?;
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

/// It holds the paths of all inputs, and no more.
const MAX_JOURNAL_BYTES: u64 = 16 << 20;
