//! Memory of the host that is taken page by page, when something is written to it, and given back the same way.
//! Owns the map, and on Linux what its pages show: zeros, or pages of a file until they are written to. Where the system cannot
//! do so, it is plain memory full of zeros.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapMut, MmapOptions};

use crate::memory_file::File;

/// Zeroed bytes, of which only what is written takes memory.
#[derive(Debug)]
pub(crate) struct Pages {
    map: MmapMut,
    in_small_pages: AtomicBool,
    /// Some pages may show a file.
    #[cfg(target_os = "linux")]
    shows_files: AtomicBool,
}

impl Pages {
    /// `n_bytes` of zeros. No memory is reserved for them: whoever writes knows how much there is.
    pub(crate) fn new(n_bytes: usize) -> Option<Self> {
        let map = MmapOptions::new().len(n_bytes).no_reserve_swap().map_anon().ok()?;
        let in_small_pages = AtomicBool::new(false);
        #[cfg(target_os = "linux")]
        let shows_files = AtomicBool::new(false);
        Some(Self {
            map,
            in_small_pages,
            #[cfg(target_os = "linux")]
            shows_files,
        })
    }

    pub(crate) fn start(&mut self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Takes memory in pages of the smallest size, where the system would take large ones for many of them at once.
    pub(crate) fn in_small_pages(&self) {
        self.in_small_pages.store(true, Ordering::Relaxed);
        // A system without large pages refuses, and there is nothing to do then.
        #[cfg(target_os = "linux")]
        let _ = self.map.advise(memmap2::Advice::NoHugePage);
    }

    /// Gives the pages that lie within `bytes` back to the system: they are zeros then, and take no memory. Gives what of
    /// `bytes` is left as it was, before and after them.
    ///
    /// # Safety
    /// Nobody has a reference to these bytes.
    pub(crate) unsafe fn give_back(&self, bytes: Range<usize>) -> [Range<usize>; 2] {
        #[cfg(target_os = "linux")]
        {
            let inner = whole(&bytes);
            let (at, len) = (inner.start, inner.len());
            // Pages of a file would show it again.
            let is_done = len > 0
                && if self.shows_files.load(Ordering::Relaxed) {
                    // SAFETY: nobody has a reference to these bytes (the caller).
                    unsafe { self.put(inner.clone(), None) }
                } else {
                    // SAFETY: the range lies within the map, whose pages are anonymous and private, so they become zeros;
                    // nobody has a reference to them (the caller).
                    unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at, len) }.is_ok()
                };
            if is_done {
                return [bytes.start..inner.start, inner.end..bytes.end];
            }
        }
        [bytes.start..bytes.end, bytes.end..bytes.end]
    }

    /// Has these pages show those of `file` from `at` on, until they are written to; false, and nothing has changed, where
    /// the system refuses.
    ///
    /// # Safety
    /// Nobody has a reference to these bytes. The file reaches as far, and its bytes do not change.
    pub(crate) unsafe fn show(&self, pages: Range<usize>, file: &File, at: usize) -> bool {
        // SAFETY: passed on.
        unsafe { self.put(pages, Some((file, at))) }
    }

    /// Puts pages of a file, or of zeros, in the place of these pages.
    ///
    /// # Safety
    /// As [`Pages::show`].
    #[cfg(target_os = "linux")]
    unsafe fn put(&self, pages: Range<usize>, of: Option<(&File, usize)>) -> bool {
        use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
        let is_whole = pages.start.is_multiple_of(PAGE) && pages.end.is_multiple_of(PAGE);
        if !is_whole || pages.is_empty() || pages.end > self.map.len() {
            return false;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: within the map, as checked.
        let place = unsafe { self.map.as_ptr().cast_mut().add(pages.start) }.cast();
        let is_done = match of {
            // SAFETY: whole pages within the map, which this struct owns, and nobody has a reference to them; the file is as
            // long and does not change (the caller).
            Some((file, at)) => unsafe { mmap(place, pages.len(), access, flags, &file.fd, at as u64) }.is_ok(),
            // SAFETY: likewise.
            None => unsafe { mmap_anonymous(place, pages.len(), access, flags) }.is_ok(),
        };
        if !is_done {
            // The system looks for what it lacks before it takes the old pages away. If it has not, these bytes are gone, and
            // whoever reads them would end the process without a word.
            // SAFETY: whole pages within the map; this only asks whether they are there.
            let is_there = unsafe { rustix::mm::madvise(place, pages.len(), rustix::mm::Advice::Normal) }.is_ok();
            assert!(is_there, "the system took {} bytes of sequence state away", pages.len());
            return false;
        }
        if of.is_some() {
            self.shows_files.store(true, Ordering::Relaxed);
        }
        if self.in_small_pages.load(Ordering::Relaxed) {
            // SAFETY: whole pages within the map; none of them changes.
            let _ = unsafe { rustix::mm::madvise(place, pages.len(), rustix::mm::Advice::LinuxNoHugepage) };
        }
        true
    }

    #[cfg(not(target_os = "linux"))]
    unsafe fn put(&self, _: Range<usize>, _: Option<(&File, usize)>) -> bool {
        false
    }
}

/// The whole pages within `bytes`.
pub(crate) fn whole(bytes: &Range<usize>) -> Range<usize> {
    let start = bytes.start.next_multiple_of(PAGE);
    start..(bytes.end / PAGE * PAGE).max(start)
}

/// Bytes of a page: elsewhere than on x86-64 it is the system's choice, and this is the largest.
pub(crate) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };
