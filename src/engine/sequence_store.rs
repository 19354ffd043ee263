//! Sequences that had to leave their slots, kept on the host until their conversations go on.
//! Owns a budget of bytes, in which what several have in common counts once; what was unused for longest makes room. Knows tokens and
//! state; knows nothing of slots.

use std::collections::HashMap;
use std::sync::Arc;

use model::AdapterSet;
use text::TokenId;

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
    /// How many of the stored ones have each part ([`SlotState::parts`]).
    parts: HashMap<usize, usize>,
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
        self.subtract(&state);
        state
    }

    /// The sequence of this scope and these adapters that begins most like these tokens, if that is worth looking at: what is to
    /// be put here may have much in common with it.
    pub(crate) fn most_like(&self, scope: Scope, adapters: &AdapterSet, tokens: &[TokenId]) -> Option<Arc<SlotState>> {
        let common = |s: &Stored| s.state.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let alike = self.stored.iter().filter(|s| s.scope == scope && s.state.adapters == *adapters);
        let best = alike.map(|s| (common(s), s)).max_by_key(|(n, _)| *n).filter(|(n, _)| *n >= MIN_COMMON);
        best.map(|(_, s)| Arc::clone(&s.state))
    }

    /// Counts a sequence.
    fn add(&mut self, state: &SlotState) {
        self.n_bytes += state.own_bytes();
        for (part, n_bytes) in state.parts() {
            let n = self.parts.entry(part).or_default();
            if *n == 0 {
                self.n_bytes += n_bytes;
            }
            *n += 1;
        }
    }

    /// Counts a sequence no longer.
    fn subtract(&mut self, state: &SlotState) {
        self.n_bytes -= state.own_bytes();
        for (part, n_bytes) in state.parts() {
            let Some(n) = self.parts.get_mut(&part) else { continue };
            *n -= 1;
            if *n == 0 {
                self.parts.remove(&part);
                self.n_bytes -= n_bytes;
            }
        }
    }

    /// Keeps a sequence if it fits the budget by itself; what was unused for longest makes room. One of the same scope and
    /// adapters that begins as it does and is no longer is dropped.
    pub(crate) fn put(&mut self, scope: Scope, mut state: Arc<SlotState>) {
        // A sequence without its early checkpoints is worth more than none.
        while state.n_bytes() > self.budget && !state.checkpoints.is_empty() && state.state.n_bytes() <= self.budget {
            Arc::make_mut(&mut state).checkpoints.remove(0);
        }
        if state.n_bytes() > self.budget {
            return;
        }
        // Before any goes: what it has in common with them stays.
        self.add(&state);
        let alike = |s: &Stored| s.scope == scope && s.state.adapters == state.adapters;
        let beginning = |s: &Stored| alike(s) && state.tokens.starts_with(&s.state.tokens);
        while let Some(i) = self.stored.iter().position(beginning) {
            self.take(i);
        }
        while self.n_bytes > self.budget {
            let oldest = self.stored.iter().enumerate().min_by_key(|(_, s)| s.last_used).map(|(i, _)| i);
            let Some(oldest) = oldest else { break };
            self.take(oldest);
        }
        self.clock += 1;
        self.stored.push(Stored { scope, state, last_used: self.clock });
    }
}

/// Tokens of a beginning that is worth looking at.
const MIN_COMMON: usize = 32;

#[cfg(test)]
mod tests {
    use memory::{CacheType, Kv, LayerState, Memory, MemoryConfig, SavedSequence, Slot, StateLayout, put_number};
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    const ROW: usize = 64;

    /// Two layers of attention without windows, F32 rows of 64.
    fn memory() -> Memory {
        let kv = Kv { n_head_kv: 1, d_k: ROW, d_v: ROW, window: None, latent: false };
        let config = MemoryConfig {
            n_slots: 1,
            n_ctx: 1024,
            type_k: CacheType::F32,
            type_v: CacheType::F32,
            v_transposed: false,
            n_snapshots: 1,
            transactional: false,
            max_rows: None,
            rotate: false,
        };
        let layout = StateLayout { layers: vec![LayerState::Kv(kv), LayerState::Kv(kv)] };
        Memory::new(ggml::Device::cpu().unwrap(), layout, config).unwrap()
    }

    /// The sequence of these tokens, whose cells hold numbers made of token and position.
    fn sequence(memory: &mut Memory, slot: &Slot, tokens: &[TokenId], beside: Option<&SlotState>) -> SlotState {
        let mut empty = Vec::new();
        memory.save_first(slot, 0).unwrap().write_to(&mut empty);
        let row = |(i, id): (usize, &TokenId)| ((id.0 * 1024 + i as u32) as f32).to_le_bytes().repeat(ROW);
        let tensor: Vec<u8> = tokens.iter().enumerate().flat_map(row).collect();
        // Numbers: positions, words of the shape, bytes of recurrent state, bytes of cells.
        let mut bytes = Vec::new();
        put_number(&mut bytes, tokens.len());
        bytes.extend_from_slice(&empty[8..24]);
        put_number(&mut bytes, 4 * tensor.len());
        bytes.extend_from_slice(&empty[32..]);
        bytes.extend(tensor.repeat(4));
        memory.load(slot, &SavedSequence::from_bytes(&bytes).unwrap()).unwrap();
        let (checkpoints, adapters) = (Vec::new(), AdapterSet::default());
        let (hidden, drafts) = (vec![0.5; 7], vec![1; 33]);
        let saving = memory.begin_saving(slot, beside.map(|other| &other.state)).unwrap();
        let state = memory.finish_saving(saving).unwrap();
        SlotState { tokens: tokens.to_vec(), adapters, checkpoints, hidden, state, drafts }
    }

    /// Bytes of all that is stored, parts in common once, counted anew.
    fn recounted(store: &SequenceStore) -> usize {
        let parts: HashMap<usize, usize> = store.stored.iter().flat_map(|s| s.state.parts()).collect();
        parts.values().sum::<usize>() + store.stored.iter().map(|s| s.state.own_bytes()).sum::<usize>()
    }

    fn tokens(beginning: u32, n_common: usize, n: usize, own: u32) -> Vec<TokenId> {
        (0..n as u32).map(|i| TokenId(if (i as usize) < n_common { beginning } else { own } + i % 5)).collect()
    }

    #[test]
    fn sequences_of_one_beginning_take_it_once() {
        let mut memory = memory();
        let slot = memory.acquire().unwrap().unwrap();
        let mut store = SequenceStore::new(64 << 20);
        let mut put = |scope, own, memory: &mut Memory| {
            let tokens = tokens(10, 800, 840, own);
            let beside = store.most_like(Scope(scope), &AdapterSet::default(), &tokens);
            let state = sequence(memory, &slot, &tokens, beside.as_deref());
            store.put(Scope(scope), Arc::new(state));
            (store.n_bytes(), recounted(&store))
        };
        let (one, _) = put(1, 100, &mut memory);
        for n in 2..9 {
            let (all, recounted) = put(1, 100 * n, &mut memory);
            assert_eq!(all, recounted);
            assert!(all < one + (n - 1) as usize * one / 6, "{n} sequences: {all} bytes, one has {one}");
        }
        let (before, _) = put(1, 900, &mut memory);
        assert_eq!(put(2, 1000, &mut memory).0 - before, one, "what another scope has is not shared");
    }

    #[test]
    fn bytes_in_use_are_those_that_are_there_whatever_comes_and_goes() {
        let mut memory = memory();
        let slot = memory.acquire().unwrap().unwrap();
        for seed in 0..4 {
            println!("seed {seed}");
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut below = |n: usize| rng.next_u32() as usize % n;
            let budget = 3 << 20;
            let mut store = SequenceStore::new(budget);
            let mut lent = Vec::new();
            for step in 0..60 {
                let n = 1 + below(1000);
                let of = tokens(10 * below(3) as u32, below(n + 1), n, 1000 + step);
                match below(5) {
                    0 if !store.stored.is_empty() => lent.push(store.take(below(store.stored.len()))),
                    1 if !store.stored.is_empty() => lent.push(store.lend(below(store.stored.len()))),
                    _ => {
                        let beside = store.most_like(Scope(1), &AdapterSet::default(), &of);
                        let state = sequence(&mut memory, &slot, &of, beside.as_deref());
                        let plain = sequence(&mut memory, &slot, &of, None);
                        assert_eq!(state, plain, "step {step}");
                        store.put(Scope(1), Arc::new(state));
                    }
                }
                assert_eq!(store.n_bytes(), recounted(&store), "step {step}");
                assert!(store.n_bytes() <= budget, "step {step}: {} bytes", store.n_bytes());
            }
            while !store.stored.is_empty() {
                store.take(0);
            }
            assert!(store.n_bytes() == 0 && store.parts.is_empty());
            assert!(lent.iter().all(|state| state.state.len() == state.tokens.len()));
        }
    }
}
