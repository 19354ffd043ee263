//! Sequences that had to leave their slots, kept on the host until their conversations go on.
//! Owns a budget of bytes; what was unused for longest makes room. Knows tokens and state; knows nothing of slots.

use memory::SavedSequence;
use text::TokenId;

use crate::cache::Kept;
use crate::request::Scope;

/// A whole sequence with its checkpoints.
pub(crate) struct Stored {
    /// Whose it is.
    pub(crate) scope: Scope,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) checkpoints: Vec<Kept>,
    pub(crate) hidden: Vec<f32>,
    pub(crate) state: SavedSequence,
    last_used: u64,
}

impl Stored {
    pub(crate) fn new(
        scope: Scope,
        tokens: Vec<TokenId>,
        checkpoints: Vec<Kept>,
        hidden: Vec<f32>,
        state: SavedSequence,
    ) -> Self {
        Self { scope, tokens, checkpoints, hidden, state, last_used: 0 }
    }

    fn n_bytes(&self) -> usize {
        let checkpoints: usize = self.checkpoints.iter().map(Kept::n_bytes).sum();
        self.state.n_bytes() + checkpoints + 4 * (self.tokens.len() + self.hidden.len())
    }
}

/// All stored sequences.
#[derive(Default)]
pub(crate) struct Store {
    stored: Vec<Stored>,
    n_bytes: usize,
    budget: usize,
    clock: u64,
}

impl Store {
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
    pub(crate) fn best(&self, usable: impl Fn(&Stored) -> usize) -> Option<(usize, usize)> {
        let weighed = self.stored.iter().enumerate().map(|(i, s)| (usable(s), s.last_used, i));
        weighed.max().map(|(n, _, i)| (i, n))
    }

    /// Takes a sequence out.
    pub(crate) fn take(&mut self, index: usize) -> Stored {
        let stored = self.stored.swap_remove(index);
        self.n_bytes -= stored.n_bytes();
        stored
    }

    /// Keeps a sequence if it fits the budget; what was unused for longest makes room. One of the same scope that begins
    /// as it does and is no longer is dropped.
    pub(crate) fn put(&mut self, mut stored: Stored) {
        let n_bytes = stored.n_bytes();
        if n_bytes > self.budget {
            return;
        }
        let beginning = |s: &Stored| s.scope == stored.scope && stored.tokens.starts_with(&s.tokens);
        while let Some(i) = self.stored.iter().position(beginning) {
            self.take(i);
        }
        while self.n_bytes + n_bytes > self.budget {
            let oldest = self.stored.iter().enumerate().min_by_key(|(_, s)| s.last_used).map(|(i, _)| i);
            let Some(oldest) = oldest else { break };
            self.take(oldest);
        }
        self.clock += 1;
        stored.last_used = self.clock;
        self.n_bytes += n_bytes;
        self.stored.push(stored);
    }
}
