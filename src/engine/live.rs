//! The state that slots live in: the model's, and what a proposer keeps beside it. They are copied and replaced together,
//! so that a sequence goes on drafting where it was.
//! Owns nothing. Knows nothing of which state is worth what.

use memory::{Memory, Slot};
use text::TokenId;

use crate::cache::CachedSlot;
use crate::proposer::{Proposer, SavedDraftError, stop_drafting};
use crate::saved::SlotState;
use crate::slots::SlotError;

/// Both at once.
pub(crate) struct Live<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) proposer: &'a mut Option<Box<dyn Proposer>>,
}

impl Live<'_> {
    /// What the proposer keeps of the first `n_tokens` of a slot. Should that fail, drafting ends, and nothing else.
    pub(crate) fn drafts(&mut self, slot: &Slot, n_tokens: usize) -> Vec<u8> {
        let Some(proposer) = self.proposer else { return Vec::new() };
        proposer.save(slot.index(), n_tokens).unwrap_or_else(|error| {
            stop_drafting(self.proposer, &error);
            Vec::new()
        })
    }

    /// The hidden row of the last token of a slot, in use or not; empty where it is not known.
    pub(crate) fn hidden(&self, s: &CachedSlot) -> Vec<f32> {
        match s.kept_hidden() {
            Some(hidden) => hidden.to_vec(),
            None => {
                let hidden = self.proposer.as_ref().and_then(|p| p.hidden(s.slot.index()));
                hidden.unwrap_or_default().to_vec()
            }
        }
    }

    /// Replaces a slot's state by another. What does not fit is refused before anything has changed; after an error of the
    /// device the slot holds anything.
    pub(crate) fn load(&mut self, slot: &Slot, saved: &SlotState) -> Result<(), SlotError> {
        self.memory.shape().check(&saved.state)?;
        self.load_drafts(slot, &saved.tokens, &saved.drafts)?;
        Ok(self.memory.load(slot, &saved.state)?)
    }

    /// Gives the proposer what it kept of a sequence of `tokens`; `drafts` may be empty.
    pub(crate) fn load_drafts(&mut self, slot: &Slot, tokens: &[TokenId], drafts: &[u8]) -> Result<(), SlotError> {
        let Some(proposer) = self.proposer else { return Ok(()) };
        match proposer.load(slot.index(), tokens, drafts) {
            Err(SavedDraftError::Run(error)) => stop_drafting(self.proposer, &error),
            loaded => loaded?,
        }
        Ok(())
    }
}
