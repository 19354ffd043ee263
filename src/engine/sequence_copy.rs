//! A copy of the sequence in a slot that is made a little at a time.
//! Owns how far it is. Knows nothing of who wants it.

use std::sync::Arc;
use std::time::Instant;

use memory::{Memory, SavedSequence, Saving, Slot};

use crate::slot_file::SlotState;

/// What is copied so far.
pub(crate) struct SequenceCopy {
    index: usize,
    saving: Saving,
    /// The stored sequence that it has parts in common with.
    beside: Option<Arc<SlotState>>,
}

impl SequenceCopy {
    /// Begins with the sequence in this slot. What is the same in `beside` it has in common with it.
    ///
    /// # Errors
    /// The state of the sequence is lost.
    pub(crate) fn begin(memory: &Memory, slot: &Slot, beside: Option<Arc<SlotState>>) -> Result<Self, memory::Error> {
        let saving = memory.begin_saving(slot, beside.as_deref().map(|other| &other.state))?;
        Ok(Self { index: slot.index(), saving, beside })
    }

    /// True for a copy of what is in this slot.
    pub(crate) fn is_of(&self, index: usize) -> bool {
        self.index == index
    }

    /// Copies a part, and more until the given time; true when that was all.
    ///
    /// # Errors
    /// The sequence has changed, or its device failed.
    pub(crate) fn go_on(&mut self, memory: &Memory, until: Instant) -> Result<bool, memory::Error> {
        while !self.saving.is_whole() {
            memory.save_more(&mut self.saving)?;
            if Instant::now() >= until {
                break;
            }
        }
        Ok(self.saving.is_whole())
    }

    /// Copies what is left. Gives the sequence, and the stored one beside it.
    ///
    /// # Errors
    /// As [`SequenceCopy::go_on`].
    pub(crate) fn finish(self, memory: &Memory) -> Result<(SavedSequence, Option<Arc<SlotState>>), memory::Error> {
        Ok((memory.finish_saving(self.saving)?, self.beside))
    }
}
