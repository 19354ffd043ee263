//! Sequence state that outlives its request, so that the next one with the same beginning need not compute it again.
//! Owns the slots of the memory. Knows tokens and checkpoints; knows nothing of requests.
//!
//! Recurrent state cannot be cut, so a slot can be taken up where its tokens end, or at a checkpoint taken on the way: at
//! the borders of messages, where the next turn of a conversation parts from this one.

use std::cmp::Reverse;
use std::sync::Arc;

use memory::{Memory, Slot};
use text::TokenId;

use crate::live::Live;
use crate::request::Scope;
use crate::saved::{Kept, SlotState};
use crate::slots::{SlotError, SlotInfo};
use crate::store::Store;

/// Tokens whose loss is worth a copy of the state.
const MIN_LOSS: usize = 16;

/// Checkpoints kept for one slot at most.
pub(crate) const MAX_CHECKPOINTS: usize = 8;

/// A slot with what its state holds.
pub(crate) struct CachedSlot {
    pub(crate) slot: Slot,
    /// The tokens behind the state, in order.
    pub(crate) tokens: Vec<TokenId>,
    /// Whose they are: requests of other scopes take up none of this.
    scope: Scope,
    /// Ascending.
    checkpoints: Vec<Arc<Kept>>,
    /// The hidden row of the last token, as far as it is known.
    hidden: Vec<f32>,
    busy: bool,
    last_used: u64,
}

impl CachedSlot {
    /// Tokens that the next turn of its conversation is likely to save: up to the last border. What was generated after
    /// it often changes (thinking is dropped).
    fn worth(&self) -> usize {
        self.checkpoints.last().map_or(self.tokens.len(), |c| c.state.position())
    }

    /// Everything of it.
    fn copy(&self, live: &mut Live<'_>) -> Result<SlotState, memory::Error> {
        Ok(SlotState {
            tokens: self.tokens.clone(),
            checkpoints: self.checkpoints.clone(),
            hidden: self.hidden.clone(),
            state: live.memory.save(&self.slot)?,
            drafts: live.drafts(&self.slot, self.tokens.len()),
        })
    }

    /// The state is another now.
    fn replace(&mut self, by: SlotState) {
        (self.tokens, self.checkpoints, self.hidden) = (by.tokens, by.checkpoints, by.hidden);
    }
}

/// All slots of a memory.
pub(crate) struct SlotCache {
    slots: Vec<CachedSlot>,
    recurrent: bool,
    /// Sequences that were here before.
    store: Store,
    /// Bytes of checkpoints for one slot.
    budget: usize,
    clock: u64,
}

impl SlotCache {
    /// Takes every slot of `memory`.
    pub(crate) fn new(memory: &mut Memory, checkpoint_bytes: usize, store_bytes: usize) -> Result<Self, memory::Error> {
        let mut slots = Vec::new();
        while let Some(slot) = memory.acquire()? {
            let (tokens, checkpoints, hidden) = (Vec::new(), Vec::new(), Vec::new());
            let scope = Scope::default();
            slots.push(CachedSlot { slot, tokens, scope, checkpoints, hidden, busy: false, last_used: 0 });
        }
        let budget = checkpoint_bytes / slots.len().max(1);
        let recurrent = memory.layout().is_recurrent();
        Ok(Self { slots, recurrent, store: Store::new(store_bytes), budget, clock: 0 })
    }

    pub(crate) fn get(&self, index: usize) -> &CachedSlot {
        &self.slots[index]
    }

    /// True when a request can be given a slot.
    pub(crate) fn has_free(&self) -> bool {
        self.slots.iter().any(|s| !s.busy)
    }

    /// Takes a free slot and brings its state to a beginning of the prompt: the `wanted` one, else the one that saves
    /// most, counting against it what is lost to its own conversation, else the one unused for longest. So a short common
    /// beginning does not cost a long conversation its state while another slot would do. Gives the slot's index and the number of tokens that
    /// need no computing; at least the last token is left to compute. `None` when all slots are busy. A stored sequence
    /// that saves more comes back first, and one that would be lost is stored. State of another scope saves nothing.
    pub(crate) fn take(
        &mut self,
        live: &mut Live<'_>,
        prompt: &[TokenId],
        reuse: bool,
        wanted: Option<usize>,
        scope: Scope,
    ) -> Result<Option<(usize, usize)>, SlotError> {
        let own = |of: Scope| reuse && of == scope;
        let usable = |s: &CachedSlot| if own(s.scope) { self.usable(&s.tokens, &s.checkpoints, prompt) } else { 0 };
        let free = self.slots.iter().enumerate().filter(|(_, s)| !s.busy);
        let weighed = free.map(|(index, s)| {
            let n = usable(s);
            let lost = s.worth().saturating_sub(n);
            (wanted == Some(index), n.saturating_sub(lost), Reverse(s.last_used), index, n)
        });
        let Some((.., index, n)) = weighed.max() else { return Ok(None) };
        let best = |of: Scope, s: &SlotState| if own(of) { self.usable(&s.tokens, &s.checkpoints, prompt) } else { 0 };
        let stored = self.store.best(best).filter(|&(_, there)| there > n);
        let n = stored.map_or(n, |(_, there)| there);
        // Taken out first, so that storing what was in the slot cannot push it out.
        let stored = stored.map(|(i, _)| self.store.take(i));
        self.keep(live, index, if stored.is_some() { 0 } else { n });
        if let Some(stored) = stored {
            self.bring_back(live, index, stored)?;
        }
        self.clock += 1;
        let s = &mut self.slots[index];
        s.last_used = self.clock;
        rewind(live.memory, s, n, self.recurrent)?;
        s.scope = scope;
        s.busy = true;
        Ok(Some((index, n)))
    }

    /// Stores a slot's sequence before its state goes back to its first `n` tokens, if much would be lost.
    fn keep(&mut self, live: &mut Live<'_>, index: usize, n: usize) {
        if !self.store.is_on() || self.slots[index].worth() < n + MIN_LOSS {
            return;
        }
        match self.slots[index].copy(live) {
            Ok(state) => self.store.put(self.slots[index].scope, state),
            Err(error) => tracing::warn!(%error, "a sequence was not stored: its next turn computes more"),
        }
    }

    /// Puts a stored sequence into a slot.
    fn bring_back(&mut self, live: &mut Live<'_>, index: usize, stored: SlotState) -> Result<(), SlotError> {
        if let Err(error) = live.load(&self.slots[index].slot, &stored) {
            self.forget(live.memory, index);
            return Err(error);
        }
        self.slots[index].replace(stored);
        Ok(())
    }

    /// Bytes of stored sequences.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.store.n_bytes()
    }

    /// Tokens at the beginning of `prompt` that a state of these tokens can be brought to.
    fn usable(&self, tokens: &[TokenId], checkpoints: &[Arc<Kept>], prompt: &[TokenId]) -> usize {
        let common = tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let most = common.min(prompt.len() - 1);
        if !self.recurrent || most == tokens.len() {
            return most;
        }
        checkpoints.iter().map(|c| c.state.position()).filter(|&p| p <= most).max().unwrap_or(0)
    }

    /// The state of `index` now holds these tokens more.
    pub(crate) fn extend(&mut self, index: usize, tokens: &[TokenId]) {
        self.slots[index].tokens.extend_from_slice(tokens);
    }

    /// Keeps a checkpoint of the state as it is, within the budget; the oldest but the first makes room.
    /// `hidden`: the hidden row of the last token, as far as it is known.
    pub(crate) fn checkpoint(
        &mut self,
        memory: &Memory,
        index: usize,
        hidden: Option<&[f32]>,
    ) -> Result<(), memory::Error> {
        let s = &mut self.slots[index];
        let position = s.tokens.len();
        let none = position == 0 || self.recurrent && self.budget == 0;
        if none || s.checkpoints.iter().any(|c| c.state.position() == position) {
            return Ok(());
        }
        // Without recurrent layers it has no bytes, and only tells where a border is.
        let checkpoint = memory.checkpoint(&s.slot)?;
        let room = self.budget.checked_div(checkpoint.n_bytes()).unwrap_or(MAX_CHECKPOINTS);
        if room == 0 {
            return Ok(());
        }
        while s.checkpoints.len() >= room.min(MAX_CHECKPOINTS) {
            // The first is most often the end of the system text, which many conversations share.
            let oldest = usize::from(s.checkpoints.len() > 1);
            s.checkpoints.remove(oldest);
        }
        s.checkpoints.push(Arc::new(Kept { state: checkpoint, hidden: hidden.unwrap_or_default().to_vec() }));
        Ok(())
    }

    /// What all slots hold.
    pub(crate) fn infos(&self) -> Vec<SlotInfo> {
        let info = |(index, s): (usize, &CachedSlot)| SlotInfo { index, n_tokens: s.tokens.len(), work: None };
        self.slots.iter().enumerate().map(info).collect()
    }

    /// Copies the state of a slot that is free and, unless it is empty, of this scope.
    pub(crate) fn save(&self, live: &mut Live<'_>, index: usize, scope: Scope) -> Result<SlotState, SlotError> {
        self.check_free(index)?;
        let s = &self.slots[index];
        if s.scope != scope && !s.tokens.is_empty() {
            return Err(SlotError::OtherScope { index });
        }
        Ok(s.copy(live)?)
    }

    /// Puts a state into a slot that is free; it belongs to `scope` from then on. One that does not fit changes nothing;
    /// after an error of the device the slot is empty.
    pub(crate) fn load(
        &mut self,
        live: &mut Live<'_>,
        index: usize,
        saved: SlotState,
        scope: Scope,
    ) -> Result<usize, SlotError> {
        self.check_free(index)?;
        let n = saved.tokens.len();
        match live.load(&self.slots[index].slot, &saved) {
            Ok(()) => self.slots[index].replace(saved),
            Err(SlotError::State(memory::Error::Device(error))) => {
                self.forget(live.memory, index);
                return Err(memory::Error::from(error).into());
            }
            Err(refused) => return Err(refused),
        }
        self.slots[index].scope = scope;
        Ok(n)
    }

    /// Empties a slot that is free; gives the number of its tokens.
    pub(crate) fn clear(&mut self, memory: &mut Memory, index: usize) -> Result<usize, SlotError> {
        self.check_free(index)?;
        let n = self.slots[index].tokens.len();
        self.forget(memory, index);
        Ok(n)
    }

    fn check_free(&self, index: usize) -> Result<(), SlotError> {
        match self.slots.get(index) {
            Some(s) if s.busy => Err(SlotError::Busy { index }),
            Some(_) => Ok(()),
            None => Err(SlotError::Unknown { index, n_slots: self.slots.len() }),
        }
    }

    /// Gives the slot back; its state stays for later requests, with the hidden row of its last token.
    pub(crate) fn release(&mut self, index: usize, hidden: Option<&[f32]>) {
        let s = &mut self.slots[index];
        s.busy = false;
        s.hidden.clear();
        s.hidden.extend_from_slice(hidden.unwrap_or_default());
    }

    /// The hidden row of the last token of a slot that was just taken; `None` when it is not known.
    pub(crate) fn hidden(&self, index: usize) -> Option<&[f32]> {
        let hidden = &self.slots[index].hidden;
        (!hidden.is_empty()).then_some(hidden)
    }

    /// Gives the slot back, and its state is not to be used any more.
    pub(crate) fn forget(&mut self, memory: &mut Memory, index: usize) {
        self.release(index, None);
        if let Err(error) = rewind(memory, &mut self.slots[index], 0, self.recurrent) {
            // Its tokens are forgotten even so: whoever gets it clears it first.
            tracing::error!(%error, slot = index, "the state of a slot was not cleared");
        }
    }
}

/// Brings a slot's state back to its first `n` tokens; `n` is what [`SlotCache::usable`] said.
fn rewind(memory: &mut Memory, s: &mut CachedSlot, n: usize, recurrent: bool) -> Result<(), memory::Error> {
    let rewound = rewind_state(memory, s, n, recurrent);
    // After an error the state is anything: the next user starts from nothing.
    let n = if rewound.is_ok() { n } else { 0 };
    if n < s.tokens.len() {
        let kept = s.checkpoints.iter().find(|c| c.state.position() == n);
        s.hidden = kept.map_or_else(Vec::new, |c| c.hidden.clone());
    }
    s.tokens.truncate(n);
    s.checkpoints.retain(|c| c.state.position() <= n);
    rewound
}

fn rewind_state(memory: &mut Memory, s: &CachedSlot, n: usize, recurrent: bool) -> Result<(), memory::Error> {
    if n == 0 {
        memory.reset(&s.slot)?;
    } else if n < s.tokens.len() {
        match s.checkpoints.iter().find(|c| c.state.position() == n) {
            Some(kept) if recurrent => memory.restore(&s.slot, &kept.state)?,
            _ => memory.truncate(&s.slot, n)?,
        }
    }
    Ok(())
}
