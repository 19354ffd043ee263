//! Slots as a program sees them from outside: what they hold and do, and why they cannot be saved or loaded.
//! Plain data.

use crate::proposer::SavedDraftError;
use crate::request::RequestOptions;

/// One slot at one moment.
#[derive(Clone, Debug, Default)]
pub struct SlotInfo {
    /// Its number.
    pub index: usize,
    /// Tokens behind its state.
    pub n_tokens: usize,
    /// What it does, if anything.
    pub work: Option<SlotWork>,
}

/// A request that a slot serves.
#[derive(Clone, Debug, Default)]
pub struct SlotWork {
    /// The number of the request; no two of a process have the same.
    pub id: u64,
    /// What was asked for.
    pub options: Box<RequestOptions>,
    /// What was generated has a line break.
    pub has_new_line: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, in the state.
    pub prompt_done: usize,
    /// Of those, taken from cached state.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Most tokens to generate.
    pub max_tokens: usize,
}

/// Why a slot cannot be saved, loaded or cleared.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// There is no such slot.
    #[error("slot {index} does not exist: there are {n_slots}, from 0")]
    Unknown {
        /// The number asked for.
        index: usize,
        /// Slots of the engine.
        n_slots: usize,
    },
    /// A request runs there.
    #[error("slot {index} is serving a request: try again when it is done")]
    Busy {
        /// Its number.
        index: usize,
    },
    /// Its state belongs to another scope.
    #[error("slot {index} holds the state of another scope: save it with the key that it belongs to")]
    OtherScope {
        /// Its number.
        index: usize,
    },
    /// The state does not fit this engine, or could not be copied.
    #[error(transparent)]
    State(#[from] memory::Error),
    /// The state fits, but what was kept of it for drafts does not.
    #[error(transparent)]
    Drafts(#[from] SavedDraftError),
    /// Bytes that are no saved slot, or none of this engine.
    #[error("this saved slot cannot be loaded: {0}")]
    Format(String),
    /// The engine's thread is gone.
    #[error("the engine has stopped")]
    Stopped,
}
