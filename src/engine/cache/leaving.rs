//! A resting sequence on its way to the store: copied at once, or a little at a time between the steps of those that run.
//! Owns which copy is being made. Whether it is worth one is [`SlotCache::keep`]'s to say.

use std::time::Instant;

use memory::Memory;

use super::{SlotCache, Wish};
use crate::live_state::LiveState;
use crate::sequence_copy::SequenceCopy;
use crate::slot_file::SlotState;

impl SlotCache {
    /// Stores some of the sequence in this slot, which a request takes that finds the first `own` tokens of its prompt there, until
    /// the given time. True when there is more to store: the request waits, and those that run go on meanwhile.
    pub(crate) fn leave_for(
        &mut self,
        state: &LiveState,
        wish: &Wish<'_>,
        (index, own): (usize, usize),
        until: Instant,
    ) -> bool {
        // Where the request's beginning comes from is looked for only if it matters.
        if !self.is_kept(index, 0) {
            return false;
        }
        let n_left = self.stays(wish, &state.memory, index, own);
        self.leave(state, index, n_left, until)
    }

    /// Stores some of the sequence in a free slot, of which the first `n` tokens stay there, until the given time. True when there
    /// is more to store.
    pub(crate) fn leave(&mut self, state: &LiveState, index: usize, n: usize, until: Instant) -> bool {
        if !self.is_kept(index, n) {
            return false;
        }
        let Ok(mut copy) = self.take_copy(&state.memory, index) else { return false };
        // After an error it is tried again, at once, when the slot is taken.
        let Ok(is_whole) = copy.go_on(&state.memory, until) else { return false };
        self.leaving = Some(copy);
        !is_whole
    }

    /// True when a copy is being made, or waits for its slot to be taken.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Nobody waits for the slot any more.
    pub(crate) fn stop_leaving(&mut self) {
        self.leaving = None;
    }

    /// The whole sequence in a slot.
    pub(super) fn finish_leaving(&mut self, state: &mut LiveState, index: usize) -> Result<SlotState, memory::Error> {
        let (saved, beside) = self.take_copy(&state.memory, index)?.finish(&state.memory)?;
        Ok(self.slots[index].with_state(state, saved, beside.as_deref()))
    }

    /// The copy of the sequence in a slot, as far as it is, or a new one.
    fn take_copy(&mut self, memory: &Memory, index: usize) -> Result<SequenceCopy, memory::Error> {
        let s = &self.slots[index];
        match self.leaving.take_if(|copy| copy.is_of(index)) {
            Some(copy) => Ok(copy),
            None => SequenceCopy::begin(memory, &s.slot, self.store.most_like(s.scope, &s.adapters, &s.tokens)),
        }
    }
}
