//! A reply as an iterator, for programs that wait for it on a thread of their own.

use engine::{Generation, SubmitError};

use crate::conversation::Conversation;
use crate::open::LoadedModel;
use crate::open_error::OpenError;
use crate::prepare::{PrepareError, Prepared};
use crate::reply::{Delta, Reply};
use crate::waiting::ALWAYS;

/// Why there is no more of a reply.
#[derive(Debug, thiserror::Error)]
pub enum ReplyError {
    /// The engine does not take the request.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The engine could not go on.
    #[error("{0}")]
    Failed(String),
}

/// Whatever stands between a model file and a whole reply.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The model is not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no request.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// There is no more of the reply.
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

/// The deltas of one reply, in their order; dropping it cancels the reply.
#[derive(Debug)]
pub struct ReplyStream {
    generation: Generation,
    reply: Reply,
}

impl LoadedModel {
    /// Asks for a reply to `conversation`, with the model's own sampling.
    ///
    /// # Errors
    /// [`SessionError::Prepare`], [`SessionError::Reply`].
    pub fn ask(&self, conversation: &Conversation) -> Result<ReplyStream, SessionError> {
        Ok(self.reply(self.prepare(conversation.clone(), self.request_options(), ALWAYS)?)?)
    }

    /// Asks the engine for a reply.
    ///
    /// # Errors
    /// [`ReplyError::Submit`].
    pub fn reply(&self, prepared: Prepared) -> Result<ReplyStream, ReplyError> {
        let (generation, reply) = self.submit(prepared)?;
        Ok(ReplyStream { generation, reply })
    }

    /// The same in its two parts, for a front end with a loop of its own.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit(&self, prepared: Prepared) -> Result<(Generation, Reply), SubmitError> {
        let generation = self.engine.submit(prepared.request)?;
        Ok((generation, Reply::new(self, prepared.reply)))
    }
}

impl Iterator for ReplyStream {
    type Item = Result<Delta, ReplyError>;

    /// Waits for the next delta; `None` after the end.
    fn next(&mut self) -> Option<Self::Item> {
        let event = self.generation.next()?;
        Some(self.reply.take(event).map_err(ReplyError::Failed))
    }
}
