//! The engine's front: requests in, events out. The only file with `async`.
//! Owns the channels. Knows nothing of what happens between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use model::Model;
use text::TokenId;
use tokio::sync::mpsc::error::TryRecvError;

use crate::event::Event;
use crate::liveness::EngineLife;
use crate::request::{GenerateRequest, Limits, Scope};
use crate::sample::{SampleError, Sampler};
use crate::slot_file::{SavedSlot, SlotFormat};
use crate::slot_info::{SlotError, SlotInfo};
use crate::stats::EngineStats;
use crate::submission::{Command, GenerationId, QueuePermit, Submission};

/// Events that may wait for their reader before its sequence is passed over.
pub(crate) const EVENT_QUEUE: usize = 256;

/// A way to the engine; clones lead to the same one. When the last is dropped the engine finishes what is running and
/// ends.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) model: Arc<Model>,
    pub(crate) limits: Limits,
    pub(crate) n_waiting: Arc<AtomicUsize>,
    pub(crate) max_queue: usize,
    pub(crate) slot_format: Arc<SlotFormat>,
    pub(crate) life: EngineLife,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Too many are waiting.
    #[error("{n_waiting} requests are waiting or being prepared, and the queue holds {max_queue}: try again later")]
    Full {
        /// Requests in the queue.
        n_waiting: usize,
        /// Requests that it holds.
        max_queue: usize,
    },
    /// More permits were asked for than there are.
    #[error(
        "{n} requests at once do not fit into a queue of {max_queue}: ask for fewer, or start the server with a larger --max-queue"
    )]
    TooMany {
        /// What was asked for.
        n: usize,
        /// Requests that it holds.
        max_queue: usize,
    },
    /// The engine's thread is gone.
    #[error("the engine has stopped")]
    Stopped,
    /// Sampling parameters out of range.
    #[error(transparent)]
    Sampling(#[from] SampleError),
    /// The request was checked against limits that are not this engine's.
    #[error(
        "the request was made for a context of {} and a vocabulary of {}, the engine has {} and {}: \
         make it with this engine's limits",
        .made_for.n_ctx, .made_for.n_vocab, .limits.n_ctx, .limits.n_vocab
    )]
    OtherLimits {
        /// What the request was made for.
        made_for: Limits,
        /// What the engine has.
        limits: Limits,
    },
}

impl EngineHandle {
    /// What a request may ask for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Requests that may wait for a sequence.
    pub fn max_queue(&self) -> usize {
        self.max_queue
    }

    /// Requests that wait for a sequence now, those included for which a permit was reserved.
    pub fn n_waiting(&self) -> usize {
        self.n_waiting.load(Ordering::Relaxed)
    }

    /// Whether its thread still runs. To be held where the engine itself is not to be kept.
    pub fn life(&self) -> EngineLife {
        self.life.clone()
    }

    /// The main model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// [`SubmitError::Full`]: try again later. [`SubmitError::Stopped`]: the engine is gone.
    /// [`SubmitError::OtherLimits`]: the request was made with limits other than [`EngineHandle::limits`].
    pub fn submit(&self, request: GenerateRequest) -> Result<Generation, SubmitError> {
        let mut reserved = self.reserve(1)?;
        let reserved = reserved.pop().ok_or(SubmitError::Stopped)?;
        reserved.submit(request)
    }

    /// Takes `n` permits for the queue for requests that have still to be made, all or none: what that takes counts as waiting.
    ///
    /// # Errors
    /// [`SubmitError::Full`]: try again later. [`SubmitError::TooMany`]: that would not help. [`SubmitError::Stopped`]: the
    /// engine is gone.
    pub fn reserve(&self, n: usize) -> Result<Vec<Reserved>, SubmitError> {
        if self.life.has_stopped() {
            return Err(SubmitError::Stopped);
        }
        let max_queue = self.max_queue;
        if n > max_queue {
            return Err(SubmitError::TooMany { n, max_queue });
        }
        let permits = QueuePermit::take(&self.n_waiting, n, max_queue);
        let permits = permits.map_err(|n_waiting| SubmitError::Full { n_waiting, max_queue })?;
        Ok(permits.into_iter().map(|permit| Reserved { engine: self.clone(), permit }).collect())
    }

    fn hand_over(&self, request: GenerateRequest, permit: QueuePermit) -> Result<Generation, SubmitError> {
        if request.limits() != self.limits {
            return Err(SubmitError::OtherLimits { made_for: request.limits(), limits: self.limits });
        }
        let vocab = self.model.vocab();
        let bytes_of = |id: TokenId, into: &mut Vec<u8>| into.extend_from_slice(vocab.bytes(id).unwrap_or_default());
        // Made here, not on the engine's thread: preparing DRY walks the whole vocabulary.
        let mut sampler = Sampler::new(&request.options().sampling, self.limits.n_vocab, &bytes_of)?;
        sampler.prime(request.prompt());
        let (events, receiver) = tokio::sync::mpsc::channel(EVENT_QUEUE);
        let constraint = request.options().grammar.as_ref().map(|grammar| grammar.start());
        let id = GenerationId::new();
        let submission =
            Submission { request, id, sampler, constraint, events, submitted: Instant::now(), _permit: permit };
        self.commands.send(Command::Submit(Box::new(submission))).map_err(|_| SubmitError::Stopped)?;
        Ok(Generation { events: receiver, id, ended: false })
    }

    /// Ends a generation where it stands, as [`crate::FinishReason::Cancelled`]: its reader gets what there is, its slot is free
    /// after the engine step that runs, and its state stays for requests that begin alike. One that has ended stays as it is.
    pub fn cancel(&self, id: GenerationId) {
        // An engine that is gone has ended it.
        let _ = self.commands.send(Command::Cancel(id));
    }

    /// Ends the thinking of a generation, if it is thinking: the tokens that end it come next. Gives whether it was. Waits for
    /// the engine step that runs.
    pub fn end_thinking(&self, id: GenerationId) -> bool {
        self.ask(|to| Command::EndThinking(id, to)).unwrap_or(false)
    }

    /// What the engine has done so far.
    ///
    /// # Errors
    /// [`SubmitError::Stopped`]: the engine is gone.
    pub fn stats(&self) -> Result<EngineStats, SubmitError> {
        self.ask(Command::Stats).ok_or(SubmitError::Stopped)
    }

    /// What the slots hold and do.
    ///
    /// # Errors
    /// [`SubmitError::Stopped`]: the engine is gone.
    pub fn slots(&self) -> Result<Vec<SlotInfo>, SubmitError> {
        self.ask(Command::Slots).ok_or(SubmitError::Stopped)
    }

    /// Copies the state of a slot that serves no request and belongs to `scope`.
    ///
    /// # Errors
    /// [`SlotError`]: no such slot, one that is busy or of another scope, or one whose state cannot be copied.
    pub fn save_slot(&self, index: usize, scope: Scope) -> Result<SavedSlot, SlotError> {
        let state = self.ask(|to| Command::Save(index, scope, to)).ok_or(SlotError::Stopped)??;
        Ok(SavedSlot { state, format: Arc::clone(&self.slot_format) })
    }

    /// Bytes that [`SavedSlot::to_bytes`] gives at most: what is longer needs no reading.
    pub fn max_slot_bytes(&self) -> usize {
        self.slot_format.max_bytes()
    }

    /// Reads what [`SavedSlot::to_bytes`] wrote. All of it is checked against the engine's model and sizes, on the calling
    /// thread; the engine does not hear of it.
    ///
    /// # Errors
    /// [`SlotError::Format`], [`SlotError::State`]: another version's, another model's, or not sound.
    pub fn read_slot(&self, bytes: &[u8]) -> Result<SavedSlot, SlotError> {
        self.slot_format.read(bytes)
    }

    /// Replaces the state of a slot that serves no request, and gives the number of its tokens. The state belongs to
    /// `scope` from then on, whoever saved it.
    ///
    /// # Errors
    /// No such slot, or one that is busy; of a slot that another engine saved, as [`EngineHandle::read_slot`]. The state of the
    /// slot is what it was, unless the device failed.
    pub fn load_slot(&self, index: usize, saved: SavedSlot, scope: Scope) -> Result<usize, SlotError> {
        let saved = self.slot_format.own(saved)?;
        self.ask(|to| Command::Load(index, scope, Box::new(saved.state), to)).ok_or(SlotError::Stopped)?
    }

    /// Forgets the state of a slot that serves no request, whosever it is, and gives the number of tokens that it had.
    ///
    /// # Errors
    /// No such slot, or one that is busy.
    pub fn clear_slot(&self, index: usize) -> Result<usize, SlotError> {
        self.ask(|to| Command::Clear(index, to)).ok_or(SlotError::Stopped)?
    }

    fn ask<T>(&self, command: impl FnOnce(mpsc::Sender<T>) -> Command) -> Option<T> {
        let (sender, receiver) = mpsc::channel();
        self.commands.send(command(sender)).ok()?;
        receiver.recv().ok()
    }
}

/// A permit for an engine's queue; dropping it gives it back.
pub struct Reserved {
    engine: EngineHandle,
    permit: QueuePermit,
}

impl Reserved {
    /// Puts a request into the queue. Prepares its sampler, which may take milliseconds.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`], but that the queue is not full.
    pub fn submit(self, request: GenerateRequest) -> Result<Generation, SubmitError> {
        self.engine.hand_over(request, self.permit)
    }
}

impl std::fmt::Debug for Reserved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reserved").finish_non_exhaustive()
    }
}

/// What one request generates, as it comes. Dropping it cancels the request.
///
/// The last event is always `Finished` or `Failed`, also when the engine stops before the generation is complete.
#[derive(Debug)]
pub struct Generation {
    events: tokio::sync::mpsc::Receiver<Event>,
    id: GenerationId,
    /// The last event was given out.
    ended: bool,
}

impl Generation {
    /// What [`EngineHandle::cancel`] and [`EngineHandle::end_thinking`] know it by.
    pub fn id(&self) -> GenerationId {
        self.id
    }

    /// Waits for the next event; `None` after the last. Not for use inside an async runtime.
    #[expect(clippy::should_implement_trait, reason = "it blocks, which an iterator would hide")]
    pub fn next(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv();
        self.checked(event)
    }

    /// The next event if there is one now; `None` also after the last.
    pub fn try_next(&mut self) -> Option<Event> {
        match self.events.try_recv() {
            Ok(event) => self.checked(Some(event)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.checked(None),
        }
    }

    /// Waits for the next event without blocking the thread; `None` after the last.
    pub async fn recv(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.checked(event)
    }

    /// A channel that ends before the generation does means that the engine's thread is gone: a reader must not take that
    /// for a complete generation.
    fn checked(&mut self, event: Option<Event>) -> Option<Event> {
        let event = match event {
            None if !self.ended => Some(Event::Failed(SubmitError::Stopped.to_string())),
            event => event,
        };
        self.ended |= matches!(event, Some(Event::Finished(_) | Event::Failed(_)));
        event
    }
}
