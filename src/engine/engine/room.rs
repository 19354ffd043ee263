//! Room for the state of sequences within a budget of bytes: who may begin, who has to leave, who goes on.
//! Owns that order: resting sequences make room first, then one that is on its way to a slot, then the running one that came last,
//! which goes on before others begin.
//! The one that came first is never held up, so every request ends.

use std::time::Instant;

use memory::KV_STEP;
use model::RunError;
use text::TokenId;

use super::Engine;
use crate::cache::Wish;
use crate::sequence::Sequence;

/// A sequence that gave its slot back before it was done.
pub(super) struct Paused {
    pub(super) sequence: Sequence,
    /// Prompt and generation so far.
    tokens: Vec<TokenId>,
}

impl Engine {
    /// Makes room for what running sequences will write in this step.
    pub(super) fn make_room(&mut self) {
        let Some(budget) = self.budget else { return };
        while self.needed(None) > budget {
            // This step needs it, so nothing is put off.
            if let Some(oldest) = self.cache.oldest(&self.state.memory, None) {
                self.evict(oldest);
                continue;
            }
            if self.cache.stop_arriving(&mut self.state) {
                continue;
            }
            // What embeds has taken up hidden states, which would be counted twice.
            let running = self.sequences.iter().enumerate().filter(|(_, s)| !s.finished);
            let first = running.clone().map(|(_, s)| s.id.number()).min();
            let others = running.filter(|(_, s)| Some(s.id.number()) != first && !s.embeds());
            let Some((last, _)) = others.max_by_key(|(_, s)| s.id.number()) else { return };
            self.pause(last);
        }
    }

    /// True when a batch for which a device had no memory will find some: others than its first sequence make room before the next
    /// step. What is taken now is all that there is.
    pub(super) fn waits_for_memory(&mut self, error: &RunError) -> bool {
        let RunError::Memory(memory::Error::Device(ggml::Error::Alloc { .. })) = error else { return false };
        let others = self.cache.oldest(&self.state.memory, None).is_some()
            || self.sequences.iter().filter(|s| !s.finished && !s.embeds()).count() > 1;
        let Some(budget) = self.budget.filter(|_| others) else { return false };
        let memory = &self.state.memory;
        let own =
            |slot: usize| self.taken(slot).saturating_sub(memory.shown_by(&self.cache.get(slot).slot).unwrap_or(0));
        let taken = (0..self.cache.n_slots()).map(own).sum::<usize>() + memory.shared_bytes(None);
        self.budget = Some(budget.min(taken.saturating_sub(1)));
        tracing::warn!(%error, taken_mib = taken >> 20, "less memory than there was: sequences take turns from now on");
        true
    }

    /// True when a request with this wish may have a slot now. Resting sequences leave theirs for it, and a stored one comes back;
    /// while others run, both are copied a little at a time, and the request waits.
    pub(super) fn has_room(&mut self, wish: &Wish<'_>) -> bool {
        let until = self.copy_until();
        self.cache.stop_arriving_but_for(&mut self.state, wish.request);
        loop {
            let Some((index, own)) = self.cache.choose(&self.state.memory, wish) else { return false };
            if self.fits(wish, index, wish.prompt.len() + 1) {
                return !until.is_some_and(|until| self.copies_for(wish, (index, own), until));
            }
            // The chosen one last: it may have more of another conversation than the request needs.
            let oldest = |except| self.cache.oldest(&self.state.memory, except);
            let Some(oldest) = oldest(Some(index)).or_else(|| oldest(None)) else { return self.sequences.is_empty() };
            if until.is_some_and(|until| self.cache.leave(&self.state, oldest, 0, until)) {
                return false;
            }
            self.evict(oldest);
        }
    }

    /// Copies until the given time what a request waits for that takes this slot, whose first `own` tokens it uses. True when there is
    /// more.
    fn copies_for(&mut self, wish: &Wish<'_>, (index, own): (usize, usize), until: Instant) -> bool {
        if self.cache.leave_for(&self.state, wish, (index, own), until) {
            return true;
        }
        let n_arriving = self.cache.n_arriving(&self.state.memory, wish, (index, own));
        // One that has no room until it is cut comes back at once.
        n_arriving > 0
            && self.fits(wish, index, n_arriving)
            && self.cache.arrive_for(&mut self.state, wish, (index, own), until)
    }

    /// True when there is memory for so many positions of a request with this wish in this slot.
    fn fits(&self, wish: &Wish<'_>, index: usize, n_positions: usize) -> bool {
        let Some(budget) = self.budget else { return true };
        let needs = self.bytes_of(n_positions).max(self.taken(index));
        let beyond = self.needed(Some(index)).saturating_add(needs).saturating_sub(budget);
        // What others have as well is there once: looked for where it decides.
        beyond == 0 || beyond <= self.cache.shared_with_others(&self.state.memory, wish, index).min(needs)
    }

    /// Until when sequences may be stored or brought back in this step; `None` for as long as it takes, since nobody waits for it. It
    /// takes as much time as each of those that run has of a step.
    fn copy_until(&self) -> Option<Instant> {
        let n_running = u32::try_from(self.sequences.iter().filter(|s| !s.finished).count()).unwrap_or(u32::MAX);
        let part = self.step_took.checked_div(n_running)?;
        Some(Instant::now() + part.max(self.least_part))
    }

    /// Lets paused sequences go on, in order, as far as there is room.
    pub(super) fn resume(&mut self) {
        while self.cache.has_free() && !self.paused.is_empty() {
            let Paused { mut sequence, tokens } = self.paused.remove(0);
            let wish = Wish { prompt: &tokens, slot: None, ..Wish::of(sequence.id, &sequence.request) };
            if !self.has_room(&wish) {
                self.is_full = true;
                self.paused.insert(0, Paused { sequence, tokens });
                return;
            }
            match self.cache.take(&mut self.state, &wish) {
                Ok(Some((slot, n_there))) => {
                    tracing::debug!(slot, n_there, n_tokens = tokens.len(), "a paused sequence goes on");
                    let pictures = sequence.request.pictures().clone();
                    self.begin(slot, &pictures);
                    sequence.resume(slot, n_there, &tokens);
                    self.sequences.push(sequence);
                }
                Ok(None) => {
                    self.paused.insert(0, Paused { sequence, tokens });
                    return;
                }
                Err(error) => {
                    sequence.fail(error.to_string());
                    self.leaving.push(sequence);
                }
            }
        }
    }

    /// True when whoever waits can be given a slot.
    pub(super) fn may_admit(&self) -> bool {
        let somebody_waits = !self.waiting.is_empty() || !self.paused.is_empty();
        self.cache.has_free() && somebody_waits && !self.is_full
    }

    /// All sequences that are not done.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.sequences.iter_mut().chain(self.paused.iter_mut().map(|paused| &mut paused.sequence))
    }

    /// A running sequence gives its slot back; it goes on later, from the store if that has room for it.
    fn pause(&mut self, i: usize) {
        let mut sequence = self.sequences.remove(i);
        let mut tokens = self.cache.get(sequence.slot).tokens.clone();
        tokens.extend(&sequence.pending);
        tracing::debug!(slot = sequence.slot, n_tokens = tokens.len(), "a sequence waits for memory");
        sequence.draft.clear();
        self.cache.put_away(&mut self.state, sequence.slot);
        self.stats.n_paused += 1;
        let id = sequence.id.number();
        let at = self.paused.partition_point(|paused| paused.sequence.id.number() < id);
        self.paused.insert(at, Paused { sequence, tokens });
    }

    /// A resting sequence leaves its slot.
    fn evict(&mut self, index: usize) {
        self.cache.put_away(&mut self.state, index);
        self.stats.n_evicted += 1;
    }

    /// Bytes that all slots need for this step, but for one of them; what several share counts once. A sequence that is on its way
    /// to its slot has taken all of it.
    fn needed(&self, except: Option<usize>) -> usize {
        let memory = &self.state.memory;
        let own =
            |slot: usize, bytes: usize| bytes.saturating_sub(memory.shown_by(&self.cache.get(slot).slot).unwrap_or(0));
        let resting = (0..self.cache.n_slots()).filter(|&i| !self.cache.is_running(i) && Some(i) != except);
        let resting: usize = resting.map(|i| own(i, self.taken(i))).sum();
        let running = self.sequences.iter().filter(|s| Some(s.slot) != except);
        let running = running.map(|s| own(s.slot, self.bytes_of(self.positions(s)).max(self.taken(s.slot))));
        let shared = memory.shared_bytes(except.map(|i| &self.cache.get(i).slot));
        resting.saturating_add(running.sum()).saturating_add(shared)
    }

    /// Positions that a sequence may have after this step; those of its prompt are its own from the beginning.
    fn positions(&self, s: &Sequence) -> usize {
        let n_tokens = self.cache.get(s.slot).tokens.len();
        let depth = self.state.drafter.info().max_depth;
        (n_tokens + s.pending.len().min(self.config.n_batch) + depth).max(s.request.prompt().len() + 1)
    }

    /// Bytes of a sequence of so many positions, a few more included.
    fn bytes_of(&self, n_positions: usize) -> usize {
        let n_ctx = self.state.memory.config().n_ctx;
        self.state.memory.footprint().n_bytes(n_positions.next_multiple_of(KV_STEP).min(n_ctx))
    }

    fn taken(&self, slot: usize) -> usize {
        self.state.memory.taken_by(&self.cache.get(slot).slot).unwrap_or(0)
    }
}
