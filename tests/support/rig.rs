//! Runs passes without an engine: one model, one runner with one thread, one memory.

use std::sync::Arc;

use memory::{CacheType, Memory, MemoryConfig, Slot};
use model::{AdapterSet, Model, Pass, PassOutput, Rows, Runner};
use text::TokenId;

/// State for `n_slots` sequences: F32 cells, values transposed, one snapshot.
pub fn exact(n_slots: usize, n_ctx: usize) -> MemoryConfig {
    MemoryConfig {
        n_slots,
        n_ctx,
        type_k: CacheType::F32,
        type_v: CacheType::F32,
        v_transposed: true,
        n_snapshots: 1,
        transactional: false,
        max_rows: None,
        rotate: true,
    }
}

/// A model that computes.
pub struct Rig {
    pub memory: Memory,
    runner: Runner,
    output: PassOutput,
}

impl Rig {
    pub fn new(model: &Arc<Model>, config: MemoryConfig) -> Rig {
        let memory = model.memory(config).expect("state for a tiny model");
        // One thread: those of several runners would spin against each other.
        let runner = Runner::new(Arc::clone(model), 1).expect("the CPU is there");
        Rig { memory, runner, output: PassOutput::default() }
    }

    /// Passes from here on are computed with these adapters.
    pub fn use_adapters(&mut self, adapters: &AdapterSet) {
        self.runner.use_adapters(adapters).expect("adapters that are there");
    }

    pub fn slot(&mut self) -> Slot {
        self.memory.acquire().expect("state can be cleared").expect("a free slot")
    }

    /// Computes all rows of some sequences in one pass and keeps the first `kept` of each; gives the logits of all rows.
    pub fn step_keeping(&mut self, parts: &[(&Slot, &[u32])], n_snapshots: usize, kept: &[usize]) -> Vec<f32> {
        let rows: Vec<_> = parts.iter().map(|(slot, ids)| (*slot, ids.len())).collect();
        let tokens: Vec<_> = parts.iter().flat_map(|(_, ids)| ids.iter().map(|&id| TokenId(id))).collect();
        let txn = self.memory.begin(&rows, n_snapshots).expect("a step that can be made");
        let pass = Pass { tokens: &tokens, rows: Rows::All, hidden: true };
        self.runner.run(txn.view(), &pass, &mut self.output).expect("a pass that can be computed");
        txn.commit(kept).expect("rows that can be kept");
        self.output.logits.clone()
    }

    /// Computes rows of some sequences in one pass and keeps them.
    pub fn step(&mut self, parts: &[(&Slot, &[u32])]) -> Vec<f32> {
        let kept: Vec<_> = parts.iter().map(|(_, ids)| ids.len()).collect();
        self.step_keeping(parts, 1, &kept)
    }

    /// Computes rows of some sequences in one pass and drops the step.
    pub fn step_dropped(&mut self, parts: &[(&Slot, &[u32])], n_snapshots: usize) {
        let rows: Vec<_> = parts.iter().map(|(slot, ids)| (*slot, ids.len())).collect();
        let tokens: Vec<_> = parts.iter().flat_map(|(_, ids)| ids.iter().map(|&id| TokenId(id))).collect();
        let txn = self.memory.begin(&rows, n_snapshots).expect("a step that can be made");
        let pass = Pass { tokens: &tokens, rows: Rows::None, hidden: false };
        self.runner.run(txn.view(), &pass, &mut self.output).expect("a pass that can be computed");
    }

    /// Computes `ids` in pieces of these lengths; gives the logits of all rows.
    pub fn in_pieces(&mut self, slot: &Slot, ids: &[u32], lengths: &[usize]) -> Vec<f32> {
        assert_eq!(lengths.iter().sum::<usize>(), ids.len());
        let mut start = 0;
        let mut all = Vec::new();
        for n in lengths {
            all.extend(self.step(&[(slot, &ids[start..start + n])]));
            start += n;
        }
        all
    }

    /// Hidden rows of the last pass.
    pub fn hidden(&self) -> &[f32] {
        &self.output.hidden
    }

    /// Graphs built so far.
    pub fn n_builds(&self) -> u64 {
        self.runner.stats().n_builds
    }

    /// Bytes of state and of compute buffers.
    pub fn n_bytes(&self) -> usize {
        self.memory.n_bytes() + self.runner.buffer_bytes()
    }

    /// The most likely next token, `n` times, one row a pass after the prompt.
    pub fn greedy(&mut self, slot: &Slot, prompt: &[u32], n: usize) -> Vec<u32> {
        let n_vocab = self.runner.model().hparams().n_vocab;
        let mut tokens = Vec::with_capacity(n);
        let mut logits = self.step(&[(slot, prompt)]);
        while tokens.len() < n {
            let row = &logits[logits.len() - n_vocab..];
            let best = (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32;
            tokens.push(best);
            logits = self.step(&[(slot, &[best])]);
        }
        tokens
    }
}
