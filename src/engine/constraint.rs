//! What a generation may be made of, as the engine sees it: a grammar that a request carries, and one generation's walk
//! through it. Owns the way from logits and a mask to a token. Knows nothing of grammars themselves.
//!
//! A constraint only ever takes tokens that were picked, so nothing has to be taken back when a draft is wrong: drafts
//! are tried without a change to it, and the tokens that verify them are sampled one after the other, each under the mask
//! after the tokens before it.

use std::fmt;

use text::TokenId;

use crate::sample::{Candidate, Sampler};

/// A compiled grammar: what several generations may start from.
pub trait Grammar: fmt::Debug + Send + Sync {
    /// The beginning of a generation. Called by whoever submits the request, not on the engine's thread.
    fn start(&self) -> Box<dyn Constraint>;
}

/// Where one generation stands in its grammar. Used by the engine's thread only.
///
/// An error of any method ends the generation with that text. None may panic, and each must be done within a bounded time.
pub trait Constraint: Send {
    /// The tokens that may come next. The tokens that end generation are among them where the generation may end.
    ///
    /// # Errors
    /// Nothing may come next, or finding out takes too much.
    fn allowed(&mut self) -> Result<Allowed<'_>, String>;

    /// Goes on by a token that was picked: one of those allowed, and none that ends generation.
    ///
    /// # Errors
    /// The token does not belong there.
    fn accept(&mut self, token: TokenId) -> Result<(), String>;

    /// How many of these tokens may follow one another from here. Changes nothing.
    fn n_fitting(&mut self, tokens: &[TokenId]) -> usize;

    /// Tokens that must follow one another from here, however likely they are: they are taken without a pass for each. Not
    /// all need be told, and none is a generation.
    fn forced(&mut self) -> Vec<TokenId> {
        Vec::new()
    }

    /// True when nothing may follow but the end.
    fn is_complete(&self) -> bool;

    /// True where the generation is free to think: a limit on thinking counts there, and may put in what ends it. Where it
    /// is not, tags of thinking are text like any other.
    fn may_think(&self) -> bool {
        false
    }
}

/// A set of tokens.
#[derive(Clone, Copy, Debug)]
pub enum Allowed<'a> {
    /// All but these few.
    AllBut(&'a [TokenId]),
    /// Token `i` where bit `i % 32` of word `i / 32` is set.
    Only(&'a [u32]),
}

impl Allowed<'_> {
    /// Whether the token is in the set.
    pub fn has(&self, token: TokenId) -> bool {
        let id = token.0 as usize;
        match self {
            Self::AllBut(none) => !none.contains(&token),
            Self::Only(bits) => bits.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1),
        }
    }

    /// `logits` where the token is in the set, minus infinity elsewhere.
    fn mask(&self, logits: &[f32], into: &mut Vec<f32>) {
        into.clear();
        match self {
            Self::AllBut(none) => {
                into.extend_from_slice(logits);
                for id in *none {
                    if let Some(x) = into.get_mut(id.0 as usize) {
                        *x = f32::NEG_INFINITY;
                    }
                }
            }
            Self::Only(bits) => {
                into.resize(logits.len(), f32::NEG_INFINITY);
                for ((row, masked), &word) in logits.chunks(32).zip(into.chunks_mut(32)).zip(*bits) {
                    match word {
                        0 => {}
                        u32::MAX => masked.copy_from_slice(row),
                        _ => (0..row.len()).filter(|i| word >> i & 1 == 1).for_each(|i| masked[i] = row[i]),
                    }
                }
            }
        }
    }
}

/// The constraint of one generation, with the buffer for its masked logits.
pub(crate) struct Constrained {
    pub(crate) constraint: Box<dyn Constraint>,
    row: Vec<f32>,
}

impl Constrained {
    pub(crate) fn new(constraint: Box<dyn Constraint>) -> Self {
        Self { constraint, row: Vec::new() }
    }

    /// What [`Constrained::sample`] draws from.
    ///
    /// # Errors
    /// Those of [`Constraint::allowed`].
    pub(crate) fn distribution<'s>(
        &mut self,
        sampler: &'s mut Sampler,
        logits: &[f32],
    ) -> Result<&'s [Candidate], String> {
        self.constraint.allowed()?.mask(logits, &mut self.row);
        Ok(sampler.distribution(&self.row))
    }

    /// Samples an allowed token.
    ///
    /// # Errors
    /// Those of [`Constraint::allowed`], and no allowed token has a usable logit.
    pub(crate) fn sample(&mut self, sampler: &mut Sampler, logits: &[f32]) -> Result<TokenId, String> {
        let allowed = self.constraint.allowed()?;
        if sampler.is_greedy() {
            // The best of all is the best of those allowed, if it is one of them: no masked copy then.
            let best = sampler.sample(logits);
            if allowed.has(best) && logits.get(best.0 as usize).is_some_and(|x| *x > f32::NEG_INFINITY) {
                return Ok(best);
            }
        }
        allowed.mask(logits, &mut self.row);
        let token = sampler.sample(&self.row);
        // With everything masked the sampler answers with any token.
        if self.row.get(token.0 as usize).is_some_and(|x| *x > f32::NEG_INFINITY) {
            Ok(token)
        } else {
            Err("no token that the grammar allows is left to pick: a logit bias forbids them all".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::SamplingParams;

    /// Allows what it is told to, whatever came before.
    struct Fixed(Vec<u32>);

    impl Constraint for Fixed {
        fn allowed(&mut self) -> Result<Allowed<'_>, String> {
            Ok(Allowed::Only(&self.0))
        }

        fn accept(&mut self, _: TokenId) -> Result<(), String> {
            Ok(())
        }

        fn n_fitting(&mut self, tokens: &[TokenId]) -> usize {
            tokens.len()
        }

        fn is_complete(&self) -> bool {
            false
        }
    }

    fn sampler(params: SamplingParams, n_vocab: usize) -> Sampler {
        Sampler::new(&params, n_vocab, &|_, _| {}).expect("parameters in range")
    }

    #[test]
    fn a_mask_keeps_the_logits_of_its_tokens_and_no_others() {
        let logits: Vec<f32> = (0..100_u8).map(f32::from).collect();
        let bits = [u32::MAX, 0, 1 << 31 | 1];
        let (mut row, only) = (Vec::new(), Allowed::Only(&bits));
        only.mask(&logits, &mut row);
        let none = [TokenId(3), TokenId(700)];
        let but = Allowed::AllBut(&none);
        let mut other = Vec::new();
        but.mask(&logits, &mut other);
        for id in 0..100_u32 {
            let kept = |row: &[f32]| row[id as usize] == logits[id as usize];
            assert_eq!(only.has(TokenId(id)), id < 32 || id == 64 || id == 95, "{id}");
            assert_eq!(kept(&row), only.has(TokenId(id)), "{id}");
            assert_eq!(kept(&other), id != 3, "{id}");
        }
        assert_eq!((row.len(), other.len()), (100, 100));
    }

    #[test]
    fn greedy_takes_the_best_of_those_allowed_and_sampling_nothing_else() {
        let logits: Vec<f32> = (0..64_u8).map(|i| f32::from(i) / 8.0).collect();
        let mut c = Constrained::new(Box::new(Fixed(vec![1 << 5 | 1 << 9, 0])));
        assert_eq!(c.sample(&mut sampler(SamplingParams::greedy(), 64), &logits), Ok(TokenId(9)));
        let mut random = sampler(SamplingParams { temperature: 5.0, seed: Some(1), ..SamplingParams::default() }, 64);
        let picks: Vec<u32> = (0..50).map(|_| c.sample(&mut random, &logits).expect("two are left").0).collect();
        assert!(picks.iter().all(|id| [5, 9].contains(id)) && picks.contains(&5), "{picks:?}");
    }

    #[test]
    fn a_bias_against_all_that_is_allowed_is_an_error() {
        let bias = SamplingParams { logit_bias: vec![(TokenId(5), f32::NEG_INFINITY)], ..SamplingParams::greedy() };
        let mut c = Constrained::new(Box::new(Fixed(vec![1 << 5])));
        let logits = [1.0; 8];
        assert!(c.sample(&mut sampler(bias, 8), &logits).expect_err("nothing is left").contains("bias"));
        // The same without a bias, where the logits themselves are masked.
        let masked = [f32::NEG_INFINITY; 8];
        assert!(c.sample(&mut sampler(SamplingParams::greedy(), 8), &masked).is_err());
    }
}
