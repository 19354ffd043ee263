//! What the target makes of a text's tokens, as it is kept.

use half::f16;

/// What is known of a text's tokens.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// `[n_embd]` for each token.
    pub hidden: Vec<f16>,
    /// The likeliest words after each token, the likeliest first.
    pub ids: Vec<u32>,
    /// Their probabilities; those of a token sum up to one.
    pub probs: Vec<f16>,
}
