//! Who may build a grammar now: few at a time, and those who wait do so for a bounded time.
//! Owns the counts. A build that overruns its time cannot be stopped, so it is left behind: it gives its turn to others, and
//! only so many of these may be alive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::error::Error;

/// The turns of one compiler.
#[derive(Default)]
pub(crate) struct Turns {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    n_waiting: usize,
    n_building: usize,
    n_left_behind: usize,
}

impl Counts {
    fn has_room(&self) -> bool {
        self.n_building < MAX_BUILDING && self.n_left_behind < MAX_LEFT_BEHIND
    }
}

/// A turn. Whoever builds and whoever waits for it hold it together; it ends when both have dropped it.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    /// Changes under the lock of the counts.
    left_behind: AtomicBool,
}

impl Turns {
    /// Waits for a turn, `longest` at most.
    ///
    /// # Errors
    /// [`Error::Busy`]: none came, or too many wait already.
    pub(crate) fn take(self: &Arc<Self>, longest: Duration) -> Result<Arc<Turn>, Error> {
        let deadline = Instant::now() + longest;
        let mut counts = self.lock();
        if counts.n_waiting == MAX_WAITING {
            return Err(Error::Busy);
        }
        counts.n_waiting += 1;
        while !counts.has_room() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            counts = self.changed.wait_timeout(counts, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        counts.n_waiting -= 1;
        if !counts.has_room() {
            return Err(Error::Busy);
        }
        counts.n_building += 1;
        Ok(Arc::new(Turn { turns: Arc::clone(self), left_behind: AtomicBool::new(false) }))
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Nothing in there can be left half done.
        self.counts.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Turn {
    /// The build takes too long: another may have its turn while it goes on.
    pub(crate) fn leave_behind(&self) {
        let mut counts = self.turns.lock();
        if !self.left_behind.swap(true, Ordering::Relaxed) {
            counts.n_building -= 1;
            counts.n_left_behind += 1;
            self.turns.changed.notify_all();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut counts = self.turns.lock();
        match *self.left_behind.get_mut() {
            true => counts.n_left_behind -= 1,
            false => counts.n_building -= 1,
        }
        self.turns.changed.notify_all();
    }
}

/// Builds that run at the same time, those left behind not counted: two, so that others are served beside one that overruns.
const MAX_BUILDING: usize = 2;
/// Builds that have overrun their time and still run. Each takes a processor from the engine.
const MAX_LEFT_BEHIND: usize = 3;
/// Requests that may wait for a turn.
const MAX_WAITING: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn take(turns: &Arc<Turns>) -> Option<Arc<Turn>> {
        turns.take(NOW).ok()
    }

    #[test]
    fn a_build_left_behind_gives_its_turn_to_others_until_too_many_are() {
        let turns = Arc::new(Turns::default());
        let mut slow = Vec::new();
        for _ in 0..MAX_LEFT_BEHIND {
            let (one, two) = (take(&turns).expect("a turn"), take(&turns).expect("a turn"));
            assert!(take(&turns).is_none(), "two build at most");
            one.leave_behind();
            one.leave_behind();
            slow.push(one);
            drop(two);
        }
        assert_eq!(turns.take(NOW).map(|_| ()), Err(Error::Busy), "no more may be left behind");
        // One of them ends after all.
        slow.pop();
        assert!(take(&turns).is_some() && take(&turns).is_some());
    }

    #[test]
    fn a_turn_that_ends_wakes_one_who_waits() {
        let turns = Arc::new(Turns::default());
        let held = [take(&turns), take(&turns)];
        let others = Arc::clone(&turns);
        let waits = std::thread::spawn(move || others.take(Duration::from_secs(600)).is_ok());
        while turns.lock().n_waiting == 0 {
            std::thread::yield_now();
        }
        drop(held);
        assert!(waits.join().expect("no panic"));
    }
}
