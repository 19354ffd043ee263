//! Granules on the host, for tests without a GPU: they have as much memory as a test says, and what writes to one without memory is
//! found. Owns the switch.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::granules::Backing;

/// Bytes of a granule of the host; 0 for none.
static GRANULE: AtomicUsize = AtomicUsize::new(0);

/// How many more may be taken.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Has state on the host that is made from now on take its memory in granules of `n_bytes` (0 for pages, as without a test), as on a
/// GPU that has `n` of them free. For a test program that does nothing else: all of the process is concerned.
pub fn pretend_granules(n_bytes: usize, n: usize) {
    LEFT.store(n, Ordering::SeqCst);
    GRANULE.store(n_bytes, Ordering::SeqCst);
}

/// Granules that may still be taken.
pub fn pretended_granules_left() -> usize {
    LEFT.load(Ordering::SeqCst)
}

pub(crate) fn granule() -> Option<usize> {
    Some(GRANULE.load(Ordering::SeqCst)).filter(|&n| n > 0)
}

/// Memory of the host that is all there, and which of it counts as taken.
pub(crate) struct HostGranules {
    start: *mut u8,
    n_bytes: usize,
    taken: Mutex<Vec<bool>>,
}

// SAFETY: the memory is not bound to a thread; whoever takes granules keeps others off them.
unsafe impl Send for HostGranules {}
// SAFETY: as above; what this changes by itself is behind a lock.
unsafe impl Sync for HostGranules {}

impl HostGranules {
    /// # Safety
    /// `n` granules of `n_bytes` begin at `start`, zeros, and outlive this.
    pub(crate) unsafe fn new(start: *mut u8, n: usize, n_bytes: usize) -> Self {
        Self { start, n_bytes, taken: Mutex::new(vec![false; n]) }
    }

    /// # Safety
    /// Nobody reads or writes the granule meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn bytes(&self, i: usize) -> &mut [u8] {
        // SAFETY: a granule of those that were promised.
        let start = unsafe { self.start.add(i * self.n_bytes) };
        // SAFETY: as above, and nobody else has a reference (the caller).
        unsafe { std::slice::from_raw_parts_mut(start, self.n_bytes) }
    }
}

impl Backing for HostGranules {
    unsafe fn take(&self, granules: Range<usize>) -> bool {
        let fewer = |left: usize| left.checked_sub(granules.len());
        if LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_err() {
            return false;
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for i in granules {
            assert!(!taken[i], "granule {i} is taken twice");
            // SAFETY: passed on.
            let is_zero = unsafe { self.bytes(i) }.iter().all(|&b| b == 0);
            assert!(is_zero, "granule {i} was written before it had memory");
            taken[i] = true;
        }
        true
    }

    unsafe fn give_back(&self, granules: Range<usize>) {
        LEFT.fetch_add(granules.len(), Ordering::SeqCst);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for i in granules {
            assert!(taken[i], "granule {i} is given back and was not taken");
            // SAFETY: passed on.
            unsafe { self.bytes(i) }.fill(0);
            taken[i] = false;
        }
    }
}

impl Drop for HostGranules {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner));
        LEFT.fetch_add(taken.iter().filter(|&&is| is).count(), Ordering::SeqCst);
        if std::thread::panicking() {
            return;
        }
        for (i, _) in taken.iter().enumerate().filter(|(_, taken)| !**taken) {
            // SAFETY: the state is gone, and this with it.
            let is_zero = unsafe { self.bytes(i) }.iter().all(|&b| b == 0);
            assert!(is_zero, "granule {i} was written and had no memory");
        }
    }
}
