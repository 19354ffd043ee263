//! A resting sequence on its way to the store: copied at once, or a little at a time between the steps of those that run.
//! Owns the copy that is being made. Whether it is worth one is [`SlotCache::keep`]'s to say.

use std::sync::Arc;
use std::time::Instant;

use memory::{Memory, Saving};

use super::{SlotCache, Wish};
use crate::live_state::LiveState;
use crate::slot_file::SlotState;

/// A copy that is being made of the sequence in a slot.
pub(super) struct Leaving {
    pub(super) index: usize,
    saving: Saving,
    /// The stored sequence that it has parts in common with.
    beside: Option<Arc<SlotState>>,
}

impl SlotCache {
    /// Stores some of the sequence that has to leave its slot for this request, until the given time. True when there is more to
    /// store: the request waits, and those that run go on meanwhile.
    pub(crate) fn leave_for(&mut self, state: &LiveState, wish: &Wish<'_>, until: Instant) -> bool {
        let chosen = self.choose(&state.memory, wish);
        chosen.is_some_and(|(index, own)| {
            let n_left = self.stays(wish, &state.memory, index, own);
            self.leave(state, index, n_left, until)
        })
    }

    /// Stores some of the sequence in a free slot, of which the first `n` tokens stay there, until the given time. True when there
    /// is more to store.
    pub(crate) fn leave(&mut self, state: &LiveState, index: usize, n: usize, until: Instant) -> bool {
        if !self.is_kept(index, n) {
            return false;
        }
        let Ok(mut leaving) = self.take_leaving(&state.memory, index) else { return false };
        while !leaving.saving.is_whole() {
            if state.memory.save_more(&mut leaving.saving).is_err() {
                // It is tried again, at once, when the slot is taken.
                return false;
            }
            if Instant::now() >= until {
                break;
            }
        }
        let goes_on = !leaving.saving.is_whole();
        self.leaving = Some(leaving);
        goes_on
    }

    /// True when a copy is being made, or waits for its slot to be taken.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Nobody waits for the slot any more.
    pub(crate) fn stop_leaving(&mut self) {
        self.leaving = None;
    }

    /// The copy of the sequence in a slot, as far as it is, or a new one.
    fn take_leaving(&mut self, memory: &Memory, index: usize) -> Result<Leaving, memory::Error> {
        if let Some(leaving) = self.leaving.take_if(|leaving| leaving.index == index) {
            return Ok(leaving);
        }
        let s = &self.slots[index];
        let beside = self.store.most_like(s.scope, &s.adapters, &s.tokens);
        let saving = memory.begin_saving(&s.slot, beside.as_deref().map(|other| &other.state))?;
        Ok(Leaving { index, saving, beside })
    }

    /// The whole sequence in a slot.
    pub(super) fn finish_leaving(&mut self, state: &mut LiveState, index: usize) -> Result<SlotState, memory::Error> {
        let Leaving { saving, beside, .. } = self.take_leaving(&state.memory, index)?;
        let saved = state.memory.finish_saving(saving)?;
        Ok(self.slots[index].with_state(state, saved, beside.as_deref()))
    }
}
