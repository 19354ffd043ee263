//! Files that an earlier run may have left, opened so that nobody else's are touched.
//! Owns what makes a file this user's own: a regular one, reached by no link, with no other name. Knows nothing of what is
//! in them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::error::Error;

/// Opens `path` for reading and writing, creating it where nothing has the name. `target`: what it is needed for.
///
/// # Errors
/// Something else than a file of this user's own has the name, or the folder cannot be written.
pub(super) fn open_or_create(path: &Path, target: &Path) -> Result<File, Error> {
    // Exclusive creation follows no link.
    match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => open(path, OpenOptions::new().read(true).write(true)),
        made => made.map_err(|e| Error::io(target, "create a file beside it", e)),
    }
}

/// All bytes of `path`, at most `most`; `None` where nothing has the name.
///
/// # Errors
/// Something else than a file of this user's own has the name; it is longer; it cannot be read.
pub(super) fn read(path: &Path, most: u64) -> Result<Option<Vec<u8>>, Error> {
    if fs::symlink_metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
        return Ok(None);
    }
    let file = open(path, OpenOptions::new().read(true))?;
    let error = |e| Error::io(path, "read", e);
    let n_bytes = file.metadata().map_err(error)?.len();
    if n_bytes > most {
        return Err(refused(path, &format!("has {n_bytes} bytes, {most} are the most")));
    }
    let mut bytes = vec![0; n_bytes as usize];
    crate::io::read_exact_at(&file, &mut bytes, 0).map_err(error)?;
    Ok(Some(bytes))
}

/// Writes a file that nobody else has open: what has the name is removed first, and a link with it, not its target.
///
/// # Errors
/// The system's.
pub(super) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(bytes)
}

/// What tells the open file from all others, whatever its name; `None` where the system does not say.
#[cfg(unix)]
pub(super) fn identity(file: &File) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    file.metadata().ok().map(|m| format!("{}:{}", m.dev(), m.ino()))
}

/// Other systems have no number for it that is stable here.
#[cfg(not(unix))]
pub(super) fn identity(_: &File) -> Option<String> {
    None
}

/// Opens what is there.
#[cfg(unix)]
fn open(path: &Path, how: &mut OpenOptions) -> Result<File, Error> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    use rustix::fs::OFlags;

    // Not to wait for the other end of a pipe.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let link = || fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink());
    let file = match how.custom_flags(flags).open(path) {
        Err(_) if link() => return Err(refused(path, "is a symbolic link")),
        opened => opened.map_err(|e| Error::io(path, "open", e))?,
    };
    let meta = file.metadata().map_err(|e| Error::io(path, "look at", e))?;
    let me = rustix::process::geteuid().as_raw();
    if !meta.is_file() {
        return Err(refused(path, "is not a regular file"));
    }
    if meta.uid() != me {
        return Err(refused(path, &format!("belongs to the user {}, this is {me}", meta.uid())));
    }
    if meta.nlink() != 1 {
        return Err(refused(path, &format!("has {} names (hard links)", meta.nlink())));
    }
    Ok(file)
}

/// Opens what is there.
#[cfg(not(unix))]
fn open(path: &Path, how: &mut OpenOptions) -> Result<File, Error> {
    let error = |e| Error::io(path, "open", e);
    if !fs::symlink_metadata(path).map_err(error)?.is_file() {
        return Err(refused(path, "is not a regular file"));
    }
    how.open(path).map_err(error)
}

fn refused(path: &Path, why: &str) -> Error {
    let what = format!("{why}: it was not left by an earlier run; remove it, or give the output another name");
    Error::input(path, what)
}
