//! Requests and questions on their way to the engine's thread, and their permits for its queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use crate::busy::Busy;
use crate::constraint::Constraint;
use crate::event::{Event, FinishReason, Summary, Timings};
use crate::request::{GenerateRequest, Scope};
use crate::sample::Sampler;
use crate::slot_file::SlotState;
use crate::slot_info::{SlotError, SlotInfo};
use crate::stats::EngineStats;

/// Which generation is meant; no two of a process are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationId(u64);

impl GenerationId {
    /// For people.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A request on its way to the engine's thread.
pub(crate) struct Submission {
    pub(crate) request: GenerateRequest,
    pub(crate) id: GenerationId,
    pub(crate) sampler: Sampler,
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    pub(crate) events: tokio::sync::mpsc::Sender<Event>,
    pub(crate) submitted: Instant,
    /// Given back when the request gets a slot and also when it is thrown away unserved.
    pub(crate) _permit: QueuePermit,
}

impl Submission {
    /// Ends it before it had a slot.
    pub(crate) fn cancel(self) {
        let Self { request, events, _permit, .. } = self;
        let timings = Timings { prompt_tokens: request.prompt().len(), ..Timings::default() };
        let (reason, rest) = (FinishReason::Cancelled, Vec::new());
        let summary = Summary { reason, rest, timings, slot: 0, embedding: None };
        drop(_permit);
        // The reader may be gone: there is nobody to tell then.
        let _ = events.try_send(Event::Finished(Box::new(summary)));
    }
}

/// The right to be among the waiting requests; dropping it gives it back, so that no way out of the queue is forgotten.
pub(crate) struct QueuePermit {
    n_waiting: Arc<AtomicUsize>,
    /// The request counts from here on, whatever becomes of the permit.
    pub(crate) busy: Busy,
}

impl QueuePermit {
    /// Takes `n` permits, or none where there are not so many below `max`; the error is how many are taken.
    pub(crate) fn take(n_waiting: &Arc<AtomicUsize>, n: usize, max: usize) -> Result<Vec<Self>, usize> {
        let more = |taken: usize| taken.checked_add(n).filter(|&all| all <= max);
        n_waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)?;
        Ok((0..n).map(|_| Self { n_waiting: Arc::clone(n_waiting), busy: Busy::new() }).collect())
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.n_waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the engine's thread is told to do.
pub(crate) enum Command {
    Submit(Box<Submission>),
    Cancel(GenerationId),
    /// Gives whether it was thinking.
    EndThinking(GenerationId, mpsc::Sender<bool>),
    Stats(mpsc::Sender<EngineStats>),
    Slots(mpsc::Sender<Vec<SlotInfo>>),
    Save(usize, Scope, mpsc::Sender<Result<SlotState, SlotError>>),
    /// Gives the number of tokens that the slot holds now.
    Load(usize, Scope, Box<SlotState>, mpsc::Sender<Result<usize, SlotError>>),
    /// Gives the number of tokens that the slot held.
    Clear(usize, mpsc::Sender<Result<usize, SlotError>>),
}
