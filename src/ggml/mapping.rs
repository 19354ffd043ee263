//! The bytes under a model's tensors: a file, mapped once (the only `mmap` of the house), or memory.
//! Owns the map. The file must not shrink while it is mapped: reading past its new end ends the process (SIGBUS).

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::Error;
#[cfg(target_os = "linux")]
use crate::pages::whole;
use crate::progress::{Counted, LoadProgress};

/// Bytes that stay where they are: a mapped file, data that is part of the program, or data that it has made.
#[derive(Debug)]
pub enum Mapping {
    /// A mapped file.
    File {
        /// The pages.
        map: Mmap,
        /// Where it lies, for messages.
        path: PathBuf,
    },
    /// Data inside the program; at an address that is a multiple of 32 it is used without a copy.
    Static(&'static [u8]),
    /// Data that was made at run time, likewise.
    Made(Vec<u8>),
}

impl Mapping {
    /// Maps a file for reading.
    ///
    /// # Errors
    /// [`Error::Map`]: the file is missing, empty, not a regular file, or cannot be read.
    pub fn open(path: &Path) -> Result<Mapping, Error> {
        let refused = |what: String| Error::Map { path: path.display().to_string(), what };
        let file = File::open(path).map_err(|e| refused(e.to_string()))?;
        let meta = file.metadata().map_err(|e| refused(e.to_string()))?;
        if !meta.is_file() {
            return Err(refused("is not a regular file".into()));
        }
        if meta.len() == 0 {
            return Err(refused("is empty".into()));
        }
        // SAFETY: the map is read-only. Another process that truncates or rewrites the file breaks it; that promise is
        // the user's and is documented above and in the README.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| refused(e.to_string()))?;
        Ok(Mapping::File { map, path: path.to_owned() })
    }

    /// Reads all pages of some files and keeps them in memory: the system may not drop them any more. Gives what went wrong;
    /// the other files are locked all the same. Nothing of a file stays locked that cannot be locked whole.
    ///
    /// # Errors
    /// [`Error::Map`]: more than this process may lock, or than there is; a system that is not asked to (Windows).
    pub fn lock_all<'m>(maps: impl Iterator<Item = &'m Mapping> + Clone, progress: &LoadProgress) -> Vec<Error> {
        let files = maps.filter(|map| matches!(map, Mapping::File { .. }));
        let mut counted = progress.of(files.clone().map(|map| map.bytes().len()).sum());
        files.filter_map(|map| map.lock(&mut counted).err()).collect()
    }

    fn lock(&self, counted: &mut Counted<'_>) -> Result<(), Error> {
        let Mapping::File { map, path } = self else { return Ok(()) };
        for (i, part) in map.chunks(LOCKED_AT_ONCE).enumerate() {
            if let Err(error) = lock(part) {
                // Of a file that is not locked as a whole, the first parts only keep memory from others.
                #[cfg(unix)]
                let _ = map.unlock();
                counted.add(map.len() - i * LOCKED_AT_ONCE);
                let what = format!("is not locked in memory: {error}");
                return Err(Error::Map { path: path.display().to_string(), what });
            }
            counted.add(part.len());
        }
        Ok(())
    }

    /// Gives the memory of the pages that lie within these bytes back to the system, which reads the file again where somebody reads
    /// them. Pages that are locked stay.
    pub(crate) fn give_back(&self, bytes: Range<usize>) {
        #[cfg(target_os = "linux")]
        if let Mapping::File { map, .. } = self {
            let inner = whole(&(bytes.start..bytes.end.min(map.len())));
            if !inner.is_empty() {
                // Locked pages are refused, and then there is nothing to do.
                // SAFETY: whole pages within a map of a file that is only read: they show the same bytes afterwards.
                let _ =
                    unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, inner.start, inner.len()) };
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = bytes;
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Mapping::File { map, .. } => map,
            Mapping::Static(bytes) => bytes,
            Mapping::Made(bytes) => bytes,
        }
    }

    /// The file's path, or a word for data that is part of the program.
    pub fn label(&self) -> String {
        match self {
            Mapping::File { path, .. } => path.display().to_string(),
            Mapping::Static(_) => "(embedded model)".into(),
            Mapping::Made(_) => "(made at run time)".into(),
        }
    }
}

/// Part of a map, of whole pages but for its end.
#[cfg(unix)]
fn lock(part: &[u8]) -> std::io::Result<()> {
    // SAFETY: the bytes are there; locking changes none of them.
    unsafe { rustix::mm::mlock(part.as_ptr().cast_mut().cast(), part.len()) }.map_err(Into::into)
}

#[cfg(not(unix))]
fn lock(_: &[u8]) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Bytes that are locked between two reports: a multiple of every system's pages.
const LOCKED_AT_ONCE: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn locked_pages_are_counted_as_such() {
        let locked = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        // Any file of some pages.
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("graph.rs");
        let map = Mapping::open(&path).unwrap();
        let before = locked();
        let told = Arc::new(Mutex::new(Vec::new()));
        let progress = {
            let told = Arc::clone(&told);
            LoadProgress::new(move |done, total| told.lock().unwrap().push((done, total)))
        };
        let errors = Mapping::lock_all([&map, &Mapping::Static(&[1, 2, 3])].into_iter(), &progress);
        assert!(errors.is_empty(), "{errors:?}");
        assert!(locked() >= before + map.bytes().len() as u64 / 1024, "{} kB after {before}", locked());
        let n = map.bytes().len() as u64;
        assert_eq!(*told.lock().unwrap(), [(0, n), (n, n)], "what is no file is not locked");
    }
}
