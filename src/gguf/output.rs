//! Where a writer's bytes go: memory, or a file that appears under its name complete or not at all.
//! Owns the temporary name and its removal; knows nothing of what is written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;

/// What a [`crate::Writer`] writes into. There are two: [`FileOutput`] and `Vec<u8>`.
pub trait Output: Write + sealed::Sealed {
    /// What is there when all is written.
    type Done;

    /// Makes the bytes last.
    /// # Errors
    /// The system refuses; nothing is left behind then.
    fn done(self) -> Result<Self::Done, Error>;

    /// An error of the system, with the path.
    fn error(&self, action: &'static str, source: io::Error) -> Error;
}

/// A file under a temporary name beside its target, so that the rename stays within one file system.
/// Removed when dropped before it is done.
#[derive(Debug)]
pub struct FileOutput {
    // Before `temp`: some systems remove only closed files.
    file: BufWriter<File>,
    temp: Temp,
}

#[derive(Debug)]
struct Temp {
    path: PathBuf,
    target: PathBuf,
}

/// True for what a finished file would take the place of and must not: a link, or a device such as `/dev/null`.
pub fn is_link_or_device(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir())
}

impl FileOutput {
    /// # Errors
    /// The directory is missing or not writable, or `target` names a directory, a link or a device.
    pub(crate) fn create(target: &Path) -> Result<FileOutput, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let error = |source| Error::Io { path: target.to_owned(), action: "create", source };
        let Some(name) = target.file_name().filter(|_| !target.is_dir()) else {
            return Err(error(ErrorKind::IsADirectory.into()));
        };
        if is_link_or_device(target) {
            return Err(error(io::Error::other("it is a link or a device, the name of a file expected")));
        }
        loop {
            let mut temp_name = name.to_owned();
            temp_name.push(format!(".{}-{}.part", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
            let path = target.with_file_name(temp_name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    let file = BufWriter::with_capacity(BUFFER_BYTES, file);
                    return Ok(FileOutput { file, temp: Temp { path, target: target.to_owned() } });
                }
                // Left by a process of the same id that was killed: take the next number.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(error(source)),
            }
        }
    }
}

impl Write for FileOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Output for FileOutput {
    type Done = ();

    /// Flush, fsync, rename over the target, fsync of the directory.
    fn done(self) -> Result<(), Error> {
        let FileOutput { file, temp } = self;
        let file = file.into_inner().map_err(|e| temp.error("write the last bytes", e.into_error()))?;
        file.sync_all().map_err(|e| temp.error("fsync", e))?;
        drop(file);
        fs::rename(&temp.path, &temp.target).map_err(|e| temp.error("rename the finished file", e))?;
        // Only Unix opens directories as files; elsewhere the rename is all there is.
        #[cfg(unix)]
        {
            let dir = match temp.target.parent() {
                Some(dir) if !dir.as_os_str().is_empty() => dir,
                _ => Path::new("."),
            };
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| temp.error("fsync the directory", e))?;
        }
        Ok(())
    }

    fn error(&self, action: &'static str, source: io::Error) -> Error {
        self.temp.error(action, source)
    }
}

impl Temp {
    fn error(&self, action: &'static str, source: io::Error) -> Error {
        Error::Io { path: self.target.clone(), action, source }
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        // After the rename nothing has this name; if it cannot be removed before, nobody is left to tell.
        let _ = fs::remove_file(&self.path);
    }
}

impl Output for Vec<u8> {
    type Done = Vec<u8>;

    fn done(self) -> Result<Vec<u8>, Error> {
        Ok(self)
    }

    fn error(&self, action: &'static str, source: io::Error) -> Error {
        Error::Io { path: "memory".into(), action, source }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::FileOutput {}
    impl Sealed for Vec<u8> {}
}

const BUFFER_BYTES: usize = 1 << 20;
