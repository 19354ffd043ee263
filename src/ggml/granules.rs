//! Which granules of reserved addresses have memory, each as long as somebody uses a byte of it, and which show the same.
//! Owns the count of users; the memory itself comes from a [`Backing`]. Knows nothing of tensors or sequences.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where memory for granules comes from. One without memory can be read, and is zeros.
pub(crate) trait Backing: Send + Sync {
    /// Gives each of these granules memory of its own, zeros; false, and nothing has changed, if there is no room. None of them
    /// has any.
    ///
    /// # Safety
    /// Nobody reads or writes them meanwhile.
    unsafe fn take(&self, granules: Range<usize>) -> bool;

    /// Takes it away; memory that others show stays theirs.
    ///
    /// # Safety
    /// As [`Backing::take`].
    unsafe fn give_back(&self, granules: Range<usize>);

    /// True where a granule can show the memory of another one.
    fn can_show(&self) -> bool;

    /// Has granules from `to` on, which have no memory, show that of `from`, which have some; false, and nothing has changed, where
    /// that cannot be. Nobody writes to what several show.
    ///
    /// # Safety
    /// As [`Backing::take`].
    unsafe fn show(&self, from: Range<usize>, to: usize) -> bool;

    /// Gives a granule that shows memory of others its own, with the same bytes; false, and nothing has changed, if there is no room.
    ///
    /// # Safety
    /// As [`Backing::take`].
    unsafe fn own(&self, granule: usize) -> bool;
}

/// Reserved addresses, in granules.
pub(crate) struct Granules {
    backing: Box<dyn Backing>,
    /// Bytes of a granule.
    n_bytes: usize,
    all: Mutex<Vec<Granule>>,
}

#[derive(Clone, Default)]
struct Granule {
    n_users: u32,
    /// The memory that it shows, alone or with others.
    memory: Option<Arc<()>>,
}

/// Bytes that one user has the memory of, and how many more, or fewer, it is to have: all from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) start: usize,
    pub(crate) held: usize,
    pub(crate) wanted: usize,
}

impl Granule {
    fn is_shared(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| Arc::strong_count(memory) > 1)
    }
}

impl Granules {
    /// `n` granules of `n_bytes`, none of which has memory.
    pub(crate) fn new(backing: Box<dyn Backing>, n: usize, n_bytes: usize) -> Self {
        Self { backing, n_bytes, all: Mutex::new(vec![Granule::default(); n]) }
    }

    /// Bytes of a granule.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// True where [`Granules::show`] can do something.
    pub(crate) fn can_show(&self) -> bool {
        self.backing.can_show()
    }

    /// Takes memory for what a user wants and does not hold, as far as none is there ([`Granules::show`]); false, and nothing has
    /// changed, if there is no room.
    ///
    /// # Safety
    /// Nobody reads or writes the granules meanwhile.
    pub(crate) unsafe fn take(&self, change: Change) -> bool {
        let more = self.beyond(change.start, change.held, change.wanted);
        let mut all = self.lock();
        let mut taken: Vec<Range<usize>> = Vec::new();
        for run in runs(more.clone(), |i| all[i].memory.is_none()) {
            // SAFETY: passed on; they have no memory.
            if unsafe { self.backing.take(run.clone()) } {
                taken.push(run);
                continue;
            }
            // SAFETY: passed on.
            taken.into_iter().for_each(|run| unsafe { self.backing.give_back(run) });
            return false;
        }
        taken.into_iter().flatten().for_each(|i| all[i].memory = Some(Arc::default()));
        all[more].iter_mut().for_each(|granule| granule.n_users += 1);
        true
    }

    /// Has the whole granules from `to` on, which nobody uses, show the memory of those of `from`, until they are used by nobody again
    /// or [`Granules::own`] gives them their own. False, and nothing has changed, where that cannot be.
    ///
    /// # Safety
    /// As [`Granules::take`].
    pub(crate) unsafe fn show(&self, from: Range<usize>, to: usize) -> bool {
        let (source, target) = (self.covering(&from), self.covering(&(to..to + from.len())));
        let mut all = self.lock();
        let is_whole = [from.start, from.end, to].iter().all(|byte| byte.is_multiple_of(self.n_bytes));
        let has_memory = all[source.clone()].iter().all(|granule| granule.memory.is_some());
        let is_free = all[target.clone()].iter().all(|granule| granule.memory.is_none());
        // SAFETY: passed on; as the trait asks.
        if !(is_whole && has_memory && is_free && unsafe { self.backing.show(source.clone(), target.start) }) {
            return false;
        }
        for (from, to) in source.zip(target) {
            all[to].memory = all[from].memory.clone();
        }
        true
    }

    /// Takes away what granules from `to` on show that nobody uses.
    ///
    /// # Safety
    /// As [`Granules::take`].
    pub(crate) unsafe fn hide(&self, bytes: &Range<usize>) {
        let mut all = self.lock();
        // SAFETY: passed on.
        unsafe { self.free(&mut all, self.covering(bytes)) };
    }

    /// Gives the granules that hold a byte of these memory of their own, with the same bytes, before somebody writes to it. False, and
    /// some may still show that of others, if there is no room.
    ///
    /// # Safety
    /// As [`Granules::take`].
    pub(crate) unsafe fn own(&self, bytes: &Range<usize>) -> bool {
        let mut all = self.lock();
        self.covering(bytes).all(|i| {
            // SAFETY: passed on.
            let is_own = !all[i].is_shared() || unsafe { self.backing.own(i) };
            if is_own && all[i].is_shared() {
                all[i].memory = Some(Arc::default());
            }
            is_own
        })
    }

    /// Gives back the memory of what a user holds and does not want, where no other uses it. Gives the bytes, of those that it
    /// held, which keep theirs.
    ///
    /// # Safety
    /// As [`Granules::take`].
    pub(crate) unsafe fn give_back(&self, change: Change) -> Vec<Range<usize>> {
        let fewer = self.beyond(change.start, change.wanted, change.held);
        let mut all = self.lock();
        all[fewer.clone()].iter_mut().for_each(|granule| granule.n_users = granule.n_users.saturating_sub(1));
        // SAFETY: passed on.
        unsafe { self.free(&mut all, fewer) };
        let bytes = change.start + change.wanted..change.start + change.held;
        self.within(&all, &bytes, |granule| granule.n_users > 0)
    }

    /// Takes away the memory of those that have some and no user.
    ///
    /// # Safety
    /// As [`Granules::take`].
    unsafe fn free(&self, all: &mut [Granule], granules: Range<usize>) {
        let free: Vec<_> = runs(granules, |i| all[i].n_users == 0 && all[i].memory.is_some()).collect();
        for run in free {
            all[run.clone()].iter_mut().for_each(|granule| granule.memory = None);
            // SAFETY: passed on; they had memory.
            unsafe { self.backing.give_back(run) };
        }
    }

    /// The parts of `bytes` that have memory.
    pub(crate) fn with_memory(&self, bytes: Range<usize>) -> Vec<Range<usize>> {
        self.within(&self.lock(), &bytes, |granule| granule.n_users > 0)
    }

    /// The parts of `bytes` that can be written: they have memory, and nobody else shows it.
    pub(crate) fn writable(&self, bytes: Range<usize>) -> Vec<Range<usize>> {
        self.within(&self.lock(), &bytes, |granule| granule.n_users > 0 && !granule.is_shared())
    }

    /// The parts of `bytes` that lie in such granules.
    fn within(&self, all: &[Granule], bytes: &Range<usize>, is: impl Fn(&Granule) -> bool) -> Vec<Range<usize>> {
        let found = runs(self.covering(bytes), |i| is(&all[i]));
        let part =
            |run: Range<usize>| (run.start * self.n_bytes).max(bytes.start)..(run.end * self.n_bytes).min(bytes.end);
        found.map(part).filter(|part| !part.is_empty()).collect()
    }

    /// Bytes of all memory behind granules; what several show counts once.
    pub(crate) fn taken_bytes(&self) -> usize {
        let all = self.lock();
        let memory: HashSet<*const ()> =
            all.iter().filter_map(|granule| granule.memory.as_ref().map(Arc::as_ptr)).collect();
        memory.len() * self.n_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Granule>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
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

        fn can_show(&self) -> bool {
            false
        }

        unsafe fn show(&self, _: Range<usize>, _: usize) -> bool {
            false
        }

        unsafe fn own(&self, _: usize) -> bool {
            false
        }
    }

    /// A number in each granule's memory, and how many more may have some.
    struct Numbers(Mutex<(Vec<Option<Number>>, usize)>);

    type Number = Arc<Mutex<usize>>;

    impl Backing for Arc<Numbers> {
        unsafe fn take(&self, granules: Range<usize>) -> bool {
            let (numbers, left) = &mut *self.0.lock().unwrap();
            if *left < granules.len() {
                return false;
            }
            *left -= granules.len();
            numbers[granules].iter_mut().for_each(|number| assert!(number.replace(Arc::default()).is_none()));
            true
        }

        unsafe fn give_back(&self, granules: Range<usize>) {
            let (numbers, left) = &mut *self.0.lock().unwrap();
            for number in &mut numbers[granules] {
                *left += usize::from(Arc::strong_count(&number.take().expect("it has memory")) == 1);
            }
        }

        fn can_show(&self) -> bool {
            true
        }

        unsafe fn show(&self, from: Range<usize>, to: usize) -> bool {
            let (numbers, _) = &mut *self.0.lock().unwrap();
            for i in from.clone() {
                let shown = numbers[i].clone();
                assert!(shown.is_some() && numbers[to + i - from.start].is_none());
                numbers[to + i - from.start] = shown;
            }
            true
        }

        unsafe fn own(&self, granule: usize) -> bool {
            let (numbers, left) = &mut *self.0.lock().unwrap();
            if *left == 0 {
                return false;
            }
            *left -= 1;
            let number = *numbers[granule].as_ref().expect("it has memory").lock().unwrap();
            numbers[granule] = Some(Arc::new(Mutex::new(number)));
            true
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

    #[test]
    fn granules_that_show_the_same_hold_what_they_would_hold_alone() {
        let seed = 12u64;
        let mut state = seed;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        const PART: usize = N / 4;
        let backing = Arc::new(Numbers(Mutex::new((vec![None; N], 25))));
        let granules = Granules::new(Box::new(Arc::clone(&backing)), N, N_BYTES);
        let start = |holder: usize| holder * PART * N_BYTES;
        // What each of four holders has in its granules.
        let mut known: [Vec<usize>; 4] = Default::default();
        let (mut n_refused, mut n_shown) = (0, 0);
        for step in 1..4000 {
            let (holder, other, n) = (random(4), random(4), random(PART + 1));
            let held = known[holder].len() * N_BYTES;
            match random(4) {
                0 if n * N_BYTES >= held => {
                    // SAFETY: there are no bytes behind these granules.
                    match unsafe { granules.take(Change { start: start(holder), held, wanted: n * N_BYTES }) } {
                        true => known[holder].resize(n, 0),
                        false => n_refused += 1,
                    }
                }
                1 => {
                    let wanted = (n * N_BYTES).min(held);
                    // SAFETY: as above.
                    unsafe { granules.give_back(Change { start: start(holder), held, wanted }) };
                    known[holder].truncate(n);
                }
                2 if holder != other && held == 0 => {
                    let from = start(other)..start(other) + known[other].len().min(n) * N_BYTES;
                    // SAFETY: as above.
                    let is_shown = from.is_empty() || unsafe { granules.show(from.clone(), start(holder)) };
                    let change = Change { start: start(holder), held, wanted: from.len() };
                    // SAFETY: as above.
                    assert!(is_shown && unsafe { granules.take(change) }, "what is shown takes no memory");
                    known[holder] = known[other][..from.len() / N_BYTES].to_vec();
                    n_shown += from.len() / N_BYTES;
                }
                3 if n < known[holder].len() => {
                    let bytes = start(holder) + n * N_BYTES..start(holder) + n * N_BYTES + 1;
                    // SAFETY: as above.
                    if unsafe { granules.own(&bytes) } {
                        assert_eq!(granules.writable(bytes.clone()), [bytes]);
                        let number = backing.0.lock().unwrap().0[holder * PART + n].clone().expect("it has memory");
                        *number.lock().unwrap() = step;
                        known[holder][n] = step;
                    } else {
                        n_refused += 1;
                    }
                }
                _ => {}
            }
            let (numbers, left) = &*backing.0.lock().unwrap();
            for (holder, known) in known.iter().enumerate() {
                let of = numbers[holder * PART..][..PART].iter().map_while(Option::as_ref);
                let found: Vec<usize> = of.map(|number| *number.lock().unwrap()).collect();
                assert_eq!(found, *known, "holder {holder}, step {step}, seed {seed}");
            }
            assert_eq!(granules.taken_bytes(), (25 - left) * N_BYTES, "step {step}, seed {seed}");
        }
        assert!(n_refused > 10 && n_shown > 100, "{n_refused} times there was no room, {n_shown} were shown");
    }
}
