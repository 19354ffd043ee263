//! A file without a name, in memory, whose pages several places can map. Linux alone has them.

#[cfg(target_os = "linux")]
mod of_system {
    use std::ops::Range;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

    /// One file for all of a state, so that what is shared takes one descriptor. It grows at its end and never shrinks; what is
    /// given back are holes, which take no memory.
    #[derive(Debug)]
    pub(crate) struct File {
        pub(crate) fd: OwnedFd,
        n_bytes: AtomicUsize,
    }

    impl File {
        /// An empty one; `None` where the system has none or refuses.
        pub(crate) fn new() -> Option<Self> {
            let fd = memfd_create("nextn-state", MemfdFlags::CLOEXEC).ok()?;
            Some(Self { fd, n_bytes: AtomicUsize::new(0) })
        }

        /// `n_bytes` more at its end, zeros; `None` where the system refuses. One at a time: a shorter length would take away
        /// what another one got.
        pub(crate) fn grow(&self, n_bytes: usize) -> Option<Range<usize>> {
            let first = self.n_bytes.fetch_add(n_bytes, Ordering::Relaxed);
            let end = first + n_bytes;
            ftruncate(&self.fd, end as u64).is_ok().then_some(first..end)
        }

        /// Writes all of `bytes`; false if there is no room.
        pub(crate) fn write(&self, mut bytes: &[u8], mut at: usize) -> bool {
            while !bytes.is_empty() {
                match rustix::io::pwrite(&self.fd, bytes, at as u64) {
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
                let _ = fallocate(&self.fd, flags, range.start as u64, range.len() as u64);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod of_system {
    use std::convert::Infallible;
    use std::ops::Range;

    /// There is none here.
    #[derive(Debug)]
    pub(crate) struct File(Infallible);

    impl File {
        pub(crate) fn new() -> Option<Self> {
            None
        }

        pub(crate) fn grow(&self, _: usize) -> Option<Range<usize>> {
            match self.0 {}
        }

        pub(crate) fn write(&self, _: &[u8], _: usize) -> bool {
            match self.0 {}
        }

        pub(crate) fn punch(&self, _: Range<usize>) {
            match self.0 {}
        }
    }
}

pub(crate) use of_system::File;
