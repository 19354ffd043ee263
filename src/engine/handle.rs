//! The engine's front: requests in, events out. The only file with `async`.
//! Owns the channels. Knows nothing of what happens between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use model::Model;
use text::TokenId;

use crate::event::Event;
use crate::request::{GenerateRequest, Limits};
use crate::run::EngineStats;
use crate::sample::{SampleError, Sampler};

/// Events that may wait for their reader before its sequence is passed over.
pub(crate) const EVENT_QUEUE: usize = 256;

/// A request on its way to the engine's thread.
pub(crate) struct Submission {
    pub(crate) request: GenerateRequest,
    pub(crate) sampler: Sampler,
    pub(crate) events: tokio::sync::mpsc::Sender<Event>,
    pub(crate) submitted: Instant,
}

pub(crate) enum Command {
    Submit(Box<Submission>),
    Stats(mpsc::Sender<EngineStats>),
}

/// A way to the engine; clones lead to the same one. When the last is dropped the engine finishes what is running and
/// ends.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) model: Arc<Model>,
    pub(crate) limits: Limits,
    pub(crate) n_waiting: Arc<AtomicUsize>,
    pub(crate) max_queue: usize,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Too many are waiting.
    #[error("{n_waiting} requests are waiting, as many as the queue holds: try again later")]
    Full {
        /// Requests in the queue.
        n_waiting: usize,
    },
    /// The engine's thread is gone.
    #[error("the engine has stopped")]
    Stopped,
    /// Sampling parameters out of range.
    #[error(transparent)]
    Sampling(#[from] SampleError),
}

impl EngineHandle {
    /// What a request may ask for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The model that answers.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// [`SubmitError::Full`]: try again later. [`SubmitError::Stopped`]: the engine is gone.
    pub fn submit(&self, request: GenerateRequest) -> Result<Generation, SubmitError> {
        let n_waiting = self.n_waiting.fetch_add(1, Ordering::Relaxed);
        let submitted = self.submit_counted(request, n_waiting);
        if submitted.is_err() {
            self.n_waiting.fetch_sub(1, Ordering::Relaxed);
        }
        submitted
    }

    fn submit_counted(&self, request: GenerateRequest, n_waiting: usize) -> Result<Generation, SubmitError> {
        if n_waiting >= self.max_queue {
            return Err(SubmitError::Full { n_waiting });
        }
        let vocab = self.model.vocab();
        let bytes_of = |id: TokenId, into: &mut Vec<u8>| into.extend_from_slice(vocab.bytes(id).unwrap_or_default());
        // Made here, not on the engine's thread: preparing DRY walks the whole vocabulary.
        let mut sampler = Sampler::new(&request.options().sampling, self.limits.n_vocab, &bytes_of)?;
        sampler.prime(request.prompt());
        let (events, receiver) = tokio::sync::mpsc::channel(EVENT_QUEUE);
        let submission = Submission { request, sampler, events, submitted: Instant::now() };
        self.commands.send(Command::Submit(Box::new(submission))).map_err(|_| SubmitError::Stopped)?;
        Ok(Generation { events: receiver })
    }

    /// What the engine has done so far.
    ///
    /// # Errors
    /// [`SubmitError::Stopped`]: the engine is gone.
    pub fn stats(&self) -> Result<EngineStats, SubmitError> {
        let (sender, receiver) = mpsc::channel();
        self.commands.send(Command::Stats(sender)).map_err(|_| SubmitError::Stopped)?;
        receiver.recv().map_err(|_| SubmitError::Stopped)
    }
}

/// The answer to one request, as it comes. Dropping it cancels the request.
#[derive(Debug)]
pub struct Generation {
    events: tokio::sync::mpsc::Receiver<Event>,
}

impl Generation {
    /// Waits for the next event; `None` after the last. Not for use inside an async runtime.
    #[expect(clippy::should_implement_trait, reason = "it blocks, which an iterator would hide")]
    pub fn next(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// The next event if there is one now.
    pub fn try_next(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Waits for the next event without blocking the thread; `None` after the last.
    pub async fn recv(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}
