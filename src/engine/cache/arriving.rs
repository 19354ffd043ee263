//! A stored sequence on its way back into a slot: put there at once, or a little at a time between the steps of those that run.
//! Owns which one that is. Until it is there its slot holds nothing, and no other request gets it. Whether a sequence comes back, and
//! which, is `reuse`'s to say.

use std::sync::Arc;
use std::time::Instant;

use memory::Memory;

use super::{SlotCache, Wish};
use crate::live_state::LiveState;
use crate::sequence_arrival::{Order, Origin, SequenceArrival};
use crate::slot_file::SlotState;
use crate::slot_info::SlotError;
use crate::submission::GenerationId;

impl SlotCache {
    /// Brings some of the stored sequence that begins a request's prompt into the slot that the request will take, which has
    /// the first `own` tokens, until the given time. True when there is more to bring: the request waits, and those that run go on
    /// meanwhile.
    pub(crate) fn arrive_for(
        &mut self,
        state: &mut LiveState,
        wish: &Wish<'_>,
        (index, own): (usize, usize),
        until: Instant,
    ) -> bool {
        if self.arriving.is_none() && !self.set_out(state, wish, index, own) {
            return false;
        }
        let Some(arrival) = &mut self.arriving else { return false };
        match arrival.go_on(&mut state.memory, until) {
            Ok(is_whole) => !is_whole,
            Err(_) => {
                // It is tried again, at once, when the slot is taken.
                self.stop_arriving(state);
                false
            }
        }
    }

    /// Positions of the stored sequence that a request with this wish brings back into this slot; 0 where it brings none.
    pub(crate) fn n_arriving(&self, memory: &Memory, wish: &Wish<'_>, (index, own): (usize, usize)) -> usize {
        match &self.arriving {
            Some(arrival) => arrival.stored().tokens.len(),
            None => self.n_fetched(wish, memory, index, own),
        }
    }

    /// True for the slot that a sequence is on its way to.
    pub(crate) fn is_arriving(&self, index: usize) -> bool {
        self.arriving.as_ref().is_some_and(|arrival| arrival.index() == index)
    }

    /// The slot that a sequence is on its way to for this request.
    pub(super) fn arriving_for(&self, request: GenerationId) -> Option<usize> {
        self.arriving.as_ref().filter(|arrival| arrival.order.request == request).map(SequenceArrival::index)
    }

    /// Whoever is next is this request: what is on its way for another goes back.
    pub(crate) fn stop_arriving_but_for(&mut self, state: &mut LiveState, request: GenerationId) {
        if self.arriving_for(request).is_none() {
            self.stop_arriving(state);
        }
    }

    /// What is on its way goes back to the store, and its slot is empty. False where nothing is.
    pub(crate) fn stop_arriving(&mut self, state: &mut LiveState) -> bool {
        let Some(arrival) = self.arriving.take() else { return false };
        self.store.put(arrival.order.scope, Arc::clone(arrival.stored()));
        self.put_away(state, arrival.index());
        true
    }

    /// Takes the stored sequence that begins a request's prompt, if there is one, and begins to put it into this slot. False, and it
    /// stays in the store, where that cannot be.
    fn set_out(&mut self, state: &mut LiveState, wish: &Wish<'_>, index: usize, own: usize) -> bool {
        let Some((origin, stored, n)) = self.fetch_stored(wish, &state.memory, index, own) else { return false };
        self.keep(state, index, 0);
        let has_begun = self.begin_arriving(state, wish, index, (origin, Arc::clone(&stored), n)).is_ok();
        if !has_begun {
            self.store.put(wish.scope, stored);
        }
        has_begun
    }

    /// Begins to put a stored sequence into a slot, of which the request uses the first `n` tokens. What is in the slot goes.
    pub(super) fn begin_arriving(
        &mut self,
        state: &mut LiveState,
        wish: &Wish<'_>,
        index: usize,
        (origin, stored, n): (Origin, Arc<SlotState>, usize),
    ) -> Result<(), SlotError> {
        let beside = self.beside(wish, index, n).map(|(other, n)| (&self.slots[other].slot, n));
        let order = Order { request: wish.request, scope: wish.scope, origin, n_used: n };
        match SequenceArrival::begin(&mut state.memory, &self.slots[index].slot, stored, beside, order) {
            Ok(arrival) => {
                let s = &mut self.slots[index];
                s.empty();
                s.busy = true;
                self.arriving = Some(arrival);
                Ok(())
            }
            Err(error) => {
                self.forget(&mut state.memory, index);
                Err(error.into())
            }
        }
    }

    /// The whole sequence is in its slot, which is free then; gives how many of its tokens the request uses. `None` where
    /// none is on its way.
    pub(super) fn finish_arriving(&mut self, state: &mut LiveState) -> Result<Option<usize>, SlotError> {
        let Some(arrival) = self.arriving.take() else { return Ok(None) };
        let (index, Order { origin, n_used, .. }) = (arrival.index(), arrival.order);
        self.slots[index].busy = false;
        match arrival.finish(state, &self.slots[index].slot) {
            Ok(stored) => self.replace(index, &stored),
            Err(error) => {
                self.forget(&mut state.memory, index);
                return Err(error);
            }
        }
        let counted = match origin {
            Origin::Host => &mut self.reused.n_stored,
            Origin::Disk => &mut self.reused.n_disk,
        };
        *counted += n_used as u64;
        Ok(Some(n_used))
    }
}
