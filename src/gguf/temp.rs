//! A file that appears under its name complete or not at all.
//! Owns the temporary name and its removal; knows nothing of what is written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;

#[derive(Debug)]
pub(crate) struct TempFile {
    temp: PathBuf,
    target: PathBuf,
}

impl TempFile {
    /// A new file beside `target`, so that the rename stays within one file system.
    pub(crate) fn create(target: &Path) -> Result<(TempFile, File), Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let error = |source| Error::Io { path: target.to_owned(), action: "create", source };
        let Some(name) = target.file_name().filter(|_| !target.is_dir()) else {
            return Err(error(ErrorKind::IsADirectory.into()));
        };
        loop {
            let mut temp_name = name.to_owned();
            temp_name.push(format!(".{}-{}.part", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
            let temp = target.with_file_name(temp_name);
            match OpenOptions::new().write(true).create_new(true).open(&temp) {
                Ok(file) => return Ok((TempFile { temp, target: target.to_owned() }, file)),
                // Left by a process of the same id that was killed: take the next number.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(error(source)),
            }
        }
    }

    /// Puts the closed and synced file under its name and makes the name last.
    pub(crate) fn rename(self) -> Result<(), Error> {
        fs::rename(&self.temp, &self.target).map_err(|e| self.io("rename the finished file", e))?;
        // Only Unix opens directories as files; elsewhere the rename is all there is.
        #[cfg(unix)]
        {
            let dir = match self.target.parent() {
                Some(dir) if !dir.as_os_str().is_empty() => dir,
                _ => Path::new("."),
            };
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| self.io("fsync the directory", e))?;
        }
        Ok(())
    }

    pub(crate) fn io(&self, action: &'static str, source: io::Error) -> Error {
        Error::Io { path: self.target.clone(), action, source }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // After a rename there is nothing under the temporary name; if it cannot be removed, nobody is left to tell.
        let _ = fs::remove_file(&self.temp);
    }
}
