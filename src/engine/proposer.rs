//! What drafts tokens ahead of the model, as the engine sees it.
//! The engine asks, computes the drafts together with the next token, and keeps what the model itself would have said:
//! whatever a proposer proposes, answers do not change.

use std::time::Duration;

use model::{RunError, Runner, Stats};
use text::TokenId;

use crate::sample::Ahead;

/// What a step kept of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// Tokens that the step added to the state.
    pub tokens: &'a [TokenId],
    /// Their hidden rows, `[n_embd]` each; empty unless [`Proposer::wants_hidden`].
    pub hidden: &'a [f32],
    /// The token picked after the last of them; `None` inside a prompt and at the end of an answer.
    pub next: Option<TokenId>,
    /// Drafts that the step judged.
    pub n_drafted: usize,
    /// Drafts that it kept.
    pub n_accepted: usize,
}

/// A request for drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ask {
    /// The sequence's slot.
    pub slot: usize,
    /// Tokens at most, at least 1.
    pub max: usize,
    /// How the next tokens will be picked; `None` where the likeliest are the best guess.
    pub ahead: Option<Ahead>,
    /// The draft ends before the first token that a head finds less probable than this; 0 ends none.
    pub p_min: f32,
}

/// Why a proposer has not taken up what it saved.
#[derive(Debug, thiserror::Error)]
pub enum SavedDraftError {
    /// The bytes are not sound; the proposer is what it was.
    #[error("its part for drafts: {0}")]
    Refused(String),
    /// The proposer's own state could not be brought there.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Drafts tokens. One for all sequences of an engine, used by its thread only.
pub trait Proposer: Send {
    /// The longest draft that it makes: the state keeps as many snapshots, and one more.
    fn max_depth(&self) -> usize;

    /// True when [`Observed::hidden`] is to be filled.
    fn wants_hidden(&self) -> bool {
        false
    }

    /// The sequence of `slot` now stands after `tokens`, of which the state and the proposer's own have been kept;
    /// `hidden` is the last one's hidden row where it is known.
    ///
    /// # Errors
    /// The proposer's own state could not be brought there.
    fn begin(&mut self, slot: usize, tokens: &[TokenId], hidden: Option<&[f32]>) -> Result<(), RunError> {
        let _ = (slot, tokens, hidden);
        Ok(())
    }

    /// The sequence of `slot` ended badly: nothing that is kept of it may be used again, and its numbers may be NaN.
    ///
    /// # Errors
    /// The proposer's own state could not be cleared.
    fn forget(&mut self, slot: usize) -> Result<(), RunError> {
        let _ = slot;
        Ok(())
    }

    /// The hidden row of the last token of `slot`, to be kept with a checkpoint.
    fn hidden(&self, slot: usize) -> Option<&[f32]> {
        let _ = slot;
        None
    }

    /// What the proposer keeps of `slot` beside the model's state, for the first `n_tokens` of its sequence, as bytes; empty
    /// where it keeps nothing that tokens do not tell. The slot may be in use.
    ///
    /// # Errors
    /// Its state could not be copied.
    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        let _ = (slot, n_tokens);
        Ok(Vec::new())
    }

    /// Bytes that [`Proposer::save`] gives at most.
    fn max_saved_bytes(&self) -> usize {
        0
    }

    /// `slot` was given the state of a sequence of `tokens` that was computed elsewhere: takes up what [`Proposer::save`]
    /// gave for them, and of bytes that another kind of proposer gave, or of none, nothing. [`Proposer::begin`] follows.
    ///
    /// # Errors
    /// [`SavedDraftError::Refused`], and nothing has changed: bytes that are not whole, or not those of these tokens.
    fn load(&mut self, slot: usize, tokens: &[TokenId], saved: &[u8]) -> Result<(), SavedDraftError> {
        let _ = (tokens, saved);
        Ok(self.begin(slot, &[], None)?)
    }

    /// A step was kept. `took` is the time since drafts were asked for, when the step held nothing but these answers and
    /// their drafts, and no graph had to be built.
    ///
    /// # Errors
    /// The proposer could not compute what it needs; it may propose nothing for these sequences from now on.
    fn observe(
        &mut self,
        runner: &mut Runner,
        observed: &[Observed<'_>],
        took: Option<Duration>,
    ) -> Result<(), RunError> {
        let _ = (runner, observed, took);
        Ok(())
    }

    /// All of a step has been observed, and these asks will probably come before the next one: whoever drafts beside the
    /// engine may begin. Events are handed out and requests taken meanwhile.
    ///
    /// # Errors
    /// As [`Proposer::observe`].
    fn expect(&mut self, asks: &[Ask]) -> Result<(), RunError> {
        let _ = asks;
        Ok(())
    }

    /// Drafts for each of `asks`, which are in ascending order of their slots; an empty draft is an answer.
    ///
    /// # Errors
    /// As [`Proposer::observe`].
    fn propose(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError>;

    /// The tokens to come are a rehearsal with so many answers, until it is told `None`: depths are tried one after the other,
    /// and nothing is remembered but what cycles cost. Gives the number of cycles that this takes; 0 if there is nothing to
    /// rehearse.
    fn rehearse(&mut self, n_answers: Option<usize>) -> usize {
        let _ = n_answers;
        0
    }

    /// What it has computed by other runners than the engine's.
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// Goes on without drafts: answers are the same, only slower.
pub(crate) fn stop_drafting(proposer: &mut Option<Box<dyn Proposer>>, error: &RunError) {
    tracing::error!(%error, "drafting failed: going on without speculation");
    *proposer = None;
}

impl<P: Proposer + ?Sized> Proposer for Box<P> {
    fn max_depth(&self) -> usize {
        (**self).max_depth()
    }

    fn wants_hidden(&self) -> bool {
        (**self).wants_hidden()
    }

    fn begin(&mut self, slot: usize, tokens: &[TokenId], hidden: Option<&[f32]>) -> Result<(), RunError> {
        (**self).begin(slot, tokens, hidden)
    }

    fn forget(&mut self, slot: usize) -> Result<(), RunError> {
        (**self).forget(slot)
    }

    fn hidden(&self, slot: usize) -> Option<&[f32]> {
        (**self).hidden(slot)
    }

    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        (**self).save(slot, n_tokens)
    }

    fn max_saved_bytes(&self) -> usize {
        (**self).max_saved_bytes()
    }

    fn load(&mut self, slot: usize, tokens: &[TokenId], saved: &[u8]) -> Result<(), SavedDraftError> {
        (**self).load(slot, tokens, saved)
    }

    fn observe(&mut self, runner: &mut Runner, seen: &[Observed<'_>], took: Option<Duration>) -> Result<(), RunError> {
        (**self).observe(runner, seen, took)
    }

    fn expect(&mut self, asks: &[Ask]) -> Result<(), RunError> {
        (**self).expect(asks)
    }

    fn propose(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        (**self).propose(runner, asks)
    }

    fn rehearse(&mut self, n_answers: Option<usize>) -> usize {
        (**self).rehearse(n_answers)
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }
}
