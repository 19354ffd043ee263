//! A proposer that lies: it drafts tokens that are right by chance only, of any length.

use engine::{Ask, Proposer};
use model::{RunError, Runner};
use text::TokenId;

use super::script::MAX_DEPTH;
use super::tiny::Rng;

/// Drafts random tokens of a vocabulary.
pub struct Liar {
    pub rng: Rng,
    pub n_vocab: usize,
}

impl Proposer for Liar {
    fn max_depth(&self) -> usize {
        MAX_DEPTH
    }

    fn propose(&mut self, _: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        let Self { rng, n_vocab } = self;
        let mut draft = |ask: &Ask| {
            let n = rng.below(ask.max + 1);
            (0..n).map(|_| TokenId(rng.below(*n_vocab) as u32)).collect()
        };
        Ok(asks.iter().map(&mut draft).collect())
    }
}
