//! Memory of the host that is taken page by page, when something is written to it, and given back the same way.
//! Owns the map. Where the system cannot do so, it is plain memory full of zeros.

use std::ops::Range;

use memmap2::{MmapMut, MmapOptions};

/// Zeroed bytes, of which only what is written takes memory.
#[derive(Debug)]
pub(crate) struct Pages(MmapMut);

impl Pages {
    /// `n_bytes` of zeros. No memory is reserved for them: whoever writes knows how much there is.
    pub(crate) fn new(n_bytes: usize) -> Option<Self> {
        MmapOptions::new().len(n_bytes).no_reserve_swap().map_anon().ok().map(Self)
    }

    pub(crate) fn start(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// Takes memory in pages of the smallest size, where the system would take large ones for many of them at once.
    pub(crate) fn in_small_pages(&self) {
        // A system without large pages refuses, and there is nothing to do then.
        #[cfg(target_os = "linux")]
        let _ = self.0.advise(memmap2::Advice::NoHugePage);
    }

    /// Gives the pages that lie within `bytes` back to the system: they are zeros then, and take no memory. Gives what of
    /// `bytes` is left as it was, before and after them.
    ///
    /// # Safety
    /// Nobody has a reference to these bytes.
    pub(crate) unsafe fn give_back(&self, bytes: Range<usize>) -> [Range<usize>; 2] {
        #[cfg(target_os = "linux")]
        {
            let inner = bytes.start.next_multiple_of(PAGE)..bytes.end / PAGE * PAGE;
            let (at, len) = (inner.start, inner.len());
            // SAFETY: the range lies within the map, whose pages are anonymous and private, so they become zeros; nobody
            // has a reference to them (the caller).
            if len > 0 && unsafe { self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at, len) }.is_ok()
            {
                return [bytes.start..inner.start, inner.end..bytes.end];
            }
        }
        [bytes.start..bytes.end, bytes.end..bytes.end]
    }
}

/// Bytes of a page: elsewhere than on x86-64 it is the system's choice, and this is the largest.
pub(crate) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };
