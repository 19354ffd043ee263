//! Granules on the host, for tests without a GPU: they have as much memory as a test says, and what writes to one without memory, or
//! to one that shows what another one shows, is found. Owns the switch.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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

/// Memory of the host that is all there, and what of it counts as taken. A granule that shows the memory of another one is a copy of it,
/// and both must be as they were then as long as both are there.
pub(crate) struct HostGranules {
    start: *mut u8,
    n_bytes: usize,
    taken: Mutex<Vec<Option<Arc<Taken>>>>,
}

/// Memory that counts once, however many show it.
#[derive(Default)]
struct Taken {
    /// What is there since several show it.
    bytes: Mutex<Vec<u8>>,
}

// SAFETY: the memory is not bound to a thread; whoever takes granules keeps others off them.
unsafe impl Send for HostGranules {}
// SAFETY: as above; what this changes by itself is behind a lock.
unsafe impl Sync for HostGranules {}

impl HostGranules {
    /// # Safety
    /// `n` granules of `n_bytes` begin at `start`, zeros, and outlive this.
    pub(crate) unsafe fn new(start: *mut u8, n: usize, n_bytes: usize) -> Self {
        Self { start, n_bytes, taken: Mutex::new(vec![None; n]) }
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

    /// Ends the test if a granule shows what others show, and was written.
    ///
    /// # Safety
    /// As [`HostGranules::bytes`].
    unsafe fn check(&self, taken: &[Option<Arc<Taken>>], i: usize) {
        let Some(memory) = taken[i].as_ref().filter(|memory| Arc::strong_count(memory) > 1) else { return };
        let bytes = memory.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let shows = |of: &Option<Arc<Taken>>| of.as_ref().is_some_and(|of| Arc::ptr_eq(of, memory));
        for other in (0..taken.len()).filter(|&other| shows(&taken[other])) {
            // SAFETY: passed on.
            let found = unsafe { self.bytes(other) };
            assert!(*bytes == found, "granule {other} was written while granule {i} showed it too");
        }
    }

    /// Takes away what a granule shows; true where nobody shows it any more.
    ///
    /// # Safety
    /// As [`HostGranules::bytes`].
    unsafe fn leave(&self, taken: &mut [Option<Arc<Taken>>], i: usize) -> bool {
        // SAFETY: passed on.
        unsafe { self.check(taken, i) };
        let memory = taken[i].take();
        Arc::strong_count(&memory.unwrap_or_else(|| panic!("granule {i} has no memory"))) == 1
    }
}

/// Has one fewer to take; false where there is none.
fn take(n: usize) -> bool {
    LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(n)).is_ok()
}

impl Backing for HostGranules {
    unsafe fn take(&self, granules: Range<usize>) -> bool {
        if !take(granules.len()) {
            return false;
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for i in granules {
            assert!(taken[i].is_none(), "granule {i} is taken twice");
            // SAFETY: passed on.
            let is_zero = unsafe { self.bytes(i) }.iter().all(|&b| b == 0);
            assert!(is_zero, "granule {i} was written before it had memory");
            taken[i] = Some(Arc::default());
        }
        true
    }

    unsafe fn give_back(&self, granules: Range<usize>) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for i in granules {
            // SAFETY: passed on.
            if unsafe { self.leave(&mut taken, i) } {
                LEFT.fetch_add(1, Ordering::SeqCst);
            }
            // SAFETY: passed on.
            unsafe { self.bytes(i) }.fill(0);
        }
    }

    fn can_show(&self) -> bool {
        true
    }

    unsafe fn show(&self, from: Range<usize>, to: usize) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for (from, to) in from.zip(to..) {
            // SAFETY: passed on.
            unsafe { self.check(&taken, from) };
            // SAFETY: passed on.
            let source = unsafe { self.bytes(from) };
            // SAFETY: passed on, and it is another one.
            let target = unsafe { self.bytes(to) };
            assert!(taken[to].is_none(), "granule {to} has memory and is to show that of {from}");
            assert!(target.iter().all(|&b| b == 0), "granule {to} was written before it had memory");
            target.copy_from_slice(source);
            let memory = taken[from].clone().unwrap_or_else(|| panic!("granule {from} has no memory to be shown"));
            *memory.bytes.lock().unwrap_or_else(PoisonError::into_inner) = source.to_vec();
            taken[to] = Some(memory);
        }
        true
    }

    unsafe fn own(&self, granule: usize) -> bool {
        if !take(1) {
            return false;
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: passed on.
        let was_last = unsafe { self.leave(&mut taken, granule) };
        assert!(!was_last, "granule {granule} has memory of its own");
        taken[granule] = Some(Arc::default());
        true
    }
}

impl Drop for HostGranules {
    fn drop(&mut self) {
        let mut taken = std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner));
        if std::thread::panicking() {
            return;
        }
        for i in 0..taken.len() {
            if taken[i].is_some() {
                // SAFETY: the state is gone, and this with it.
                LEFT.fetch_add(usize::from(unsafe { self.leave(&mut taken, i) }), Ordering::SeqCst);
                continue;
            }
            // SAFETY: as above.
            let is_zero = unsafe { self.bytes(i) }.iter().all(|&b| b == 0);
            assert!(is_zero, "granule {i} was written and had no memory");
        }
    }
}
