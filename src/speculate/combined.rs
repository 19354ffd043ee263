//! Prompt lookup, alone or beside another source of drafts: drafts that are looked up where these promise more, else those of
//! the other source.
//! Owns who drafted for which sequence. The other source learns of every token in either case, so that its KV cells have no
//! holes; what was looked up tells it nothing of its own drafts.

use std::time::{Duration, Instant};

use engine::{
    DraftRequest, ObservedSequence, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange, TargetState,
};
use model::{RunError, Runner};
use text::TokenId;

use crate::calibration::{Calibration, Keeping, OfSource};
use crate::lookup_choice::{By, Candidate, Lengths, LookupChoice};
use crate::ngram::{Found, Ngram};

/// Prompt lookup, and another source if there is one.
pub struct CombinedProposer {
    other: Option<Box<dyn Proposer>>,
    ngram: Ngram,
    choice: LookupChoice,
    /// By slot: the draft that is verified now was looked up.
    looked_up: Vec<bool>,
    /// By slot: the other source's draft, where a looked-up one stands in its place.
    exchanged: Vec<Vec<TokenId>>,
    /// Time in which the other source made the drafts that are verified now.
    drafting: Duration,
    /// Where what was measured goes: of steps, and of the other source.
    kept: Option<[OfSource; 2]>,
    /// When it goes there.
    keeping: Keeping,
}

impl CombinedProposer {
    /// `other` goes first in everything that both do.
    pub fn new(other: Box<dyn Proposer>, ngram: Ngram) -> Self {
        let lengths = ngram.depth().into();
        Self::with(Some(other), ngram, lengths)
    }

    /// Prompt lookup alone.
    pub fn alone(ngram: Ngram) -> Self {
        let lengths = ngram.depth().into();
        Self::with(None, ngram, lengths)
    }

    fn with(other: Option<Box<dyn Proposer>>, ngram: Ngram, lengths: Lengths) -> Self {
        let n_slots = ngram.n_slots();
        let of_other = other.as_ref().map(|other| (n_slots, other.info().max_depth.max(1)));
        Self {
            choice: LookupChoice::new(lengths, ngram.max_depth(), of_other),
            other,
            ngram,
            looked_up: vec![false; n_slots],
            exchanged: vec![Vec::new(); n_slots],
            drafting: Duration::ZERO,
            kept: None,
            keeping: Keeping::new(),
        }
    }

    /// The target's graphs do not depend on slots.
    pub(crate) fn serving_all_slots(mut self) -> Self {
        self.choice.serve_all_slots();
        self
    }

    /// Begins with what earlier engines measured, and keeps there what this one does.
    pub(crate) fn calibrate(&mut self, calibration: &Calibration) {
        let kept = ["verification", "beside lookup"].map(|name| calibration.of(name));
        self.choice.begin_with(&kept[0].known(), &kept[1].known());
        self.kept = Some(kept);
    }

    /// Keeps what was measured for later engines, where there is enough of it.
    fn keep(&mut self) {
        let Some(kept) = self.kept.as_ref().filter(|_| self.keeping.keeps()) else { return };
        let (steps, other) = self.choice.known();
        for (of, known) in kept.iter().zip([steps, other]) {
            known.into_iter().for_each(|known| of.keep(known));
        }
    }

    /// Learns what drafts of the other source are worth, and what steps cost.
    fn learn(&mut self, step: &ObservedStep<'_>) {
        let by_lookup = step.sequences.iter().any(|s| self.looked_up[s.slot]);
        if !step.warm_up {
            for s in step.sequences {
                let (n_compared, n_right) = match self.looked_up[s.slot] {
                    true => compared(&self.exchanged[s.slot], s),
                    false => (s.n_drafted, s.n_accepted),
                };
                self.choice.verified(s.slot, n_compared, n_right);
            }
        }
        // Only a step whose sequences are all alike tells what so many tokens cost.
        let Some(first) = step.sequences.first() else { return };
        if step.sequences.iter().any(|s| s.n_drafted != first.n_drafted) {
            return;
        }
        let kind = (first.slot, step.sequences.len(), first.n_drafted);
        if step.built.is_some() || step.took.is_some() {
            self.choice.built(kind, step.built);
        }
        if let Some(took) = step.took {
            self.choice.took((kind.1, kind.2), took, self.drafting, by_lookup);
            self.keeping.measured();
        }
    }
}

/// How many tokens of a draft that was not verified can be compared with what came, up to the first that is wrong, and how many are
/// right.
fn compared(draft: &[TokenId], s: &ObservedSequence<'_>) -> (usize, usize) {
    let came = s.tokens.iter().skip(1).copied().chain(s.next);
    let pairs = || draft.iter().copied().zip(came.clone());
    let n_right = pairs().take_while(|(drafted, came)| drafted == came).count();
    (pairs().count().min(n_right + 1), n_right)
}

impl Drop for CombinedProposer {
    fn drop(&mut self) {
        self.keep();
    }
}

impl Proposer for CombinedProposer {
    fn info(&self) -> ProposerInfo {
        let other = self.other.as_ref().map(|other| other.info()).unwrap_or_default();
        ProposerInfo { max_depth: other.max_depth.max(self.ngram.max_depth()), ..other }
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        // What is loaded or copied begins before it is used, and the index is made anew from the tokens.
        if let SequenceChange::Begin { tokens, .. } = change {
            self.ngram.begin(slot, tokens);
            self.choice.begin(slot);
            if self.keeping.is_due() {
                self.keep();
            }
        }
        self.looked_up[slot] = false;
        match &mut self.other {
            Some(other) => other.change(slot, change),
            None => Ok(()),
        }
    }

    fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        self.learn(step);
        for s in step.sequences {
            self.ngram.extend(s.slot, s.tokens, s.next);
        }
        let mut alone = true;
        let of_other = step.sequences.iter().map(|s| match std::mem::take(&mut self.looked_up[s.slot]) {
            true => {
                alone = false;
                ObservedSequence { n_drafted: 0, n_accepted: 0, ..*s }
            }
            false => *s,
        });
        let of_other: Vec<_> = of_other.collect();
        let Some(other) = &mut self.other else { return Ok(()) };
        // It is not to learn from the time of steps that held other drafts.
        let (took, built) = (step.took.filter(|_| alone), step.built.filter(|_| alone));
        other.observe(runner, &ObservedStep { sequences: &of_other, took, built, ..*step })
    }

    fn propose(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        // A warm-up measures what drafts of the other source cost.
        let mut found = |r: &DraftRequest| if r.warm_up { Found::default() } else { self.ngram.find(r.slot, r.max) };
        let (mut drafts, candidates): (Vec<_>, Vec<_>) = requests
            .iter()
            .map(|r| (r, found(r)))
            .map(|(r, found)| (found.tokens, Candidate { slot: r.slot, most: r.max, expected: found.expected }))
            .unzip();
        let by = self.choice.choose(&candidates);
        let asked = requests.iter().zip(&by).filter(|(_, by)| **by == By::Other);
        let asked: Vec<DraftRequest> = asked.map(|(request, _)| *request).collect();
        let start = Instant::now();
        let made = match &mut self.other {
            Some(other) if !asked.is_empty() => other.propose(runner, target, &asked)?,
            _ => Vec::new(),
        };
        self.drafting = start.elapsed();
        let mut made = made.into_iter();
        for (i, by) in by.into_iter().enumerate() {
            let (n_looked_up, of_other) = match by {
                By::Lookup(n) => (n, Vec::new()),
                By::Other => {
                    let draft = made.next().unwrap_or_default();
                    let exchanged = requests.len() > 1 && self.choice.is_better(&candidates[i], draft.len());
                    (if exchanged { draft.len() } else { 0 }, draft)
                }
            };
            let slot = requests[i].slot;
            self.looked_up[slot] = n_looked_up > 0;
            if n_looked_up > 0 {
                drafts[i].truncate(n_looked_up);
                self.exchanged[slot] = of_other;
            } else {
                drafts[i] = of_other;
            }
        }
        Ok(drafts)
    }

    // Lookup is made anew from the tokens.
    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        self.other.as_mut().map_or(Ok(Vec::new()), |other| other.save(slot, n_tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_that_was_exchanged_is_compared_as_far_as_tokens_came() {
        let ids = |ids: &[u32]| ids.iter().copied().map(TokenId).collect::<Vec<_>>();
        // The token that was known before the step, one that was accepted, and the one sampled after it.
        let tokens = ids(&[1, 2]);
        let sequence = ObservedSequence {
            slot: 0,
            tokens: &tokens,
            hidden: &[],
            hidden_before: &[],
            next: Some(TokenId(3)),
            n_drafted: 4,
            n_accepted: 1,
        };
        assert_eq!(compared(&ids(&[2, 3, 4, 5]), &sequence), (2, 2), "of the others nothing is known");
        assert_eq!(compared(&ids(&[2, 9, 4]), &sequence), (2, 1));
        assert_eq!(compared(&ids(&[9, 3, 4]), &sequence), (1, 0));
        assert_eq!(compared(&[], &sequence), (0, 0));
    }
}
