//! Where the state of a prompt's beginning comes from: a slot's own, the store, or a copy of what another slot holds, be it
//! in use or not.
//! Owns which of them is worth it, and in `usable` alone whether a request may have it at all.

use std::cmp::Reverse;
use std::sync::Arc;

use memory::Memory;
use model::AdapterSet;
use text::TokenId;

use super::{CachedSlot, MIN_COPY, MIN_LOSS, SlotCache, Wish, rewind};
use crate::live_state::LiveState;
use crate::proposer::SequenceChange;
use crate::request::Scope;
use crate::sequence_arrival::Origin;
use crate::slot_file::{SlotCheckpoint, SlotState};
use crate::slot_info::SlotError;

/// A beginning of a prompt that is there.
enum Source {
    /// In the slot that the request gets.
    Own,
    Stored(usize),
    Slot(usize),
    Disk(usize),
}

/// The same, taken from where it was stored; with how much of the prompt it has.
enum Fetched {
    Own(usize),
    Slot(usize, usize),
    Stored(Origin, Arc<SlotState>, usize),
}

impl SlotCache {
    /// Takes a free slot and brings its state to a beginning of the prompt: the wanted one, else the one that saves most,
    /// counting against it what is lost to its own conversation, else the one unused for longest. So a short common
    /// beginning does not cost a long conversation its state while another slot would do. A stored sequence that saves more
    /// comes back first, or as much is copied from another slot; what would be lost is stored. Gives the slot's index and
    /// the number of tokens that need no computing; at least the last token is left to compute. `None` when all slots are
    /// busy.
    pub(crate) fn take(&mut self, state: &mut LiveState, wish: &Wish<'_>) -> Result<Option<(usize, usize)>, SlotError> {
        self.stop_arriving_but_for(state, wish.request);
        let Some((index, own)) = self.choose(&state.memory, wish) else { return Ok(None) };
        let n = match self.finish_arriving(state)? {
            Some(n) => n,
            None => self.bring(state, wish, index, own)?,
        };
        self.clock += 1;
        let s = &mut self.slots[index];
        s.last_used = self.clock;
        rewind(&mut state.memory, s, n)?;
        (s.busy, s.private, s.scope) = (true, !wish.reuse, wish.scope);
        s.is_on_disk = false;
        s.adapters.clone_from(wish.adapters);
        Ok(Some((index, n)))
    }

    /// Puts as much of the prompt's beginning as is worth it into this slot, which has `own` tokens of it; what was there is stored.
    /// Gives how much that is.
    fn bring(&mut self, state: &mut LiveState, wish: &Wish<'_>, index: usize, own: usize) -> Result<usize, SlotError> {
        match self.fetch(wish, &state.memory, index, own) {
            Fetched::Own(n) => {
                self.keep(state, index, n);
                self.reused.n_own += n as u64;
                Ok(n)
            }
            Fetched::Slot(from, n) => {
                self.keep(state, index, 0);
                self.copy_from(state, wish, from, index, n)?;
                self.reused.n_copied += n as u64;
                Ok(n)
            }
            Fetched::Stored(origin, stored, n) => {
                self.keep(state, index, 0);
                self.begin_arriving(state, wish, index, (origin, stored, n))?;
                self.finish_arriving(state)?;
                Ok(n)
            }
        }
    }

    /// The slot that [`SlotCache::take`] takes, and how many tokens of the prompt are there: the one to which a sequence is on its
    /// way for this request, if there is one.
    pub(crate) fn choose(&self, memory: &Memory, wish: &Wish<'_>) -> Option<(usize, usize)> {
        if let Some(index) = self.arriving_for(wish.request) {
            return Some((index, 0));
        }
        let free = self.slots.iter().enumerate().filter(|(_, s)| !s.busy);
        let weighed = free.map(|(index, s)| {
            let n = self.usable_of(wish, memory, s);
            let lost = s.worth().saturating_sub(n);
            (wish.slot == Some(index), n.saturating_sub(lost), Reverse(s.last_used), index, n)
        });
        weighed.max().map(|(.., index, n)| (index, n))
    }

    /// For a slot that was taken with its first `n` tokens, and nothing was computed since: copies more of the prompt's
    /// beginning if another slot has it by now. Gives the number of tokens that need no computing.
    pub(crate) fn join(
        &mut self,
        state: &mut LiveState,
        wish: &Wish<'_>,
        index: usize,
        n: usize,
    ) -> Result<usize, SlotError> {
        let Some((from, n_there)) = self.other(wish, &state.memory, index, n) else { return Ok(n) };
        self.copy_from(state, wish, from, index, n_there)?;
        self.reused.n_copied += (n_there - n) as u64;
        Ok(n_there)
    }

    /// Bytes of what the request would have in this slot that other slots have as well and are there once.
    pub(crate) fn shared_with_others(&self, memory: &Memory, wish: &Wish<'_>, index: usize) -> usize {
        if self.is_arriving(index) {
            return memory.common_bytes(&self.slots[index].slot, wish.prompt.len()).unwrap_or(0);
        }
        let own = self.usable_of(wish, memory, &self.slots[index]);
        match self.source(wish, memory, index, own) {
            (Source::Slot(_), n) => memory.shareable_bytes(n),
            (Source::Own, n) => memory.common_bytes(&self.slots[index].slot, n).unwrap_or(0),
            (Source::Stored(_) | Source::Disk(_), n) => {
                self.beside(wish, index, n).map_or(0, |(_, n)| memory.shareable_bytes(n))
            }
        }
    }

    /// The slot beside `index` that holds most of the first `n` tokens of the prompt, and how many, where that is worth sharing
    /// with a sequence that comes back with them.
    pub(super) fn beside(&self, wish: &Wish<'_>, index: usize, n: usize) -> Option<(usize, usize)> {
        let may = |s: &CachedSlot| !s.private && (s.scope, &s.adapters) == (wish.scope, wish.adapters);
        let others = self.slots.iter().enumerate().filter(|&(i, s)| i != index && self.limits.share && may(s));
        let common = |s: &CachedSlot| s.tokens.iter().zip(&wish.prompt[..n]).take_while(|(a, b)| a == b).count();
        let best = others.map(|(i, s)| (common(s), Reverse(i))).max().filter(|(n, _)| *n >= MIN_COPY);
        best.map(|(n, Reverse(i))| (i, n))
    }

    /// True when slots give copies of their state to others.
    pub(crate) fn shares(&self) -> bool {
        self.limits.share
    }

    /// Gets most of the prompt's beginning from where it is stored, or says in which slot it is.
    fn fetch(&mut self, wish: &Wish<'_>, memory: &Memory, index: usize, own: usize) -> Fetched {
        loop {
            match self.source(wish, memory, index, own) {
                (Source::Own, n) => return Fetched::Own(n),
                (Source::Slot(from), n) => return Fetched::Slot(from, n),
                // Taken out first, so that storing what was in the slot cannot push it out; what others may begin with stays.
                (Source::Stored(i), n) if n + MIN_LOSS > self.store.n_tokens(i) => {
                    return Fetched::Stored(Origin::Host, self.store.take(i), n);
                }
                (Source::Stored(i), n) => return Fetched::Stored(Origin::Host, self.store.lend(i), n),
                (Source::Disk(i), n) => {
                    if let Some(stored) = self.disk.as_mut().and_then(|disk| disk.read(i)) {
                        return Fetched::Stored(Origin::Disk, stored, n);
                    }
                }
            }
        }
    }

    /// The same of what is stored only: what is in a slot is left alone.
    pub(super) fn fetch_stored(
        &mut self,
        wish: &Wish<'_>,
        memory: &Memory,
        index: usize,
        own: usize,
    ) -> Option<(Origin, Arc<SlotState>, usize)> {
        match self.fetch(wish, memory, index, own) {
            Fetched::Stored(origin, stored, n) => Some((origin, stored, n)),
            Fetched::Own(_) | Fetched::Slot(..) => None,
        }
    }

    /// Tokens of the stored sequence that [`SlotCache::fetch`] will get; 0 where that is none.
    pub(super) fn n_fetched(&self, wish: &Wish<'_>, memory: &Memory, index: usize, own: usize) -> usize {
        match (self.source(wish, memory, index, own).0, &self.disk) {
            (Source::Stored(i), _) => self.store.n_tokens(i),
            (Source::Disk(i), Some(disk)) => disk.n_tokens(i),
            _ => 0,
        }
    }

    /// Where most of the prompt's beginning is, and how much: a slot's own state costs nothing, a copy leaves the store what
    /// it has.
    fn source(&self, wish: &Wish<'_>, memory: &Memory, index: usize, own: usize) -> (Source, usize) {
        let other = self.other(wish, memory, index, own);
        let n = other.map_or(own, |(_, n)| n);
        let stored = self
            .store
            .best(|scope, s| {
                let earliest = self.shape.rewinds_to(s.tokens.len());
                self.usable(wish, (scope, &s.adapters), &s.tokens, earliest, positions(&s.checkpoints))
            })
            .filter(|&(_, there)| there > n);
        let n = stored.map_or(n, |(_, n)| n);
        let on_disk = self.disk.as_ref().and_then(|disk| {
            disk.best(|s| {
                let earliest = self.shape.rewinds_to(s.tokens.len());
                self.usable(wish, (s.scope, s.adapters), s.tokens, earliest, s.checkpoints.iter().copied())
            })
        });
        match (on_disk.filter(|&(_, there)| there >= n + MIN_COPY), stored, other) {
            (Some((i, n)), ..) => (Source::Disk(i), n),
            (None, Some((i, n)), _) => (Source::Stored(i), n),
            (None, None, Some((i, n))) => (Source::Slot(i), n),
            (None, None, None) => (Source::Own, own),
        }
    }

    /// The slot beside `index` that has most of the prompt's beginning, if copying that saves enough beyond `own` tokens.
    fn other(&self, wish: &Wish<'_>, memory: &Memory, index: usize, own: usize) -> Option<(usize, usize)> {
        let others = self.slots.iter().enumerate().filter(|&(i, s)| i != index && !s.private && self.limits.share);
        let weighed = others.map(|(i, s)| (self.usable_of(wish, memory, s), Reverse(i)));
        weighed.max().filter(|(n, _)| *n >= own + MIN_COPY).map(|(n, Reverse(i))| (i, n))
    }

    /// [`SlotCache::usable`] of a slot.
    fn usable_of(&self, wish: &Wish<'_>, memory: &Memory, s: &CachedSlot) -> usize {
        // A slot that is none has nothing to go back to.
        let earliest = memory.rewinds_to(&s.slot).unwrap_or(usize::MAX);
        self.usable(wish, (s.scope, &s.adapters), &s.tokens, earliest, positions(&s.checkpoints))
    }

    /// Tokens at the beginning of the prompt that a state of this scope, made with these adapters, can be brought to; 0 where
    /// the request may not use the state. From `earliest` on it can be cut.
    fn usable(
        &self,
        wish: &Wish<'_>,
        made: (Scope, &AdapterSet),
        tokens: &[TokenId],
        earliest: usize,
        checkpoints: impl Iterator<Item = usize>,
    ) -> usize {
        if !wish.reuse || made != (wish.scope, wish.adapters) {
            return 0;
        }
        let common = tokens.iter().zip(wish.prompt).take_while(|(a, b)| a == b).count();
        let most = wish.pictures.whole(common.min(wish.prompt.len() - 1));
        if most >= earliest || most == tokens.len() {
            return most;
        }
        checkpoints.filter(|&p| p <= most && wish.pictures.whole(p) == p).max().unwrap_or(0)
    }

    /// Stores a slot's sequence before its state goes back to its first `n` tokens, if much would be lost.
    pub(super) fn keep(&mut self, state: &mut LiveState, index: usize, n: usize) {
        if self.is_kept(index, n) {
            match self.finish_leaving(state, index) {
                Ok(saved) => {
                    let (saved, scope) = (Arc::new(saved), self.slots[index].scope);
                    if let Some(disk) = self.disk.as_mut().filter(|_| self.slots[index].goes_to_disk()) {
                        disk.put(scope, Arc::clone(&saved), false);
                    }
                    self.store.put(scope, saved);
                }
                Err(error) => tracing::warn!(%error, "a sequence was not stored: its next turn computes more"),
            }
        }
        // The sequence goes now, whatever became of it.
        self.leaving.take_if(|copy| copy.is_of(index));
    }

    /// True when a slot's sequence is worth storing before its state goes back to its first `n` tokens.
    pub(super) fn is_kept(&self, index: usize, n: usize) -> bool {
        let s = &self.slots[index];
        let somewhere = self.store.is_on() || self.disk.is_some() && s.goes_to_disk();
        somewhere && s.worth() >= n + MIN_LOSS
    }

    /// Of the slot that a request takes, whose first `own` tokens begin its prompt, how many stay there.
    pub(super) fn stays(&self, wish: &Wish<'_>, memory: &Memory, index: usize, own: usize) -> usize {
        let (source, n) = self.source(wish, memory, index, own);
        if let Source::Own = source { n } else { 0 }
    }

    /// Makes a slot's state a copy of the first `n` tokens of another's.
    fn copy_from(
        &mut self,
        state: &mut LiveState,
        wish: &Wish<'_>,
        from: usize,
        to: usize,
        n: usize,
    ) -> Result<(), SlotError> {
        let [source, target] = [&self.slots[from], &self.slots[to]];
        let kept = source.checkpoints.iter().find(|c| c.state.position() == n);
        let tokens = wish.prompt[..n].to_vec();
        let hidden = match kept {
            Some(kept) => kept.hidden.clone(),
            None if n == source.tokens.len() => source.hidden.clone(),
            None => Vec::new(),
        };
        let checkpoints = source.checkpoints.iter().filter(|c| c.state.position() <= n).cloned().collect();
        // A checkpoint of state that can be cut anywhere only tells where a boundary is.
        let checkpoint = kept.map(|kept| &kept.state);
        let copied = state.memory.copy(&source.slot, &target.slot, n, checkpoint).map_err(SlotError::from);
        let copied = copied.and_then(|()| {
            let change = SequenceChange::Copy { from: source.slot.index(), n_tokens: n };
            Ok(state.drafter.change(target.slot.index(), change)?)
        });
        if let Err(error) = copied {
            self.forget(&mut state.memory, to);
            return Err(error);
        }
        tracing::debug!(from, to, n, "state copied");
        let target = &mut self.slots[to];
        (target.tokens, target.checkpoints, target.hidden) = (tokens, checkpoints, hidden);
        self.make_room(to, 0, 0);
        Ok(())
    }
}

fn positions(checkpoints: &[Arc<SlotCheckpoint>]) -> impl Iterator<Item = usize> {
    checkpoints.iter().map(|c| c.state.position())
}

impl CachedSlot {
    /// It would be lost if the program ended, and nobody changes it.
    fn goes_to_disk(&self) -> bool {
        !self.is_on_disk && !self.busy
    }

    /// Tokens that the next turn of its conversation is likely to save: up to the last checkpoint. What was generated after
    /// it often changes (thinking is dropped).
    pub(super) fn worth(&self) -> usize {
        self.checkpoints.last().map_or(self.tokens.len(), |c| c.state.position())
    }
}
