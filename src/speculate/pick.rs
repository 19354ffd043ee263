//! A draft token from a row of logits on the host: the likeliest, or the one that the sampler's own noise will most probably
//! pick.

use engine::DraftRequest;
use text::TokenId;

/// What a row gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pick {
    /// A draft token.
    Token(TokenId),
    /// The token is less probable than asked for: the draft ends before it.
    Improbable,
    /// Nothing in the row is a number.
    None,
}

/// The draft token of `logits`, of which the first `n_vocab` count, with `n_before` draft tokens before it.
pub(crate) fn pick(logits: &[f32], n_vocab: usize, request: &DraftRequest, n_before: usize) -> Pick {
    let logits = &logits[..n_vocab.min(logits.len())];
    let noise = request.gumbel.map(|plan| (plan.noise(n_before as u64), plan.temperature));
    let mut best = (f32::NEG_INFINITY, None);
    for (id, &logit) in (0..).zip(logits) {
        let score = noise.map_or(logit, |(noise, temperature)| logit + temperature * noise.for_draft(id));
        if score > best.0 {
            best = (score, Some(id));
        }
    }
    let Some(id) = best.1 else { return Pick::None };
    if request.p_min > 0.0 {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = logits.iter().map(|logit| (logit - top).exp()).sum();
        let p = (logits[id as usize] - top).exp() / sum;
        if p.is_nan() || p < request.p_min {
            return Pick::Improbable;
        }
    }
    Pick::Token(TokenId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_of_the_targets_tokens_is_picked_if_it_is_probable_enough() {
        let logits = [0.0, 3.0, f32::NAN, 3.0, 9.0];
        let of = |n_vocab, p_min| pick(&logits[..], n_vocab, &DraftRequest { max: 1, p_min, ..Default::default() }, 0);
        assert_eq!(of(4, 0.0), Pick::Token(TokenId(1)), "the first of equals");
        assert_eq!(of(9, 0.0), Pick::Token(TokenId(4)));
        assert_eq!(of(4, 0.5), Pick::Improbable, "a row with NaN is not sure of anything");
        let request = |p_min| DraftRequest { max: 1, p_min, ..Default::default() };
        assert_eq!(pick(&[0.0, 3.0], 2, &request(0.95), 0), Pick::Token(TokenId(1)), "0.953");
        assert_eq!(pick(&[0.0, 3.0], 2, &request(0.96), 0), Pick::Improbable);
        assert_eq!(pick(&[f32::NAN; 3], 3, &request(0.0), 0), Pick::None);
    }
}
