//! Drafts by look-up where the context repeats and that has been right more often than the head, else by the head.
//! Owns the choice. The head learns of every token in either case, so that its cells have no holes.

use std::time::Duration;

use engine::{Ask, Observed, Proposer, SavedDraftError};
use model::{RunError, Runner, Stats};
use text::TokenId;

use crate::ngram::Ngram;

/// Weight of a new draft in what is known of the head's.
const WEIGHT: f64 = 0.1;

/// How often a token of the head's drafts is right, before any was judged.
const FIRST_GUESS: f64 = 0.7;

/// Look-up and a head.
pub struct NextNgram<H> {
    head: H,
    ngram: Ngram,
    /// For each slot, the share of the head's drafted tokens that were right.
    right: Vec<f64>,
    rehearsing: bool,
}

impl<H: Proposer> NextNgram<H> {
    /// The head goes first in everything that both do.
    pub fn new(head: H, ngram: Ngram) -> Self {
        Self { head, ngram, right: Vec::new(), rehearsing: false }
    }

    fn right(&mut self, slot: usize) -> &mut f64 {
        if self.right.len() <= slot {
            self.right.resize(slot + 1, FIRST_GUESS);
        }
        &mut self.right[slot]
    }
}

impl<H: Proposer> Proposer for NextNgram<H> {
    fn max_depth(&self) -> usize {
        self.head.max_depth().max(self.ngram.max_depth())
    }

    fn wants_hidden(&self) -> bool {
        self.head.wants_hidden()
    }

    fn begin(&mut self, slot: usize, tokens: &[TokenId], hidden: Option<&[f32]>) -> Result<(), RunError> {
        *self.right(slot) = FIRST_GUESS;
        self.ngram.begin(slot, tokens, hidden)?;
        self.head.begin(slot, tokens, hidden)
    }

    fn forget(&mut self, slot: usize) -> Result<(), RunError> {
        self.ngram.forget(slot)?;
        self.head.forget(slot)
    }

    // Look-up is made anew from the tokens.
    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        self.head.save(slot, n_tokens)
    }

    fn max_saved_bytes(&self) -> usize {
        self.head.max_saved_bytes()
    }

    fn load(&mut self, slot: usize, tokens: &[TokenId], saved: &[u8]) -> Result<(), SavedDraftError> {
        self.head.load(slot, tokens, saved)
    }

    fn hidden(&self, slot: usize) -> Option<&[f32]> {
        self.head.hidden(slot)
    }

    fn observe(
        &mut self,
        runner: &mut Runner,
        observed: &[Observed<'_>],
        took: Option<Duration>,
    ) -> Result<(), RunError> {
        let looked_up: Vec<bool> = observed.iter().map(|o| self.ngram.is_judging(o.slot)).collect();
        for (o, _) in observed.iter().zip(&looked_up).filter(|(_, looked_up)| !**looked_up) {
            let right = self.right(o.slot);
            for i in 0..o.n_drafted.min(o.n_accepted + 1) {
                *right += WEIGHT * (f64::from(u8::from(i < o.n_accepted)) - *right);
            }
        }
        // Neither is to learn from drafts of the other, nor from the time of steps that held them.
        let of_head: Vec<Observed<'_>> = observed
            .iter()
            .zip(&looked_up)
            .map(|(o, looked_up)| if *looked_up { Observed { n_drafted: 0, n_accepted: 0, ..*o } } else { *o })
            .collect();
        let no_head = looked_up.iter().zip(observed).all(|(looked_up, o)| *looked_up || o.n_drafted == 0);
        let of_ngram = took.filter(|_| no_head);
        self.ngram.observe(runner, observed, of_ngram)?;
        self.head.observe(runner, &of_head, took.filter(|_| !looked_up.contains(&true)))
    }

    fn expect(&mut self, asks: &[Ask]) -> Result<(), RunError> {
        self.head.expect(asks)
    }

    fn rehearse(&mut self, n_answers: Option<usize>) -> usize {
        self.rehearsing = n_answers.is_some();
        self.head.rehearse(n_answers)
    }

    fn stats(&self) -> Stats {
        self.head.stats()
    }

    fn propose(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        if self.rehearsing {
            return self.head.propose(runner, asks);
        }
        let mut drafts = vec![Vec::new(); asks.len()];
        let mut left = Vec::new();
        for (i, ask) in asks.iter().enumerate() {
            let found = self.ngram.find(ask);
            let better = !found.tokens.is_empty() && !found.retry && found.chance >= *self.right(ask.slot);
            if better {
                self.ngram.made(ask.slot, &found);
                drafts[i] = found.tokens;
            } else {
                left.push(i);
            }
        }
        let of_head: Vec<Ask> = left.iter().map(|&i| asks[i]).collect();
        if !of_head.is_empty() {
            for (i, draft) in left.into_iter().zip(self.head.propose(runner, &of_head)?) {
                drafts[i] = draft;
            }
        }
        Ok(drafts)
    }
}
