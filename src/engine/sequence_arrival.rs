//! A stored sequence that is put into a slot a little at a time.
//! Owns how far it is, and which request it is for. Knows nothing of what else is stored, or in other slots.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use memory::{Loading, Memory, SavedSequence, Slot};

use crate::live_state::LiveState;
use crate::request::Scope;
use crate::slot_file::SlotState;
use crate::slot_info::SlotError;
use crate::submission::GenerationId;

/// A sequence of which some is in its slot.
pub(crate) struct SequenceArrival {
    pub(crate) order: Order,
    index: usize,
    loading: Loading<Stored>,
}

/// What a request wants of what is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) request: GenerationId,
    pub(crate) scope: Scope,
    pub(crate) origin: Origin,
    /// Tokens at the sequence's beginning that it will use.
    pub(crate) n_used: usize,
}

/// Where a sequence was stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    Host,
    Disk,
}

/// A stored sequence whose state is what the memory takes.
struct Stored(Arc<SlotState>);

impl Deref for Stored {
    type Target = SavedSequence;

    fn deref(&self) -> &SavedSequence {
        &self.0.state
    }
}

impl SequenceArrival {
    /// Begins to replace what is in this slot. `beside`: another slot that holds the same first tokens, and how many.
    ///
    /// # Errors
    /// The sequence does not fit, and nothing has changed; or the device failed.
    pub(crate) fn begin(
        memory: &mut Memory,
        slot: &Slot,
        stored: Arc<SlotState>,
        beside: Option<(&Slot, usize)>,
        order: Order,
    ) -> Result<Self, memory::Error> {
        let loading = memory.begin_loading(slot, Stored(stored), beside)?;
        Ok(Self { order, index: slot.index(), loading })
    }

    /// The slot's number.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Writes a part, and more until the given time; true when that was all.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn go_on(&mut self, memory: &mut Memory, until: Instant) -> Result<bool, memory::Error> {
        while !self.loading.is_whole() {
            memory.load_more(&mut self.loading)?;
            if Instant::now() >= until {
                break;
            }
        }
        Ok(self.loading.is_whole())
    }

    /// Writes what is left, and gives the proposer what it kept of the sequence. Gives the sequence.
    ///
    /// # Errors
    /// As [`SequenceArrival::go_on`]; or the proposer is given nothing either.
    pub(crate) fn finish(self, state: &mut LiveState, slot: &Slot) -> Result<Arc<SlotState>, SlotError> {
        let Stored(stored) = state.memory.finish_loading(self.loading)?;
        state.load_drafts(slot, &stored.tokens, &stored.drafts).or_else(|error| match error {
            // The generation does not depend on them.
            SlotError::Drafts(_) => state.load_drafts(slot, &stored.tokens, &[]),
            error => Err(error),
        })?;
        Ok(stored)
    }

    /// The sequence, which does not come.
    pub(crate) fn stored(&self) -> &Arc<SlotState> {
        &self.loading.saved().0
    }
}
