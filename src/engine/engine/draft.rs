//! Drafting: generations that have no draft ask the proposer for one.

use std::time::{Duration, Instant};

use super::Engine;
use crate::proposer::{DraftRequest, TargetState};
use crate::sequence::{Sequence, millis};

impl Engine {
    /// Drafts for generations that are running and have none. The step's clock begins here.
    pub(super) fn draft(&mut self) {
        let start = Instant::now();
        (self.clock.start, self.clock.computed, self.clock.drafting) = (start, self.computed(), Duration::ZERO);
        let (requests, sequences) = self.draft_requests(false);
        if requests.is_empty() {
            return;
        }
        let Self { state, cache, runner, .. } = self;
        let slots = |slot: usize| &cache.get(slot).slot;
        let drafts = state.drafter.propose(runner, &TargetState::new(&state.memory, &slots), &requests);
        let took = millis(start.elapsed());
        for (i, draft) in sequences.into_iter().zip(drafts) {
            self.sequences[i].take_draft(draft);
            self.sequences[i].timings.draft_ms += took;
        }
    }

    /// Requests for generations that have no draft and could take one, in ascending order of their slots, and their indices
    /// among the sequences. `later`: those too whose reader has still to take what the last step gave.
    pub(super) fn draft_requests(&self, later: bool) -> (Vec<DraftRequest>, Vec<usize>) {
        let depth = self.state.drafter.info().max_depth.min(self.policy.max_draft());
        let ready = |s: &Sequence| {
            !s.finished && !s.is_prefill() && !s.is_cancelled() && (later || !s.is_blocked()) && s.pending.len() == 1
        };
        let n_ctx = self.config.n_ctx(self.model.facts());
        // A context that will shift may have less room than the generation is long.
        let room = |s: &Sequence| n_ctx.saturating_sub(self.cache.get(s.slot).tokens.len() + s.pending.len());
        let request = |s: &Sequence| DraftRequest {
            slot: s.slot,
            max: s.max_draft().min(depth).min(room(s)),
            gumbel: s.gumbel_plan(),
            p_min: s.draft_p_min(),
            warm_up: self.warming_up,
        };
        let without = self.sequences.iter().enumerate().filter(|(_, s)| ready(s) && s.draft.is_empty());
        let mut requests: Vec<_> = without.map(|(i, s)| (request(s), i)).filter(|(r, _)| r.max > 0).collect();
        requests.sort_unstable_by_key(|(r, _)| r.slot);
        requests.into_iter().unzip()
    }
}
