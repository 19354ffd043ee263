//! Which granules of reserved addresses have memory: each as long as somebody uses a byte of it.
//! Owns the count of users; the memory itself comes from a [`Backing`]. Knows nothing of tensors or sequences.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Where memory for granules comes from. One without memory can be read, and is zeros.
pub(crate) trait Backing: Send + Sync {
    /// Gives each of these granules memory of its own, zeros; false, and nothing has changed, if there is no room. None of them
    /// has any.
    ///
    /// # Safety
    /// Nobody reads or writes them meanwhile.
    unsafe fn take(&self, granules: Range<usize>) -> bool;

    /// Takes it away.
    ///
    /// # Safety
    /// As [`Backing::take`].
    unsafe fn give_back(&self, granules: Range<usize>);
}

/// Reserved addresses, in granules.
pub(crate) struct Granules {
    backing: Box<dyn Backing>,
    /// Bytes of a granule.
    n_bytes: usize,
    /// Of each granule, how many use it.
    users: Mutex<Vec<u32>>,
}

/// Bytes that one user has the memory of, and how many more, or fewer, it is to have: all from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) start: usize,
    pub(crate) held: usize,
    pub(crate) wanted: usize,
}

impl Granules {
    /// `n` granules of `n_bytes`, none of which has memory.
    pub(crate) fn new(backing: Box<dyn Backing>, n: usize, n_bytes: usize) -> Self {
        Self { backing, n_bytes, users: Mutex::new(vec![0; n]) }
    }

    /// Bytes of a granule.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Takes memory for what a user wants and does not hold; false, and nothing has changed, if there is no room.
    ///
    /// # Safety
    /// Nobody reads or writes the granules meanwhile.
    pub(crate) unsafe fn take(&self, change: Change) -> bool {
        let more = self.beyond(change.start, change.held, change.wanted);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken: Vec<Range<usize>> = Vec::new();
        for run in runs(more.clone(), |i| users[i] == 0) {
            // SAFETY: passed on; nobody uses them, so they have no memory.
            if unsafe { self.backing.take(run.clone()) } {
                taken.push(run);
                continue;
            }
            // SAFETY: passed on.
            taken.into_iter().for_each(|run| unsafe { self.backing.give_back(run) });
            return false;
        }
        users[more].iter_mut().for_each(|n| *n += 1);
        true
    }

    /// Gives back the memory of what a user holds and does not want, where no other uses it. Gives the bytes, of those that it
    /// held, which keep theirs.
    ///
    /// # Safety
    /// As [`Granules::take`].
    pub(crate) unsafe fn give_back(&self, change: Change) -> Vec<Range<usize>> {
        let fewer = self.beyond(change.start, change.wanted, change.held);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users[fewer.clone()].iter_mut().for_each(|n| *n = n.saturating_sub(1));
        for run in runs(fewer.clone(), |i| users[i] == 0) {
            // SAFETY: passed on; the user that counted them is gone, and they had memory as long as it was there.
            unsafe { self.backing.give_back(run) };
        }
        let bytes = change.start + change.wanted..change.start + change.held;
        let kept = runs(self.covering(&bytes), |i| users[i] > 0);
        let within =
            |run: Range<usize>| (run.start * self.n_bytes).max(bytes.start)..(run.end * self.n_bytes).min(bytes.end);
        kept.map(within).filter(|kept| !kept.is_empty()).collect()
    }

    /// The parts of `bytes` that have memory.
    pub(crate) fn with_memory(&self, bytes: Range<usize>) -> Vec<Range<usize>> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let all = runs(self.covering(&bytes), |i| users[i] > 0);
        all.map(|run| (run.start * self.n_bytes).max(bytes.start)..(run.end * self.n_bytes).min(bytes.end)).collect()
    }

    /// Bytes of all granules with memory.
    pub(crate) fn taken_bytes(&self) -> usize {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.iter().filter(|&&n| n > 0).count() * self.n_bytes
    }

    /// The granules that hold a byte of these.
    fn covering(&self, bytes: &Range<usize>) -> Range<usize> {
        if bytes.is_empty() {
            return 0..0;
        }
        bytes.start / self.n_bytes..bytes.end.div_ceil(self.n_bytes)
    }

    /// The granules of the first `more` bytes from `start` on that are not those of the first `few`.
    fn beyond(&self, start: usize, few: usize, more: usize) -> Range<usize> {
        let all = self.covering(&(start..start + more.max(few)));
        let held = self.covering(&(start..start + few));
        if held.is_empty() { all } else { held.end..all.end }
    }
}

/// The runs of numbers in `of` for which `is` holds.
fn runs(of: Range<usize>, is: impl Fn(usize) -> bool) -> impl Iterator<Item = Range<usize>> {
    let mut at = of.start;
    std::iter::from_fn(move || {
        let start = (at..of.end).find(|&i| is(i))?;
        let end = (start..of.end).find(|&i| !is(i)).unwrap_or(of.end);
        at = end;
        Some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const N: usize = 40;
    const N_BYTES: usize = 16;

    /// Which granules have memory, and how many more may have.
    #[derive(Default)]
    struct Counted(Mutex<(Vec<bool>, usize)>);

    impl Backing for Arc<Counted> {
        unsafe fn take(&self, granules: Range<usize>) -> bool {
            let (taken, left) = &mut *self.0.lock().unwrap();
            assert!(!granules.is_empty() && taken[granules.clone()].iter().all(|is| !is), "taken twice");
            if *left < granules.len() {
                return false;
            }
            *left -= granules.len();
            taken[granules].fill(true);
            true
        }

        unsafe fn give_back(&self, granules: Range<usize>) {
            let (taken, left) = &mut *self.0.lock().unwrap();
            assert!(!granules.is_empty() && taken[granules.clone()].iter().all(|is| *is), "given back twice");
            *left += granules.len();
            taken[granules].fill(false);
        }
    }

    #[test]
    fn a_granule_has_memory_as_long_as_somebody_holds_a_byte_of_it() {
        let seed = 11u64;
        let mut state = seed;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let backing = Arc::new(Counted(Mutex::new((vec![false; N], 25))));
        let granules = Granules::new(Box::new(Arc::clone(&backing)), N, N_BYTES);
        // Eight holders with parts of 75 bytes each, which begin and end anywhere in a granule.
        let (part, mut held) = (75, [0usize; 8]);
        let covers = |holder: usize, held: usize, granule: usize| {
            let bytes = holder * part..holder * part + held;
            held > 0 && bytes.start < (granule + 1) * N_BYTES && bytes.end > granule * N_BYTES
        };
        let mut n_refused = 0;
        for step in 0..2000 {
            let (holder, wanted) = (random(8), random(part + 1));
            let change = Change { start: holder * part, held: held[holder], wanted };
            let before = held;
            if wanted >= held[holder] {
                // SAFETY: there are no bytes behind these granules.
                match unsafe { granules.take(change) } {
                    true => held[holder] = wanted,
                    false => n_refused += 1,
                }
            } else {
                held[holder] = wanted;
                // SAFETY: as above.
                let kept = unsafe { granules.give_back(change) };
                let is_kept = |byte: &usize| (0..8).any(|h| covers(h, held[h], byte / N_BYTES));
                let expected: Vec<usize> =
                    (change.start + wanted..change.start + change.held).filter(is_kept).collect();
                assert_eq!(kept.into_iter().flatten().collect::<Vec<_>>(), expected, "step {step}, seed {seed}");
            }
            let expected: Vec<bool> = (0..N).map(|g| (0..8).any(|h| covers(h, held[h], g))).collect();
            let (taken, left) = &*backing.0.lock().unwrap();
            assert_eq!(*taken, expected, "step {step}, seed {seed}: {before:?}, {change:?}");
            assert_eq!(left + taken.iter().filter(|is| **is).count(), 25);
            assert_eq!(granules.taken_bytes(), (25 - left) * N_BYTES);
        }
        assert!((10..1000).contains(&n_refused), "{n_refused} times there was no room");
    }
}
