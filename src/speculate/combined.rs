//! Drafts by prompt lookup where the context repeats and lookup has been accepted more often than the MTP layer, else by the
//! MTP layer.
//! Owns the choice. The MTP layer learns of every token in either case, so that its KV cells have no holes.

use engine::{
    DraftRequest, ObservedSequence, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange, TargetState,
};
use model::{RunError, Runner};
use text::TokenId;

use crate::ngram::Ngram;

/// Weight of a new draft in what is known of the MTP layer's.
const WEIGHT: f64 = 0.1;

/// How often a draft token of the MTP layer is accepted, before any was verified.
const FIRST_CHANCE: f64 = 0.7;

/// Prompt lookup and an MTP layer.
pub struct CombinedProposer {
    mtp: Box<dyn Proposer>,
    ngram: Ngram,
    /// For each slot, the share of the MTP layer's draft tokens that were accepted.
    accepted: Vec<f64>,
}

impl CombinedProposer {
    /// `mtp` goes first in everything that both do.
    pub fn new(mtp: Box<dyn Proposer>, ngram: Ngram) -> Self {
        Self { mtp, ngram, accepted: Vec::new() }
    }

    fn accepted(&mut self, slot: usize) -> &mut f64 {
        if self.accepted.len() <= slot {
            self.accepted.resize(slot + 1, FIRST_CHANCE);
        }
        &mut self.accepted[slot]
    }
}

impl Proposer for CombinedProposer {
    fn info(&self) -> ProposerInfo {
        let mtp = self.mtp.info();
        ProposerInfo { max_depth: mtp.max_depth.max(self.ngram.info().max_depth), ..mtp }
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        if let SequenceChange::Begin { .. } = change {
            *self.accepted(slot) = FIRST_CHANCE;
        }
        self.ngram.change(slot, change)?;
        self.mtp.change(slot, change)
    }

    fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        let looked_up: Vec<bool> = step.sequences.iter().map(|s| self.ngram.is_verifying(s.slot)).collect();
        for (s, _) in step.sequences.iter().zip(&looked_up).filter(|(_, looked_up)| !**looked_up) {
            let accepted = self.accepted(s.slot);
            for i in 0..s.n_drafted.min(s.n_accepted + 1) {
                *accepted += WEIGHT * (f64::from(u8::from(i < s.n_accepted)) - *accepted);
            }
        }
        // Neither is to learn from drafts of the other, nor from the time of steps that held them.
        let of_mtp = step.sequences.iter().zip(&looked_up).map(|(s, looked_up)| match looked_up {
            true => ObservedSequence { n_drafted: 0, n_accepted: 0, ..*s },
            false => *s,
        });
        let of_mtp: Vec<_> = of_mtp.collect();
        let only_lookup = of_mtp.iter().all(|s| s.n_drafted == 0);
        self.ngram.observe(runner, &ObservedStep { took: step.took.filter(|_| only_lookup), built: None, ..*step })?;
        let alone = !looked_up.contains(&true);
        let (took, built) = (step.took.filter(|_| alone), step.built.filter(|_| alone));
        self.mtp.observe(runner, &ObservedStep { sequences: &of_mtp, took, built, ..*step })
    }

    fn propose(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let mut drafts = vec![Vec::new(); requests.len()];
        let mut left = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            let found = self.ngram.find(request);
            // A warm-up measures what drafts of the MTP layer cost.
            let better = !request.warm_up && !found.tokens.is_empty() && !found.retry;
            if better && found.chance >= *self.accepted(request.slot) {
                self.ngram.made(request.slot, &found);
                drafts[i] = found.tokens;
            } else {
                left.push(i);
            }
        }
        let of_mtp: Vec<DraftRequest> = left.iter().map(|&i| requests[i]).collect();
        if !of_mtp.is_empty() {
            for (i, draft) in left.into_iter().zip(self.mtp.propose(runner, target, &of_mtp)?) {
                drafts[i] = draft;
            }
        }
        Ok(drafts)
    }

    // Lookup is made anew from the tokens.
    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        self.mtp.save(slot, n_tokens)
    }
}
