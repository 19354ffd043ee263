//! Log probabilities as reported to a client: of the model, before any sampling parameter.
//! Owns the log-softmax. Knows nothing of samplers.

use text::TokenId;

use super::math;
use super::select::top;

/// Natural logarithms of probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token that was chosen.
    pub token: TokenId,
    /// Its log probability; minus infinity for a masked token or one outside the row.
    pub logprob: f32,
    /// The likeliest tokens, best first, lower id first among equals. Masked tokens are never among them.
    pub top: Vec<(TokenId, f32)>,
}

impl TokenLogprob {
    /// Of `chosen` and of the `n_top` likeliest of what a sampler draws from, likeliest first.
    pub(crate) fn of_candidates(
        candidates: impl Iterator<Item = (TokenId, f32)> + Clone,
        chosen: TokenId,
        n_top: usize,
    ) -> Self {
        let possible = candidates.filter(|&(_, p)| p > 0.0).map(|(id, p)| (id, p.ln()));
        let logprob = possible.clone().find(|&(id, _)| id == chosen).map_or(f32::NEG_INFINITY, |(_, logprob)| logprob);
        Self { token: chosen, logprob, top: possible.take(n_top).collect() }
    }
}

/// Log-softmax of raw logits over the whole vocabulary: of `chosen` and of the `n_top` likeliest.
/// NaN and minus infinity count as masked, plus infinity as the largest usable number.
pub fn logprobs(logits: &[f32], chosen: TokenId, n_top: usize) -> TokenLogprob {
    let max = math::max(logits);
    // With every token masked there is no distribution, and none of these terms is used.
    let log_sum = if max > f32::NEG_INFINITY { f64::from(max) + math::sum_exp(logits, max).ln() } else { 0.0 };
    let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
    let mut best = Vec::new();
    if n_top > 0 {
        top(logits, n_top.min(logits.len()).max(1), &mut best);
    }
    TokenLogprob {
        token: chosen,
        logprob: logits.get(chosen.0 as usize).map_or(f32::NEG_INFINITY, |&x| logprob(math::clean(x))),
        top: best.iter().map(|c| (TokenId(c.id()), logprob(c.logit()))).collect(),
    }
}
