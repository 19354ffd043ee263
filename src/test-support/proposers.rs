//! Proposers that know what will be generated, that lie, and that tell what another one does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use engine::{DraftRequest, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange, TargetState};
use model::{RunError, Runner};
use speculate::DraftAhead;
use text::TokenId;

use crate::random::Random;

/// The longest draft.
pub const MAX_DEPTH: usize = 6;

/// Drafts random tokens of a vocabulary: of any length, and right by chance only.
pub struct Liar {
    /// What is drafted.
    pub random: Random,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
}

impl Proposer for Liar {
    fn info(&self) -> ProposerInfo {
        ProposerInfo { max_depth: MAX_DEPTH, ..ProposerInfo::default() }
    }

    fn propose(
        &mut self,
        _: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let Self { random, n_vocab } = self;
        let mut draft = |request: &DraftRequest| {
            let n = random.below(request.max + 1);
            (0..n).map(|_| TokenId(random.below(*n_vocab) as u32)).collect()
        };
        Ok(requests.iter().map(&mut draft).collect())
    }
}

/// What a script did, to be read while the engine runs.
#[derive(Debug, Default)]
pub struct Tally {
    /// Draft tokens that are what the model says, in front of the first that is not.
    pub right: usize,
    /// Draft tokens.
    pub drafted: usize,
    /// How often a draft of so many tokens began with so many right ones.
    pub seen: HashMap<(usize, usize), usize>,
}

/// Knows the completions: drafts as long as it is told to, and as much of that right as it is told to.
pub struct Script {
    /// Prompts with their completions.
    known: Vec<(Vec<TokenId>, Vec<TokenId>)>,
    /// Lengths of drafts and how much of them is right, one after the other.
    plan: Vec<(usize, usize)>,
    n_drafts: usize,
    /// The tokens of each slot, and whether the last of them is still to come again.
    slots: Vec<(Vec<TokenId>, bool)>,
    tally: Arc<Mutex<Tally>>,
}

/// Every length with every number of right tokens.
pub fn every_draft() -> Vec<(usize, usize)> {
    (1..=MAX_DEPTH).flat_map(|n| (0..=n).map(move |right| (n, right))).collect()
}

impl Script {
    /// Drafts from known completions by a plan.
    pub fn new(
        known: Vec<(Vec<TokenId>, Vec<TokenId>)>,
        plan: Vec<(usize, usize)>,
        n_slots: usize,
    ) -> (Self, Arc<Mutex<Tally>>) {
        let tally = Arc::<Mutex<Tally>>::default();
        let slots = vec![(Vec::new(), false); n_slots];
        (Self { known, plan, n_drafts: 0, slots, tally: Arc::clone(&tally) }, tally)
    }

    /// What the model will say after these tokens, as far as that is known.
    fn next(&self, tokens: &[TokenId]) -> &[TokenId] {
        let found = self.known.iter().find_map(|(prompt, completion)| {
            let said = tokens.strip_prefix(&prompt[..])?;
            completion.strip_prefix(said)
        });
        found.unwrap_or_default()
    }
}

impl Proposer for Script {
    fn info(&self) -> ProposerInfo {
        ProposerInfo { max_depth: MAX_DEPTH, ..ProposerInfo::default() }
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        if let SequenceChange::Begin { tokens, .. } = change {
            self.slots[slot] = (tokens.to_vec(), false);
        }
        Ok(())
    }

    fn observe(&mut self, _: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        for s in step.sequences {
            let (tokens, ahead) = &mut self.slots[s.slot];
            if std::mem::take(ahead) {
                assert_eq!(tokens.pop().as_ref(), s.tokens.first(), "the sampled token is computed next");
            }
            tokens.extend(s.tokens.iter().chain(&s.next));
            *ahead = s.next.is_some();
        }
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let mut drafts = Vec::new();
        for request in requests {
            let (n, n_right) = self.plan[self.n_drafts % self.plan.len()];
            self.n_drafts += 1;
            let known = self.next(&self.slots[request.slot].0);
            let n = n.min(request.max);
            let right = |i: usize| known.get(i).copied();
            // Past what is known, or where it is to be wrong: another token than the right one.
            let wrong = |i: usize| TokenId(right(i).map_or(7, |t| (t.0 + 1) % 100));
            let token = |i| right(i).filter(|_| i < n_right).unwrap_or_else(|| wrong(i));
            let draft: Vec<TokenId> = (0..n).map(token).collect();
            let n_right = n_right.min(n).min(known.len());
            let mut tally = self.tally.lock().expect("no test panics with it");
            tally.drafted += n;
            tally.right += n_right;
            *tally.seen.entry((n, n_right)).or_default() += 1;
            drafts.push(draft);
        }
        Ok(drafts)
    }
}

/// What is told of drafts: the requests, the drafts for them, and the number of graphs that they took.
type AfterDraft = dyn FnMut(&[DraftRequest], &[Vec<TokenId>], u64) + Send;

/// Another proposer, with something done before each of its works and after each of its drafts.
pub struct Watched<P> {
    proposer: P,
    before: Box<dyn Fn() + Send>,
    after: Box<AfterDraft>,
}

impl<P: Proposer> Watched<P> {
    /// `before` is called before each work, `after` after each draft.
    pub fn new(
        proposer: P,
        before: impl Fn() + Send + 'static,
        after: impl FnMut(&[DraftRequest], &[Vec<TokenId>], u64) + Send + 'static,
    ) -> Self {
        Self { proposer, before: Box::new(before), after: Box::new(after) }
    }
}

impl<P: Proposer> Proposer for Watched<P> {
    fn info(&self) -> ProposerInfo {
        self.proposer.info()
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        self.proposer.change(slot, change)
    }

    fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        (self.before)();
        self.proposer.observe(runner, step)
    }

    fn propose(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        self.watched(runner, requests, |proposer, runner| proposer.propose(runner, target, requests))
    }

    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        self.proposer.save(slot, n_tokens)
    }
}

impl<P> Watched<P> {
    fn watched(
        &mut self,
        runner: &mut Runner,
        requests: &[DraftRequest],
        propose: impl FnOnce(&mut P, &mut Runner) -> Result<Vec<Vec<TokenId>>, RunError>,
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        (self.before)();
        let n_runs = runner.stats().n_runs;
        let drafts = propose(&mut self.proposer, runner)?;
        (self.after)(requests, &drafts, runner.stats().n_runs - n_runs);
        Ok(drafts)
    }
}

impl<P: DraftAhead> DraftAhead for Watched<P> {
    fn draft(&mut self, runner: &mut Runner, requests: &[DraftRequest]) -> Result<Vec<Vec<TokenId>>, RunError> {
        self.watched(runner, requests, |proposer, runner| proposer.draft(runner, requests))
    }

    fn prepare(&mut self) {
        self.proposer.prepare();
    }

    fn draft_ahead(&mut self, runner: &mut Runner, requests: &[DraftRequest]) -> Result<(), RunError> {
        (self.before)();
        self.proposer.draft_ahead(runner, requests)
    }
}
