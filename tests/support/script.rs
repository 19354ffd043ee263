//! A proposer that knows the answers: it drafts as long as it is told to, and as much of that right as it is told to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::{Ask, Observed, Proposer};
use model::{RunError, Runner};
use text::TokenId;

/// The longest draft.
pub const MAX_DEPTH: usize = 6;

/// What a script did, to be read while the engine runs.
#[derive(Debug, Default)]
pub struct Tally {
    /// Drafted tokens that are what the model says, in front of the first that is not.
    pub right: usize,
    pub drafted: usize,
    /// How often a draft of so many tokens began with so many right ones.
    pub seen: HashMap<(usize, usize), usize>,
}

/// Drafts from known answers.
pub struct Script {
    /// Prompts with their answers.
    answers: Vec<(Vec<TokenId>, Vec<TokenId>)>,
    /// Lengths of drafts and how much of them is right, in turn.
    plan: Vec<(usize, usize)>,
    turn: usize,
    /// The tokens of each slot, and whether the last of them is still to come again.
    slots: Vec<(Vec<TokenId>, bool)>,
    tally: Arc<Mutex<Tally>>,
}

/// Every length with every number of right tokens.
pub fn every_draft() -> Vec<(usize, usize)> {
    (1..=MAX_DEPTH).flat_map(|n| (0..=n).map(move |right| (n, right))).collect()
}

impl Script {
    pub fn new(
        answers: Vec<(Vec<TokenId>, Vec<TokenId>)>,
        plan: Vec<(usize, usize)>,
        n_slots: usize,
    ) -> (Self, Arc<Mutex<Tally>>) {
        let tally = Arc::<Mutex<Tally>>::default();
        let slots = vec![(Vec::new(), false); n_slots];
        (Self { answers, plan, turn: 0, slots, tally: Arc::clone(&tally) }, tally)
    }

    /// What the model will say after these tokens, as far as that is known.
    fn next(&self, tokens: &[TokenId]) -> &[TokenId] {
        let found = self.answers.iter().find_map(|(prompt, answer)| {
            let said = tokens.strip_prefix(&prompt[..])?;
            answer.strip_prefix(said)
        });
        found.unwrap_or_default()
    }
}

impl Proposer for Script {
    fn max_depth(&self) -> usize {
        MAX_DEPTH
    }

    fn begin(&mut self, slot: usize, tokens: &[TokenId], _: Option<&[f32]>) -> Result<(), RunError> {
        self.slots[slot] = (tokens.to_vec(), false);
        Ok(())
    }

    fn observe(&mut self, _: &mut Runner, observed: &[Observed<'_>], _: Option<Duration>) -> Result<(), RunError> {
        for o in observed {
            let (tokens, ahead) = &mut self.slots[o.slot];
            if std::mem::take(ahead) {
                assert_eq!(tokens.pop().as_ref(), o.tokens.first(), "the picked token is computed next");
            }
            tokens.extend(o.tokens.iter().chain(&o.next));
            *ahead = o.next.is_some();
        }
        Ok(())
    }

    fn propose(&mut self, _: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        let mut drafts = Vec::new();
        for ask in asks {
            let (n, n_right) = self.plan[self.turn % self.plan.len()];
            self.turn += 1;
            let known = self.next(&self.slots[ask.slot].0);
            let n = n.min(ask.max);
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
