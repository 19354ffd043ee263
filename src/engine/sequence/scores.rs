//! What the model says of the next token.

use text::TokenId;

/// What a token is sampled from.
pub(crate) enum Scores<'l> {
    /// Those of all tokens.
    Logits(&'l [f32]),
    /// The token with the highest; only for sequences that take the best.
    Best(TokenId),
    /// The highest of them, which tell the token as surely; only for sequences that said so.
    Few(&'l [(TokenId, f32)]),
    /// The model gave no numbers to sample from.
    NotFinite,
}

impl<'l> Scores<'l> {
    /// Those of all tokens; none where only the best are known.
    pub(super) fn logits(&self) -> &'l [f32] {
        match self {
            Scores::Logits(logits) => logits,
            Scores::Best(_) | Scores::Few(_) | Scores::NotFinite => &[],
        }
    }
}
