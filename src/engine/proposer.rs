//! What drafts tokens ahead of the main model, as the engine sees it.
//! The engine asks for drafts, computes them together with the next token, and accepts what the model itself would have
//! said: whatever a proposer proposes, generations do not change.

use std::time::Duration;

use memory::{Memory, OwnedView, Slot};
use model::{AdapterSet, Pictures, RunError, Runner, Stats};
use text::TokenId;

use crate::sample::GumbelPlan;

/// What the engine has to know of a proposer.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProposerInfo {
    /// The longest draft that it makes: the state keeps as many snapshots, and one more.
    pub max_depth: usize,
    /// True when the hidden states of [`ObservedSequence`] are to be filled.
    pub wants_hidden: bool,
    /// Of these, how many of a sequence's last tokens it needs to go on from it; 0 counts as 1.
    pub n_hidden: usize,
    /// Bytes that [`Proposer::save`] gives at most.
    pub max_saved_bytes: usize,
    /// Bytes of its own state of sequences if all of them fill the context.
    pub state_bytes: usize,
    /// Engine steps after which a warm-up knows what drafts cost, whatever the batch size; 0 where it has nothing to learn.
    pub warm_up_steps: usize,
    /// What it has computed with other runners than the engine's. This alone changes.
    pub computed: Stats,
}

/// What happens to a sequence other than by an engine step.
#[derive(Clone, Copy, Debug)]
pub enum SequenceChange<'a> {
    /// The sequence stands after `tokens`, whose state has been kept, the proposer's own included.
    Begin {
        /// All tokens of the sequence.
        tokens: &'a [TokenId],
        /// What the sequence is computed with from here on.
        adapters: &'a AdapterSet,
        /// The hidden states of the last ones, `[n_embd]` each, up to [`ProposerInfo::n_hidden`]; empty where that of the
        /// last one is not known. The next observation will have them, too.
        hidden: &'a [f32],
        /// The sequence's pictures, those among later tokens of the prompt included.
        pictures: &'a Pictures,
    },
    /// The slot was given the state of a sequence that was computed elsewhere: the proposer takes up what
    /// [`Proposer::save`] gave for it, and nothing of bytes that another kind of proposer gave, or of none.
    /// [`SequenceChange::Begin`] follows before the sequence is used.
    Load {
        /// All tokens of the sequence.
        tokens: &'a [TokenId],
        /// What was saved with it.
        saved: &'a [u8],
    },
    /// The slot was given the first tokens of the sequence of another slot, which may be in use: the proposer takes up what it
    /// keeps of them there, or nothing. [`SequenceChange::Begin`] follows before the sequence is used.
    Copy {
        /// The other slot.
        from: usize,
        /// Tokens of its sequence.
        n_tokens: usize,
    },
    /// The sequence ended badly, or had to leave the slot: nothing that is kept of it may be used again, its numbers may be
    /// NaN, and the memory that it took is given back.
    Forget,
}

/// What an engine step did to one sequence.
#[derive(Clone, Copy, Debug)]
pub struct ObservedSequence<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// Tokens that the step added to the state.
    pub tokens: &'a [TokenId],
    /// Their hidden states as MTP layers take them, `[n_embd]` each; empty unless [`ProposerInfo::wants_hidden`].
    pub hidden: &'a [f32],
    /// The hidden states of the tokens before these, the last one's at the end, up to [`ProposerInfo::n_hidden`]; empty where
    /// that is not known.
    pub hidden_before: &'a [f32],
    /// The token sampled after the last of them; `None` inside a prompt and at the end of a generation.
    pub next: Option<TokenId>,
    /// Draft tokens that the step verified.
    pub n_drafted: usize,
    /// Draft tokens that it accepted.
    pub n_accepted: usize,
}

/// What an engine step did to all of its sequences.
#[derive(Clone, Copy, Debug)]
pub struct ObservedStep<'a> {
    /// One for each sequence of the step that goes on.
    pub sequences: &'a [ObservedSequence<'a>],
    /// The time since drafts were asked for, if the step held nothing but generations of one token and a draft, and no
    /// graph had to be built.
    pub took: Option<Duration>,
    /// The graphs that such a step had to build, where it did and they take time: not on a CPU.
    pub built: Option<Built>,
    /// The drafts that will probably be asked for next: whoever drafts beside the engine may begin.
    pub expected: &'a [DraftRequest],
    /// The sequences belong to a warm-up: nothing is remembered of them but what the step cost.
    pub warm_up: bool,
}

/// What a step built before it was computed.
#[derive(Clone, Copy, Debug)]
pub struct Built {
    /// Graphs.
    pub n_graphs: u64,
    /// The time of the whole step.
    pub took: Duration,
}

/// A request for a draft.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftRequest {
    /// The sequence's slot.
    pub slot: usize,
    /// Tokens at most, at least 1.
    pub max: usize,
    /// How the next tokens will be sampled; `None` where the likeliest are the best draft.
    pub gumbel: Option<GumbelPlan>,
    /// The draft ends before the first token that the MTP layer finds less probable than this; 0 ends none.
    pub p_min: f32,
    /// The sequence belongs to a warm-up: lengths are tried one after the other, the unknown ones first.
    pub warm_up: bool,
}

/// The main model's state between forward passes, for proposers that read it.
#[derive(Clone, Copy)]
pub struct TargetState<'a> {
    memory: &'a Memory,
    slots: &'a dyn Fn(usize) -> &'a Slot,
}

impl<'a> TargetState<'a> {
    /// `slots` gives the slot of the memory for a sequence's slot.
    pub(crate) fn new(memory: &'a Memory, slots: &'a dyn Fn(usize) -> &'a Slot) -> Self {
        Self { memory, slots }
    }

    /// What stands after the last token of each of these slots' sequences, in ascending order ([`Memory::ends`]).
    ///
    /// # Errors
    /// As [`Memory::ends`].
    pub fn ends(&self, slots: &[usize]) -> Result<OwnedView<'a>, RunError> {
        let slots: Vec<&Slot> = slots.iter().map(|&slot| (self.slots)(slot)).collect();
        Ok(self.memory.ends(&slots)?)
    }
}

/// Why a proposer has not followed a change of a sequence.
#[derive(Debug, thiserror::Error)]
pub enum SavedDraftError {
    /// The saved bytes are not sound; the proposer is what it was.
    #[error("its part for drafts: {0}")]
    Refused(String),
    /// The proposer's own state could not be brought there.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Drafts tokens. One for all sequences of an engine, used by its thread only. An engine that gets a [`RunError`] from a
/// proposer goes on without it.
pub trait Proposer: Send {
    /// What the engine has to know of it. Asked for in every engine step, so it is to be cheap.
    fn info(&self) -> ProposerInfo;

    /// The sequence of `slot` changes.
    ///
    /// # Errors
    /// [`SavedDraftError::Refused`], and nothing has changed: saved bytes that are not whole, or not those of these tokens.
    /// [`SavedDraftError::Run`]: the proposer's own state could not be brought there.
    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        let _ = (slot, change);
        Ok(())
    }

    /// Learns what an engine step did. Events are handed out and requests taken before the next drafts are asked for.
    ///
    /// # Errors
    /// The proposer could not compute what it needs.
    fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        let _ = (runner, step);
        Ok(())
    }

    /// A draft for each of `requests`, which are in ascending order of their slots; it may be empty.
    ///
    /// # Errors
    /// As [`Proposer::observe`].
    fn propose(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError>;

    /// What the proposer keeps of `slot` beside the model's state, for the first `n_tokens` of its sequence, as bytes;
    /// empty where it keeps nothing that tokens do not tell. The slot may be in use.
    ///
    /// # Errors
    /// Its state could not be copied.
    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        let _ = (slot, n_tokens);
        Ok(Vec::new())
    }
}
