//! One step: drafts, a pass over the rows of all parts, picks, and what follows from them for state, proposer and
//! checkpoints. Owns the order of these. The loop around it is `run.rs`.

use std::time::Instant;

use model::{Pass, Rows, RunError};
use text::TokenId;

use super::State;
use crate::proposer::{Ask, Observed, stop_drafting};
use crate::schedule::Part;
use crate::sequence::{NOT_FINITE, Scores, Sequence, millis};

/// So many cycles in turn may build graphs before that counts as what such cycles cost.
const FEW_BUILDS: u32 = 4;

impl State {
    pub(super) fn step(&mut self, mut parts: Vec<Part>) {
        self.stats.n_steps += 1;
        parts.sort_by_key(|p| self.cache.get(self.sequences[p.sequence].slot).slot.index());
        for part in &parts {
            self.sequences[part.sequence].last_step = self.stats.n_steps;
        }
        let drafting = self.turn.0.elapsed();
        let passes = self.company.passes(parts, |p| self.sequences[p.sequence].is_prefill());
        let n_passes = passes.len() as u32;
        for (i, parts) in passes.into_iter().enumerate() {
            if i > 0 {
                // What came before belongs to others, but for its share of the drafting.
                let now = Instant::now();
                self.turn = (now.checked_sub(drafting / n_passes).unwrap_or(now), self.computed());
            }
            match self.compute(&parts) {
                Ok(kept) => self.after(&parts, &kept),
                Err(error) => {
                    tracing::error!(%error, "a step was not computed");
                    parts.iter().for_each(|part| self.sequences[part.sequence].spoil(error.to_string()));
                }
            }
        }
    }

    /// Tells the proposer that a slot was taken up, and at which tokens it stands.
    pub(super) fn begin(&mut self, slot: usize) {
        let Some(proposer) = &mut self.proposer else { return };
        // One that came with a loaded slot may hold anything.
        let hidden = self.cache.hidden(slot).filter(|row| row.iter().all(|x| x.is_finite()));
        if let Err(error) = proposer.begin(slot, &self.cache.get(slot).tokens, hidden) {
            self.stop_drafting(&error);
        }
    }

    /// Cells of the slot may hold NaN or infinity.
    pub(super) fn spoil(&mut self, slot: usize) {
        if let Err(error) = self.memory.spoil(&self.cache.get(slot).slot) {
            tracing::error!(%error, slot, "the cells of a slot will not be cleared");
        }
    }

    /// Gives back the slot of a sequence that ended badly, empty: what others keep beside it goes, too.
    pub(super) fn forget_spoiled(&mut self, slot: usize) {
        self.spoil(slot);
        self.cache.forget(&mut self.memory, slot);
        if let Some(Err(error)) = self.proposer.as_mut().map(|p| p.forget(slot)) {
            self.stop_drafting(&error);
        }
    }

    /// Answers that have no draft and could take one, in ascending order of their slots, with their numbers among the
    /// sequences. `later`: those too whose reader has still to take what the last step gave.
    fn asks(&self, later: bool) -> Vec<(Ask, usize)> {
        let depth = self.proposer.as_ref().map_or(0, |p| p.max_depth()).min(self.company.max_draft());
        let ready = |s: &Sequence| {
            !s.finished && !s.is_prefill() && !s.is_cancelled() && (later || !s.is_blocked()) && s.pending.len() == 1
        };
        let ask = |s: &Sequence| {
            let (slot, max, ahead) = (s.slot, s.max_draft().min(depth), s.ahead());
            Ask { slot, max, ahead, p_min: s.draft_p_min() }
        };
        let all = self.sequences.iter().enumerate().filter(|(_, s)| ready(s) && s.draft.is_empty());
        let mut asks: Vec<_> = all.map(|(i, s)| (ask(s), i)).filter(|(ask, _)| ask.max > 0).collect();
        asks.sort_unstable_by_key(|(ask, _)| ask.slot);
        asks
    }

    /// Drafts for answers that are running and have none.
    pub(super) fn propose(&mut self) {
        let asks = self.asks(false);
        let Some(proposer) = self.proposer.as_mut().filter(|_| !asks.is_empty()) else { return };
        let only: Vec<Ask> = asks.iter().map(|(ask, _)| *ask).collect();
        let start = Instant::now();
        match proposer.propose(&mut self.runner, &only) {
            Ok(drafts) => {
                let took = millis(start.elapsed());
                for ((_, i), draft) in asks.iter().zip(drafts) {
                    self.sequences[*i].take_draft(draft);
                    self.sequences[*i].timings.draft_ms += took;
                }
            }
            Err(error) => self.stop_drafting(&error),
        }
    }

    /// Goes on without drafts: answers are the same, only slower.
    fn stop_drafting(&mut self, error: &RunError) {
        stop_drafting(&mut self.proposer, error);
    }

    /// One pass over the parts' rows. Picks tokens and keeps the rows that agree with them; gives the numbers of rows
    /// kept.
    fn compute(&mut self, parts: &[Part]) -> Result<Vec<usize>, RunError> {
        let slots: Vec<_> =
            parts.iter().map(|p| (&self.cache.get(self.sequences[p.sequence].slot).slot, p.n_computed())).collect();
        let n_snapshots = parts.iter().map(Part::n_snapshots).max().unwrap_or(1);
        let txn = self.memory.begin(&slots, n_snapshots)?;
        let mut tokens: Vec<TokenId> = Vec::with_capacity(txn.n_rows());
        let mut rows = Vec::with_capacity(parts.len());
        for p in parts {
            let s = &self.sequences[p.sequence];
            tokens.extend(s.pending.iter().take(p.n_rows - p.n_draft));
            if p.samples {
                rows.extend(tokens.len() - 1..tokens.len() + p.n_draft + p.n_pad);
            }
            tokens.extend_from_slice(&s.draft);
            tokens.extend(std::iter::repeat_n(TokenId(0), p.n_pad));
        }
        let embeds = parts.iter().any(|p| self.sequences[p.sequence].embeds());
        let hidden = embeds || self.proposer.as_ref().is_some_and(|p| p.wants_hidden());
        let start = Instant::now();
        // From a GPU the logits of a large vocabulary take longer to come than ids do.
        let best = self.model.weights().device().kind() != ggml::DeviceKind::Cpu
            && parts.iter().all(|p| !p.samples || self.sequences[p.sequence].takes_the_best());
        let rows = if best { Rows::Best(&rows) } else { Rows::Some(&rows) };
        self.runner.run(txn.view(), &Pass { tokens: &tokens, rows, hidden }, &mut self.output)?;
        let took = millis(start.elapsed());
        let (mut first, mut first_row) = (0, 0);
        let mut kept = Vec::with_capacity(parts.len());
        for p in parts {
            let mut n_kept = p.n_rows;
            let s = &mut self.sequences[p.sequence];
            // Not those of a draft, which may be wrong: they are looked at as far as they are right.
            let certain = first_row..first_row + p.n_rows - p.n_draft;
            first_row += p.n_computed();
            if !self.output.rows_are_finite(certain) {
                s.spoil(NOT_FINITE.into());
                first += if p.samples { 1 + p.n_draft + p.n_pad } else { 0 };
                kept.push(n_kept);
                continue;
            }
            if s.is_prefill() {
                s.prompt_advanced(p.n_rows);
            } else {
                s.timings.verify_ms += took;
            }
            if p.samples {
                let output = &self.output;
                let scores = |i: usize| match output.best.get(first + i) {
                    _ if !output.is_finite(first + i) => Scores::NotFinite,
                    Some(best) if !best.is_number() => Scores::NotFinite,
                    Some(best) => Scores::Best(best.token),
                    None => Scores::Logits(output.logits(first + i)),
                };
                let n_right = s.judge(scores, self.model.vocab());
                n_kept = p.n_rows - p.n_draft + n_right;
                first += 1 + p.n_draft + p.n_pad;
            }
            kept.push(n_kept);
        }
        txn.commit(&kept)?;
        self.step_tokens = tokens;
        Ok(kept)
    }

    /// Books the rows that a step kept, tells the proposer, takes checkpoints that are due.
    fn after(&mut self, parts: &[Part], kept: &[usize]) {
        let mut first = 0;
        let mut observed = Vec::with_capacity(parts.len());
        let n_embd = self.model.hparams().n_embd;
        for (part, &n_kept) in parts.iter().zip(kept) {
            let s = &mut self.sequences[part.sequence];
            let tokens = &self.step_tokens[first..first + n_kept];
            let hidden = if self.output.hidden.is_empty() { 0..0 } else { first * n_embd..(first + n_kept) * n_embd };
            first += part.n_computed();
            // Nobody is to learn from what is forgotten.
            if s.is_spoiled {
                continue;
            }
            s.pending.drain(..part.n_rows - part.n_draft);
            self.cache.extend(s.slot, tokens);
            observed.push(Observed {
                slot: s.slot,
                tokens,
                hidden: &self.output.hidden[hidden.clone()],
                next: s.pending.front().copied().filter(|_| part.samples),
                n_drafted: part.n_draft,
                n_accepted: n_kept + part.n_draft - part.n_rows,
            });
            s.pool(&self.output.hidden[hidden.clone()], n_embd);
        }
        let expected: Vec<Ask> = self.asks(true).into_iter().map(|(ask, _)| ask).collect();
        if let Some(proposer) = &mut self.proposer {
            let (start, before) = self.turn;
            let computed = self.runner.stats() + proposer.stats();
            let alike = |p: &Part| p.samples && p.n_rows == 1 + p.n_draft;
            let alike = observed.len() == parts.len() && parts.iter().all(alike);
            self.builds = if computed.n_builds == before.n_builds { 0 } else { self.builds + 1 };
            // A graph that is built once is no cost of its depth; built again and again it is one.
            let usual = self.builds == 0 || self.builds > FEW_BUILDS;
            let took = (alike && usual).then(|| start.elapsed());
            let start = Instant::now();
            let done = proposer.observe(&mut self.runner, &observed, took).and_then(|()| proposer.expect(&expected));
            if let Err(error) = done {
                self.stop_drafting(&error);
            }
            let took = millis(start.elapsed());
            // A row beyond the prompt's last: part of a cycle, forced tokens or not.
            for part in parts {
                let s = &mut self.sequences[part.sequence];
                s.timings.draft_ms += if s.timings.cycles > 0 { took } else { 0.0 };
            }
        }
        // Less than before when drafting has just been given up.
        let computed = self.computed();
        for part in parts {
            let t = &mut self.sequences[part.sequence].timings;
            if t.cycles > 0 {
                t.launches += computed.n_runs.saturating_sub(self.turn.1.n_runs);
                t.bytes_copied += computed.n_bytes_copied.saturating_sub(self.turn.1.n_bytes_copied);
            }
        }
        for part in parts {
            let s = &mut self.sequences[part.sequence];
            if !s.is_spoiled && s.takes_checkpoint() {
                let hidden = self.proposer.as_ref().and_then(|p| p.hidden(s.slot));
                if let Err(error) = self.cache.checkpoint(&self.memory, s.slot, hidden) {
                    tracing::warn!(%error, "no checkpoint: the next turn computes more");
                }
            }
        }
    }
}
