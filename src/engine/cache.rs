//! Sequence state that outlives its request, so that the next one with the same beginning need not compute it again.
//! Owns the slots of the memory. Knows tokens and checkpoints; knows nothing of requests.
//!
//! Recurrent state cannot be cut, and windows forget what lies before them, so such a slot can be taken up where its tokens
//! end (behind windows also a little before), or at a checkpoint taken on the way: at
//! the boundaries of messages, where the next turn of a conversation parts from this one, and every so many tokens of a prompt.

mod arriving;
mod checkpoints;
mod leaving;
mod reuse;
mod wish;

use std::sync::Arc;
use std::time::Instant;

use memory::{Memory, SavedSequence, Slot, StateShape};
use model::AdapterSet;
use text::TokenId;

use crate::disk_store::DiskStore;
use crate::live_state::LiveState;
use crate::proposer::SequenceChange;
use crate::request::Scope;
use crate::reused::Reused;
use crate::sequence_arrival::SequenceArrival;
use crate::sequence_copy::SequenceCopy;
use crate::sequence_store::SequenceStore;
use crate::slot_file::{SlotCheckpoint, SlotState};
use crate::slot_info::{SlotError, SlotInfo};

pub(crate) use wish::Wish;

/// Tokens that a copy from another slot must save: it moves all cells before them, and the recurrent state.
pub(crate) const MIN_COPY: usize = 64;

/// Tokens whose loss is worth a copy of the state on the host.
const MIN_LOSS: usize = 16;

/// What may be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheLimits {
    /// Bytes of checkpoints of all slots.
    pub(crate) checkpoint_bytes: usize,
    /// Prompt tokens between checkpoints beside those at message boundaries; 0 takes none.
    pub(crate) checkpoint_every: usize,
    /// Bytes of stored sequences.
    pub(crate) store_bytes: usize,
    /// Slots give copies of their state to others.
    pub(crate) share: bool,
}

/// A slot with what its state holds.
pub(crate) struct CachedSlot {
    pub(crate) slot: Slot,
    /// The tokens behind the state, in order.
    pub(crate) tokens: Vec<TokenId>,
    /// Whose they are: requests of other scopes take up none of this.
    scope: Scope,
    /// What they were computed with: requests with others take up none of this.
    adapters: AdapterSet,
    /// Ascending.
    checkpoints: Vec<Arc<SlotCheckpoint>>,
    /// The hidden states of the last tokens, as many as the proposer wants; empty where that of the last one is not known.
    pub(crate) hidden: Vec<f32>,
    /// In use by a request, or for one.
    busy: bool,
    /// In use by a request that leaves nothing to others.
    private: bool,
    last_used: u64,
    /// Nothing of it would be lost if the program ended.
    is_on_disk: bool,
}

impl CachedSlot {
    /// It holds nothing, whatever its state is.
    fn empty(&mut self) {
        self.is_on_disk = true;
        self.tokens.clear();
        self.checkpoints.clear();
        self.hidden.clear();
    }

    /// Everything of it.
    fn copy(&self, state: &mut LiveState) -> Result<SlotState, memory::Error> {
        let saved = state.memory.save(&self.slot)?;
        Ok(self.with_state(state, saved, None))
    }

    /// Everything of it with the copy of its state, what is the same in `beside` in common with it.
    fn with_state(&self, state: &mut LiveState, saved: SavedSequence, beside: Option<&SlotState>) -> SlotState {
        let mut copy = SlotState {
            tokens: self.tokens.clone(),
            adapters: self.adapters.clone(),
            checkpoints: self.checkpoints.clone(),
            hidden: self.hidden.clone(),
            state: saved,
            drafts: state.drafter.save(self.slot.index(), self.tokens.len()),
        };
        if let Some(other) = beside {
            copy.share_checkpoints(other);
        }
        copy
    }
}

/// All slots of a memory.
pub(crate) struct SlotCache {
    slots: Vec<CachedSlot>,
    /// The shape of a slot's state.
    shape: StateShape,
    /// A sequence cannot go back to every earlier position.
    forgets: bool,
    /// Sequences that were here before.
    store: SequenceStore,
    /// The one that is on its way there.
    leaving: Option<SequenceCopy>,
    /// The one that is on its way back from there.
    arriving: Option<SequenceArrival>,
    /// Those that outlive the program.
    disk: Option<DiskStore>,
    /// Prompt tokens that were not computed, by where they came from.
    reused: Reused,
    limits: CacheLimits,
    clock: u64,
}

impl SlotCache {
    /// Takes every slot of `memory`.
    pub(crate) fn new(
        memory: &mut Memory,
        limits: CacheLimits,
        disk: Option<DiskStore>,
    ) -> Result<Self, memory::Error> {
        let mut slots = Vec::new();
        while let Some(slot) = memory.acquire()? {
            let (tokens, checkpoints, hidden) = (Vec::new(), Vec::new(), Vec::new());
            let (scope, busy, private) = (Scope::default(), false, false);
            let adapters = AdapterSet::default();
            let (last_used, is_on_disk) = (0, true);
            let state =
                CachedSlot { slot, tokens, scope, adapters, checkpoints, hidden, busy, private, last_used, is_on_disk };
            slots.push(state);
        }
        let (shape, forgets) = (memory.shape(), memory.forgets());
        let (store, reused) = (SequenceStore::new(limits.store_bytes), Reused::default());
        Ok(Self { slots, shape, forgets, store, leaving: None, arriving: None, disk, reused, limits, clock: 0 })
    }

    pub(crate) fn get(&self, index: usize) -> &CachedSlot {
        &self.slots[index]
    }

    /// True when a sequence's state can be taken up at its end and at checkpoints only, or a little before its end.
    pub(crate) fn forgets(&self) -> bool {
        self.forgets
    }

    /// The number of slots.
    pub(crate) fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// True when a request has the slot, and does not wait for what comes there.
    pub(crate) fn is_running(&self, index: usize) -> bool {
        self.slots[index].busy && !self.is_arriving(index)
    }

    /// The free slot that was unused for longest among those that take memory, but not this one.
    pub(crate) fn oldest(&self, memory: &Memory, except: Option<usize>) -> Option<usize> {
        let takes = |s: &CachedSlot| memory.taken_by(&s.slot).is_ok_and(|bytes| bytes > 0);
        let free = self.slots.iter().enumerate().filter(|&(i, s)| !s.busy && Some(i) != except && takes(s));
        free.min_by_key(|(_, s)| s.last_used).map(|(i, _)| i)
    }

    /// Gives the slot and its memory back; its sequence goes to the store, unless it leaves nothing to others.
    pub(crate) fn put_away(&mut self, state: &mut LiveState, index: usize) {
        if !self.slots[index].private {
            self.keep(state, index, 0);
        }
        self.release(index);
        let s = &mut self.slots[index];
        s.empty();
        if let Err(error) = state.memory.discard(&s.slot) {
            // Its tokens are forgotten even so: whoever gets it clears it first.
            tracing::error!(%error, slot = index, "the state of a slot was not cleared");
        }
        // Only saved bytes are refused, and there are none.
        let _ = state.drafter.change(index, SequenceChange::Forget);
    }

    /// True when a request can be given a slot; one to which a sequence comes is for whoever is next.
    pub(crate) fn has_free(&self) -> bool {
        self.arriving.is_some() || self.slots.iter().any(|s| !s.busy)
    }

    /// Prompt tokens that were not computed.
    pub(crate) fn reused(&self) -> Reused {
        self.reused
    }

    /// Keeps one resting sequence on disk that is not there yet, or copies some of it for that until the given time; false where there
    /// is none. Without a time all of it, and waits until the disk has room for it in its queue.
    pub(crate) fn keep_on_disk(&mut self, state: &mut LiveState, until: Option<Instant>) -> bool {
        if !self.has_unsaved() {
            return false;
        }
        let Some(index) = self.slots.iter().position(|s| !s.busy && !s.is_on_disk) else { return false };
        let is_worth_it = self.slots[index].worth() >= MIN_LOSS;
        if is_worth_it && until.is_some_and(|until| self.leave(state, index, 0, until)) {
            return true;
        }
        self.slots[index].is_on_disk = true;
        if is_worth_it {
            match (self.finish_leaving(state, index), &mut self.disk) {
                (Ok(saved), Some(disk)) => disk.put(self.slots[index].scope, Arc::new(saved), until.is_none()),
                (Err(error), _) => tracing::warn!(%error, "a sequence was not kept on disk"),
                (Ok(_), None) => {}
            }
        }
        true
    }

    /// Some resting sequence is not on disk yet.
    pub(crate) fn has_unsaved(&self) -> bool {
        self.disk.is_some() && self.slots.iter().any(|s| !s.busy && !s.is_on_disk)
    }

    /// Bytes of stored sequences.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.store.n_bytes()
    }

    /// The state of `index` now holds these tokens more, with their hidden states, of which the last `n_kept` numbers are
    /// kept; none where they are not known.
    pub(crate) fn extend(&mut self, index: usize, tokens: &[TokenId], hidden: &[f32], n_kept: usize) {
        let s = &mut self.slots[index];
        s.tokens.extend_from_slice(tokens);
        if hidden.is_empty() {
            s.hidden.clear();
        }
        let hidden = &hidden[hidden.len().saturating_sub(n_kept)..];
        let n_old = s.hidden.len().min(n_kept - hidden.len().min(n_kept));
        s.hidden.drain(..s.hidden.len() - n_old);
        s.hidden.extend_from_slice(hidden);
    }

    /// The tokens of a slot that was just taken, the adapters that it goes on with, and the hidden states of the last tokens.
    /// Those that came with a loaded slot may hold anything, and are not known then.
    pub(crate) fn begin(&mut self, index: usize) -> (&[TokenId], &AdapterSet, &[f32]) {
        let s = &mut self.slots[index];
        if !s.hidden.iter().all(|x| x.is_finite()) {
            s.hidden.clear();
        }
        (&s.tokens, &s.adapters, &s.hidden)
    }

    /// What all slots hold.
    pub(crate) fn infos(&self) -> Vec<SlotInfo> {
        let info = |(index, s): (usize, &CachedSlot)| SlotInfo { index, n_tokens: s.tokens.len(), work: None };
        self.slots.iter().enumerate().map(info).collect()
    }

    /// Copies the state of a slot that is free and, unless it is empty, of this scope.
    pub(crate) fn save(&self, state: &mut LiveState, index: usize, scope: Scope) -> Result<SlotState, SlotError> {
        self.check_free(index)?;
        let s = &self.slots[index];
        if s.scope != scope && !s.tokens.is_empty() {
            return Err(SlotError::OtherScope { index });
        }
        Ok(s.copy(state)?)
    }

    /// Puts a state into a slot that is free; it belongs to `scope` from then on. One that does not fit changes nothing;
    /// after an error of the device the slot is empty.
    pub(crate) fn load(
        &mut self,
        state: &mut LiveState,
        index: usize,
        saved: SlotState,
        scope: Scope,
    ) -> Result<usize, SlotError> {
        self.check_free(index)?;
        self.stop_leaving();
        let n = saved.tokens.len();
        match state.load(&self.slots[index].slot, &saved) {
            Ok(()) => self.replace(index, &saved),
            Err(SlotError::State(memory::Error::Device(error))) => {
                self.forget(&mut state.memory, index);
                return Err(memory::Error::from(error).into());
            }
            Err(refused) => return Err(refused),
        }
        self.slots[index].scope = scope;
        Ok(n)
    }

    /// The state of `index` is another now.
    fn replace(&mut self, index: usize, by: &SlotState) {
        let s = &mut self.slots[index];
        s.tokens.clone_from(&by.tokens);
        s.adapters.clone_from(&by.adapters);
        s.checkpoints.clone_from(&by.checkpoints);
        s.hidden.clone_from(&by.hidden);
        // They may be more than this engine keeps.
        self.make_room(index, 0, 0);
    }

    /// Brings the state of a slot in use back to its first `n` tokens, or to the last checkpoint before them. Gives how many
    /// it holds.
    pub(crate) fn cut(&mut self, memory: &mut Memory, index: usize, n: usize) -> Result<usize, memory::Error> {
        let s = &mut self.slots[index];
        let n = match memory.rewinds_to(&s.slot)? {
            earliest if n >= earliest => n,
            _ => s.checkpoints.iter().map(|c| c.state.position()).filter(|&at| at <= n).max().unwrap_or(0),
        };
        rewind(memory, s, n)?;
        Ok(n)
    }

    /// Empties a slot that is free; gives the number of its tokens.
    pub(crate) fn clear(&mut self, memory: &mut Memory, index: usize) -> Result<usize, SlotError> {
        self.check_free(index)?;
        self.stop_leaving();
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

    /// Gives the slot back; its state stays for later requests.
    pub(crate) fn release(&mut self, index: usize) {
        let s = &mut self.slots[index];
        s.is_on_disk &= s.private;
        (s.busy, s.private) = (false, false);
    }

    /// Gives the slot back, and its state is not to be used any more.
    pub(crate) fn forget(&mut self, memory: &mut Memory, index: usize) {
        self.release(index);
        self.slots[index].is_on_disk = true;
        self.slots[index].hidden.clear();
        if let Err(error) = rewind(memory, &mut self.slots[index], 0) {
            // Its tokens are forgotten even so: whoever gets it clears it first.
            tracing::error!(%error, slot = index, "the state of a slot was not cleared");
        }
    }
}

/// Brings a slot's state back to its first `n` tokens; `n` is what [`SlotCache::usable`] said.
fn rewind(memory: &mut Memory, s: &mut CachedSlot, n: usize) -> Result<(), memory::Error> {
    let rewound = rewind_state(memory, s, n);
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

fn rewind_state(memory: &mut Memory, s: &CachedSlot, n: usize) -> Result<(), memory::Error> {
    if n == 0 {
        memory.reset(&s.slot)?;
    } else if n < s.tokens.len() {
        match s.checkpoints.iter().find(|c| c.state.position() == n) {
            Some(kept) if n < memory.rewinds_to(&s.slot)? => memory.restore(&s.slot, &kept.state)?,
            _ => memory.truncate(&s.slot, n)?,
        }
    }
    Ok(())
}
