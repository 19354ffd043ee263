//! Pages of state that several ranges of one tensor show at once, until one of them is written to: copy on write, by the
//! system. Owns the memory behind them. On Linux alone; elsewhere nothing is shared, and whoever asks copies.

use std::ops::Range;

use crate::state::{Inner, StateId};

/// Pages that were shared by [`crate::StateBuffer::share`]. What they hold never changes; their memory goes back when the
/// last owner and the last range that shows them are gone.
#[derive(Debug)]
pub struct SharedPages {
    /// The state that they are of.
    pub(crate) of: *const Inner,
    pub(crate) file: File,
    pub(crate) parts: Vec<Part>,
}

// SAFETY: `of` is compared and never read.
unsafe impl Send for SharedPages {}
// SAFETY: as above.
unsafe impl Sync for SharedPages {}

/// Whole pages of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) id: StateId,
    /// Where they were in the tensor.
    pub(crate) bytes: Range<usize>,
    /// Where they are in the file.
    pub(crate) at: usize,
}

impl SharedPages {
    /// The tensors and the ranges in them whose pages were shared, whole pages only.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (StateId, Range<usize>)> + '_ {
        self.parts.iter().map(|part| (part.id, part.bytes.clone()))
    }
}

#[cfg(target_os = "linux")]
mod file {
    use std::ops::Range;
    use std::os::fd::OwnedFd;

    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

    /// A file without a name, in memory.
    #[derive(Debug)]
    pub(crate) struct File(pub(crate) OwnedFd);

    impl File {
        /// One of `n_bytes` zeros; `None` where the system has none or refuses.
        pub(crate) fn new(n_bytes: usize) -> Option<Self> {
            let file = memfd_create("nextn-state", MemfdFlags::CLOEXEC).ok()?;
            ftruncate(&file, n_bytes as u64).ok()?;
            Some(Self(file))
        }

        /// Writes all of `bytes`; false if there is no room.
        pub(crate) fn write(&self, mut bytes: &[u8], mut at: usize) -> bool {
            while !bytes.is_empty() {
                match rustix::io::pwrite(&self.0, bytes, at as u64) {
                    Ok(0) => return false,
                    Ok(n) => (bytes, at) = (&bytes[n..], at + n),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => return false,
                }
            }
            true
        }

        /// Gives back the memory of a range, which is zeros then.
        pub(crate) fn punch(&self, range: Range<usize>) {
            if !range.is_empty() {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                // Where that is refused the memory goes back with the file.
                let _ = fallocate(&self.0, flags, range.start as u64, range.len() as u64);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod file {
    use std::convert::Infallible;
    use std::ops::Range;

    /// There is none here.
    #[derive(Debug)]
    pub(crate) struct File(pub(crate) Infallible);

    impl File {
        pub(crate) fn new(_: usize) -> Option<Self> {
            None
        }

        pub(crate) fn write(&self, _: &[u8], _: usize) -> bool {
            match self.0 {}
        }

        pub(crate) fn punch(&self, _: Range<usize>) {
            match self.0 {}
        }
    }
}

pub(crate) use file::File;
