//! What a forward pass leaves behind: sequences go on, the proposer learns, checkpoints are taken, costs are booked.

use std::ops::Range;
use std::time::Instant;

use model::RunError;

use super::Engine;
use super::forward::Batch;
use crate::batch::ScheduledSequence;
use crate::proposer::{Built, ObservedSequence, ObservedStep};
use crate::sequence::millis;

/// So many steps in turn may build graphs before that counts as what such steps cost: on a GPU one depth has a graph for each state
/// that a step may begin from.
const FEW_BUILDS: u32 = 12;

impl Engine {
    /// Books the tokens of a batch that were kept, as many of each sequence as `kept` says; an error ends its sequences.
    pub(super) fn commit(&mut self, batch: &Batch, kept: Result<Vec<usize>, RunError>) {
        match kept {
            Ok(kept) => {
                self.advance(batch, &kept);
                self.observe(batch, &kept);
                self.keep_state(batch, &kept);
            }
            Err(error) => {
                tracing::error!(%error, "a batch was not computed");
                batch.scheduled.iter().for_each(|p| self.sequences[p.index].spoil(error.to_string()));
            }
        }
        // What came until here belongs to this batch, but for the next one's share of the drafting.
        let now = Instant::now();
        self.clock.start = now.checked_sub(self.clock.drafting).unwrap_or(now);
        self.clock.computed = self.computed();
    }

    /// Tokens that were kept are no longer pending.
    fn advance(&mut self, batch: &Batch, kept: &[usize]) {
        let n_embd = self.model.hparams().n_embd;
        for (p, span) in batch.spans(kept) {
            let Self { sequences, output, runner, .. } = self;
            let s = &mut sequences[p.index];
            if !s.is_spoiled {
                s.pending.drain(..p.n_tokens - p.n_draft);
                s.pool(hidden_of(&output.hidden, &span, n_embd), n_embd, |pooled| runner.rank(pooled));
            }
        }
    }

    /// Tells the proposer what was kept, and what the step cost where that tells something.
    fn observe(&mut self, batch: &Batch, kept: &[usize]) {
        if self.state.drafter.0.is_none() {
            return;
        }
        let (expected, _) = self.draft_requests(true);
        let n_embd = self.model.n_embd_mtp();
        let mut observed = Vec::with_capacity(kept.len());
        for (p, span) in batch.spans(kept) {
            let s = &self.sequences[p.index];
            // Nobody is to learn from what is forgotten.
            if !s.is_spoiled {
                observed.push(ObservedSequence {
                    slot: s.slot,
                    tokens: &batch.tokens[span.clone()],
                    hidden: hidden_of(self.output.mtp_hidden(), &span, n_embd),
                    hidden_before: &self.cache.get(s.slot).hidden,
                    next: s.pending.front().copied().filter(|_| p.samples),
                    n_drafted: p.n_draft,
                    n_accepted: span.len() + p.n_draft - p.n_tokens,
                });
            }
        }
        let builds = self.computed().n_builds != self.clock.computed.n_builds;
        self.clock.n_building = if builds { self.clock.n_building + 1 } else { 0 };
        // A graph that is built once is no cost of its depth; built again and again it is one.
        let usual = self.clock.n_building == 0 || self.clock.n_building > FEW_BUILDS;
        let alike = |p: &ScheduledSequence| p.samples && p.n_tokens == 1 + p.n_draft;
        let alike = observed.len() == kept.len() && batch.scheduled.iter().all(alike);
        let start = Instant::now();
        let took = (alike && usual).then(|| start - self.clock.start);
        let n_graphs = self.computed().n_builds.saturating_sub(self.clock.computed.n_builds);
        // On a CPU a graph costs next to nothing, and what a step took longer has other reasons.
        let dear = builds && !self.runner.model().is_on_cpu();
        let built = (alike && dear).then(|| Built { n_graphs, took: start - self.clock.start });
        tracing::debug!(
            n_seqs = observed.len(),
            n_drafted = observed.first().map(|s| s.n_drafted),
            n_accepted = observed.iter().map(|s| s.n_accepted).sum::<usize>(),
            took_us = (start - self.clock.start).as_micros() as u64,
            n_builds = n_graphs,
            alike,
            "engine step"
        );
        let step = ObservedStep { sequences: &observed, took, built, expected: &expected, warm_up: self.warming_up };
        self.state.drafter.observe(&mut self.runner, &step);
        let took = millis(start.elapsed());
        for p in &batch.scheduled {
            let timings = &mut self.sequences[p.index].timings;
            // A token beyond the prompt's last belongs to a generation, forced tokens or not.
            timings.draft_ms += if timings.steps > 0 { took } else { 0.0 };
        }
    }

    /// The slots hold the tokens that were kept; counts what that took, and takes checkpoints that are due.
    fn keep_state(&mut self, batch: &Batch, kept: &[usize]) {
        let n_embd = self.model.n_embd_mtp();
        let info = self.state.drafter.info();
        // Less than before when drafting has just been given up.
        let computed = self.computed();
        for (p, span) in batch.spans(kept) {
            let s = &mut self.sequences[p.index];
            if s.timings.steps > 0 {
                s.timings.launches += computed.n_runs.saturating_sub(self.clock.computed.n_runs);
                s.timings.bytes_copied += computed.n_bytes_copied.saturating_sub(self.clock.computed.n_bytes_copied);
            }
            if s.is_spoiled {
                continue;
            }
            let hidden = if info.wants_hidden { self.output.mtp_hidden() } else { &[] };
            let hidden = hidden_of(hidden, &span, n_embd);
            self.cache.extend(s.slot, &batch.tokens[span], hidden, info.n_hidden.max(1) * n_embd);
            if s.takes_checkpoint()
                && let Err(error) = self.cache.checkpoint(&self.state.memory, s.slot)
            {
                tracing::warn!(%error, "no checkpoint: the next turn computes more");
            }
        }
    }
}

/// The hidden states of these tokens, `[n_embd]` each; empty where the pass gave none.
fn hidden_of<'h>(hidden: &'h [f32], tokens: &Range<usize>, n_embd: usize) -> &'h [f32] {
    if hidden.is_empty() { hidden } else { &hidden[tokens.start * n_embd..tokens.end * n_embd] }
}
