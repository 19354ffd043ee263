//! Slots as a program sees them from outside: what they hold, and their state as bytes to be kept.
//! Plain data and its byte form. Knows nothing of files.

use memory::SavedSequence;
use text::TokenId;

/// One slot at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotInfo {
    /// Its number.
    pub index: usize,
    /// Tokens behind its state.
    pub n_tokens: usize,
    /// What it does, if anything.
    pub work: Option<SlotWork>,
}

/// A request that a slot serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotWork {
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

/// The state of a slot with the tokens behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedSlot {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) hidden: Vec<f32>,
    pub(crate) state: SavedSequence,
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
    /// Bytes that are no saved slot.
    #[error("{0}")]
    Format(String),
    /// The engine's thread is gone.
    #[error("the engine has stopped")]
    Stopped,
}

impl SavedSlot {
    /// Tokens behind the state.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// One run of bytes, to be read by [`SavedSlot::from_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.state.n_bytes() + 4 * (self.tokens.len() + self.hidden.len()) + 64);
        out.extend_from_slice(MAGIC);
        for n in [self.tokens.len(), self.hidden.len()] {
            out.extend_from_slice(&(n as u64).to_le_bytes());
        }
        self.tokens.iter().for_each(|id| out.extend_from_slice(&id.0.to_le_bytes()));
        self.hidden.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes()));
        self.state.write_to(&mut out);
        out
    }

    /// Reads what [`SavedSlot::to_bytes`] wrote. Whether the state fits an engine is found when it is loaded.
    ///
    /// # Errors
    /// [`SlotError::Format`]: something else, or not whole.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SlotError> {
        let wrong = |what: &str| SlotError::Format(format!("this is no saved slot: {what}"));
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| wrong("it begins otherwise"))?;
        let cut = || wrong("it is cut off");
        let (n_tokens, rest) = number(rest).ok_or_else(cut)?;
        let (n_hidden, rest) = number(rest).ok_or_else(cut)?;
        let (tokens, rest) = words(rest, n_tokens).ok_or_else(cut)?;
        let (hidden, rest) = words(rest, n_hidden).ok_or_else(cut)?;
        let state = SavedSequence::from_bytes(rest)?;
        if state.len() != n_tokens {
            return Err(wrong(&format!("{n_tokens} tokens and a state of {} positions", state.len())));
        }
        Ok(Self {
            tokens: tokens.iter().map(|&w| TokenId(u32::from_le_bytes(w))).collect(),
            hidden: hidden.iter().map(|&w| f32::from_le_bytes(w)).collect(),
            state,
        })
    }
}

fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (n, rest) = bytes.split_first_chunk::<8>()?;
    Some((usize::try_from(u64::from_le_bytes(*n)).ok()?, rest))
}

fn words(bytes: &[u8], n: usize) -> Option<(&[[u8; 4]], &[u8])> {
    let (words, rest) = bytes.split_at_checked(n.checked_mul(4)?)?;
    Some((words.as_chunks::<4>().0, rest))
}

const MAGIC: &[u8; 8] = b"NXTSLOT1";
