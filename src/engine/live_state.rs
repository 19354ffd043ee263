//! The state that slots live in: the main model's, and what a proposer keeps beside it. They are copied and replaced
//! together, so that a sequence goes on drafting where it was.
//! Knows nothing of which state is worth what.

use memory::{Memory, Slot};
use text::TokenId;

use crate::drafter::Drafter;
use crate::proposer::SequenceChange;
use crate::slot_file::SlotState;
use crate::slot_info::SlotError;

/// Both at once.
pub(crate) struct LiveState {
    pub(crate) memory: Memory,
    pub(crate) drafter: Drafter,
}

impl LiveState {
    /// Replaces a slot's state by another. What does not fit is refused before anything has changed; after an error of the
    /// device the slot holds anything.
    pub(crate) fn load(&mut self, slot: &Slot, saved: &SlotState) -> Result<(), SlotError> {
        self.memory.shape().check(&saved.state)?;
        self.load_drafts(slot, &saved.tokens, &saved.drafts)?;
        Ok(self.memory.load(slot, &saved.state)?)
    }

    /// Gives the proposer what it kept of a sequence of `tokens`; `saved` may be empty.
    pub(crate) fn load_drafts(&mut self, slot: &Slot, tokens: &[TokenId], saved: &[u8]) -> Result<(), SlotError> {
        Ok(self.drafter.change(slot.index(), SequenceChange::Load { tokens, saved })?)
    }

    /// Marks the cells of a slot, which may hold NaN or infinity.
    pub(crate) fn spoil(&mut self, slot: &Slot) {
        if let Err(error) = self.memory.spoil(slot) {
            tracing::error!(%error, slot = slot.index(), "the cells of a slot will not be cleared");
        }
    }
}
