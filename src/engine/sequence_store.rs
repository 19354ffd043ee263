//! Sequences that had to leave their slots, kept on the host until their conversations go on.
//! Owns a budget of bytes; what was unused for longest makes room. Knows tokens and state; knows nothing of slots.

use std::sync::Arc;

use crate::request::Scope;
use crate::slot_file::SlotState;

/// A sequence, whose it is, and when it was put here.
struct Stored {
    scope: Scope,
    state: Arc<SlotState>,
    last_used: u64,
}

/// All stored sequences.
#[derive(Default)]
pub(crate) struct SequenceStore {
    stored: Vec<Stored>,
    n_bytes: usize,
    budget: usize,
    clock: u64,
}

impl SequenceStore {
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, ..Self::default() }
    }

    /// True when something may be kept at all.
    pub(crate) fn is_on(&self) -> bool {
        self.budget > 0
    }

    /// Bytes in use.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The sequence of which `usable` says most, with what it says.
    pub(crate) fn best(&self, usable: impl Fn(Scope, &SlotState) -> usize) -> Option<(usize, usize)> {
        let weighed = self.stored.iter().enumerate().map(|(i, s)| (usable(s.scope, &s.state), s.last_used, i));
        weighed.max().map(|(n, _, i)| (i, n))
    }

    /// The sequence, which stays here for others that begin as it does.
    pub(crate) fn lend(&mut self, index: usize) -> Arc<SlotState> {
        self.clock += 1;
        self.stored[index].last_used = self.clock;
        Arc::clone(&self.stored[index].state)
    }

    /// Tokens of a sequence.
    pub(crate) fn n_tokens(&self, index: usize) -> usize {
        self.stored[index].state.tokens.len()
    }

    /// Takes a sequence out.
    pub(crate) fn take(&mut self, index: usize) -> Arc<SlotState> {
        let state = self.stored.swap_remove(index).state;
        self.n_bytes -= state.n_bytes();
        state
    }

    /// Keeps a sequence if it fits the budget; what was unused for longest makes room. One of the same scope and
    /// adapters that begins as it does and is no longer is dropped.
    pub(crate) fn put(&mut self, scope: Scope, mut state: Arc<SlotState>) {
        // A sequence without its early checkpoints is worth more than none.
        while state.n_bytes() > self.budget && !state.checkpoints.is_empty() && state.state.n_bytes() <= self.budget {
            Arc::make_mut(&mut state).checkpoints.remove(0);
        }
        let n_bytes = state.n_bytes();
        if n_bytes > self.budget {
            return;
        }
        let alike = |s: &Stored| s.scope == scope && s.state.adapters == state.adapters;
        let beginning = |s: &Stored| alike(s) && state.tokens.starts_with(&s.state.tokens);
        while let Some(i) = self.stored.iter().position(beginning) {
            self.take(i);
        }
        while self.n_bytes + n_bytes > self.budget {
            let oldest = self.stored.iter().enumerate().min_by_key(|(_, s)| s.last_used).map(|(i, _)| i);
            let Some(oldest) = oldest else { break };
            self.take(oldest);
        }
        self.clock += 1;
        self.n_bytes += n_bytes;
        self.stored.push(Stored { scope, state, last_used: self.clock });
    }
}
