//! Files read and written at places: by several threads, without a cursor.
//! Owns the differences between systems; knows nothing of formats.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::Error;

/// A regular file open for reading.
#[derive(Debug)]
pub struct Input {
    file: File,
    path: PathBuf,
    n_bytes: u64,
    modified: Option<SystemTime>,
}

impl Input {
    /// # Errors
    /// The file is missing, not a regular one (after following links), or cannot be read.
    pub fn open(path: &Path) -> Result<Input, Error> {
        let error = |source| Error::Io { path: path.to_owned(), action: "open", source };
        // Looked at before it is opened: opening a pipe would wait for its other end.
        let kind = std::fs::metadata(path).map_err(error)?;
        if !kind.is_file() {
            return Err(Error::input(path, "is not a regular file"));
        }
        let file = File::open(path).map_err(error)?;
        let meta = file.metadata().map_err(error)?;
        Ok(Input { file, path: path.to_owned(), n_bytes: meta.len(), modified: meta.modified().ok() })
    }

    /// Reads a whole small file.
    ///
    /// # Errors
    /// As for [`Input::open`]; or it has more than `most` bytes.
    pub fn read_small(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
        Input::open(path)?.read_all(most)
    }

    /// All bytes.
    ///
    /// # Errors
    /// There are more than `most`, or they cannot be read.
    pub fn read_all(&self, most: u64) -> Result<Vec<u8>, Error> {
        if self.n_bytes > most {
            return Err(Error::input(&self.path, format!("{} bytes found, at most {most} allowed", self.n_bytes)));
        }
        let mut bytes = vec![0; self.n_bytes as usize];
        self.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// What tells this state of the file from another: path, length, time of the last change, and where the system has
    /// them, the file's number and the time of its last change in any respect, which no program can set.
    pub fn stamp(&self) -> String {
        let time = self.modified.and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
        let stamp = format!("{} {} {:?}", self.path.display(), self.n_bytes, time.unwrap_or_default());
        #[cfg(unix)]
        if let Ok(m) = self.file.metadata() {
            use std::os::unix::fs::MetadataExt;
            return format!("{stamp} {}:{} {}.{:09}", m.dev(), m.ino(), m.ctime(), m.ctime_nsec());
        }
        stamp
    }

    /// Length when it was opened.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// As it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for calls that copy between files.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Fills `bytes` from offset `at` on.
    ///
    /// # Errors
    /// The system refuses, or the file has become shorter.
    pub fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<(), Error> {
        read_exact_at(&self.file, bytes, at).map_err(|source| Error::Io {
            path: self.path.clone(),
            action: "read",
            source,
        })
    }
}

/// Fills `bytes` from offset `at` on.
///
/// # Errors
/// The system's, or the file ends before.
#[cfg(unix)]
pub fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

/// Writes all of `bytes` at offset `at`.
///
/// # Errors
/// The system's.
#[cfg(unix)]
pub fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

/// Fills `bytes` from offset `at` on.
///
/// # Errors
/// The system's, or the file ends before.
#[cfg(windows)]
pub fn read_exact_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => (bytes, at) = (&mut bytes[n..], at + n as u64),
        }
    }
    Ok(())
}

/// Writes all of `bytes` at offset `at`.
///
/// # Errors
/// The system's.
#[cfg(windows)]
pub fn write_all_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        (bytes, at) = (&bytes[n..], at + n as u64);
    }
    Ok(())
}

/// Copies `n` bytes from one place to another inside of the system, which on some file systems shares the blocks and else
/// spares the way through this process. False when it cannot: nothing that matters has been written then.
///
/// # Errors
/// The system's; `from` ends before.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn copy_range(from: &File, mut at: u64, to: &File, mut to_at: u64, n: u64) -> io::Result<bool> {
    use rustix::io::Errno;
    let end = at + n;
    while at < end {
        let left = usize::try_from(end - at).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // Both offsets were moved on.
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(true)
}

/// Other systems have no such call that is known here.
///
/// # Errors
/// None.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn copy_range(_: &File, _: u64, _: &File, _: u64, _: u64) -> io::Result<bool> {
    Ok(false)
}
