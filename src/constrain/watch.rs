//! Deadlines of masks: a thread that looks, while answers are constrained, whether one works on a mask for too long.
//! Owns the clock. A mask pays two stores for it, no message and no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

/// One for each compiler; its thread runs as long as somebody is watched.
pub(crate) struct Watch {
    epoch: Instant,
    limit: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watched: Vec<Weak<Turn>>,
    runs: bool,
}

/// One walk through a grammar.
pub(crate) struct Watched {
    turn: Arc<Turn>,
    epoch: Instant,
}

struct Turn {
    /// Milliseconds after the epoch, and 1, at which the present work began; 0 while there is none.
    began: AtomicU64,
    cancel: CancellationHandle,
}

impl Watch {
    pub(crate) fn new(limit: Duration) -> Arc<Self> {
        Arc::new(Self { epoch: Instant::now(), limit, state: Mutex::default() })
    }

    /// Watches over a walk until the answer is dropped.
    pub(crate) fn over(self: &Arc<Self>, cancel: CancellationHandle) -> Watched {
        let turn = Arc::new(Turn { began: AtomicU64::new(0), cancel });
        let mut state = self.lock();
        state.watched.push(Arc::downgrade(&turn));
        if !state.runs {
            let watch = Arc::clone(self);
            let thread = std::thread::Builder::new().name("nextn-deadlines".into());
            // Without a thread masks have no deadline, only llguidance's own bounds.
            state.runs = thread.spawn(move || watch.run()).is_ok();
        }
        drop(state);
        Watched { turn, epoch: self.epoch }
    }

    fn run(&self) {
        loop {
            std::thread::sleep(self.limit.min(PERIOD));
            let now = self.epoch.elapsed();
            let mut state = self.lock();
            state.watched.retain(|turn| {
                let Some(turn) = turn.upgrade() else { return false };
                let began = turn.began.load(Ordering::Acquire);
                if began > 0 && now.saturating_sub(Duration::from_millis(began - 1)) > self.limit {
                    turn.cancel.cancel();
                }
                true
            });
            if state.watched.is_empty() {
                state.runs = false;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in there can be left half done.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Watched {
    /// Does `work` under the deadline.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.turn.began.store(self.epoch.elapsed().as_millis() as u64 + 1, Ordering::Release);
        let done = work();
        self.turn.began.store(0, Ordering::Release);
        done
    }
}

/// How often the thread looks.
const PERIOD: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beyond_its_time_is_cancelled_and_no_other() {
        let watch = Watch::new(Duration::from_millis(20));
        let (slow, quick) = (CancellationHandle::default(), CancellationHandle::default());
        let (watched, other) = (watch.over(slow.clone()), watch.over(quick.clone()));
        other.during(|| ());
        watched.during(|| while !slow.is_cancelled() {});
        assert!(!quick.is_cancelled());
        assert!(watch.lock().runs);
        drop((watched, other));
        // With nobody to watch over the thread ends, and comes back when it is needed.
        while watch.lock().runs {
            std::thread::yield_now();
        }
        let again = CancellationHandle::default();
        watch.over(again.clone()).during(|| while !again.is_cancelled() {});
    }
}
