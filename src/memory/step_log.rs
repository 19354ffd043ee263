//! Logged tokens in the place of snapshots: a delta net's state stays where it was written last, and what tokens have done to it since
//! is kept beside it, a small part of its bytes each. Going back is forgetting entries; the next step replays those that are left.
//! Owns which steps write the state. Knows nothing of tensors.

use ggml::{LARGE_STATE, LoggedStep};

use crate::layout::Recurrent;

/// Tokens that are replayed by each step at most, where the state has left the caches before it is read again: reading it takes
/// longer than they do. Where it is still there, each step writes it.
const MOST_REPLAYED: usize = 8;

/// How the delta nets of a memory log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLog {
    /// Entries of each log.
    pub(crate) capacity: usize,
    /// Entries that may be there when a step has logged its own without writing the state.
    most: usize,
}

/// Where a sequence's state stands in layers that log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadState {
    /// The plane of the state that was written last.
    pub(crate) plane: u32,
    /// The entry of the first token since.
    pub(crate) first: u32,
    /// Tokens since.
    pub(crate) n_logged: u32,
}

/// What a step does with the state in layers that log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadStep {
    step: LoggedStep,
    /// The plane that is written, if one is.
    pub(crate) plane: u32,
}

impl Default for HeadStep {
    fn default() -> Self {
        Self { step: LoggedStep::Write, plane: 0 }
    }
}

impl HeadState {
    /// The state after a step of which so many tokens are kept.
    pub(crate) fn after(self, done: HeadStep, kept: usize, log: StepLog) -> Self {
        match done.step {
            LoggedStep::Log => Self { n_logged: self.n_logged + kept as u32, ..self },
            LoggedStep::WriteAndLog => Self {
                plane: done.plane,
                first: (self.first + self.n_logged) % log.capacity as u32,
                n_logged: kept as u32,
            },
            LoggedStep::Write => Self { plane: done.plane, ..Self::default() },
        }
    }

    /// Entries and what a step does, as an op is told.
    pub(crate) fn numbers(self, next: HeadStep) -> [i32; 3] {
        [self.first as i32, self.n_logged as i32, next.step.number()]
    }
}

impl StepLog {
    /// Of layers whose state has so many bytes at most, for steps of up to so many tokens that can be taken back.
    pub(crate) fn of(n_bytes: usize, n_snapshots: usize) -> Self {
        let most = if n_bytes >= LARGE_STATE { MOST_REPLAYED } else { 0 };
        Self { capacity: n_snapshots + most.max(n_snapshots), most }
    }

    /// What a step of so many rows does, of which all but the last `n_snapshots - 1` are kept.
    /// `held`: where the sequence can be taken back to; `other`: the plane that a transactional memory writes in turns with the
    /// first.
    pub(crate) fn step(
        self,
        now: HeadState,
        (held, other): (Option<HeadState>, Option<u32>),
        (n_rows, n_snapshots): (usize, usize),
    ) -> HeadStep {
        let plane = match (held, other) {
            (Some(held), _) => u32::from(held.plane == 0),
            (None, Some(other)) if now.plane < other => other,
            (None, _) => 0,
        };
        let are_few = now.n_logged as usize + n_rows <= self.most;
        let step = match now.n_logged {
            _ if n_rows > n_snapshots || held.is_some() => LoggedStep::Write,
            _ if are_few => LoggedStep::Log,
            _ if n_snapshots == 1 => LoggedStep::Write,
            // What would be written was read from there.
            0 => LoggedStep::Log,
            _ => LoggedStep::WriteAndLog,
        };
        HeadStep { step, plane }
    }

    /// Bytes of a sequence's log in a layer, in pages of so many.
    pub(crate) fn n_bytes(self, r: Recurrent, page: usize) -> usize {
        let of_head = (self.capacity * ggml::log_entry_bytes(r.d_state)).next_multiple_of(page);
        r.n_heads * of_head.min(4 * r.d_state * r.d_head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_never_overflow_and_steps_replay_few_tokens() {
        for (n_bytes, n_snapshots) in [(LARGE_STATE, 4), (LARGE_STATE, 12), (LARGE_STATE - 1, 4)] {
            let log = StepLog::of(n_bytes, n_snapshots);
            let (mut now, mut random) = (HeadState::default(), 1usize);
            for _ in 0..2000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let n_rows = 1 + (random >> 33) % n_snapshots;
                let n_kept = 1 + (random >> 45) % n_rows;
                let next = log.step(now, (None, None), (n_rows, n_rows));
                let n_logged = now.n_logged as usize;
                assert!(n_logged <= log.most.max(n_snapshots), "{n_logged} replayed");
                if next.step != LoggedStep::Write {
                    // Entries that are read and those that are written lie beside each other in the ring.
                    assert!(n_logged + n_rows <= log.capacity, "{n_logged} and {n_rows} in {}", log.capacity);
                }
                if next.step == LoggedStep::Write {
                    assert_eq!((n_rows, n_kept), (1, 1), "tokens that may be dropped are logged");
                }
                now = now.after(next, n_kept, log);
            }
        }
    }
}
