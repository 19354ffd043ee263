//! Grammars from outside: what they accept, and texts that are drawn from what they allow.

use std::sync::Arc;

use engine::{Allowed, Constraint, Grammar};
use text::{Decoder, TokenId, Vocab};

use crate::random::Random;

/// Whether the text that `walk` has accepted may end here.
pub fn may_end(walk: &mut dyn Constraint, vocab: &Vocab) -> bool {
    let eog = vocab.eog()[0];
    walk.is_complete() || walk.allowed().is_ok_and(|allowed| allowed.has(eog))
}

/// Whether the grammar takes these tokens and may end after them.
///
/// # Panics
/// The two ways to try a token do not say the same.
pub fn takes_tokens(grammar: &Arc<dyn Grammar>, vocab: &Vocab, tokens: &[TokenId]) -> bool {
    let mut walk = grammar.start();
    let n = walk.n_fitting(tokens);
    for (i, &token) in tokens.iter().enumerate() {
        let fits = walk.accept(token).is_ok();
        assert_eq!(fits, i < n, "token {i} of {tokens:?}");
        if !fits {
            return false;
        }
    }
    may_end(&mut *walk, vocab)
}

/// The allowed tokens that do not end generation.
pub fn allowed_ids(allowed: &Allowed<'_>, vocab: &Vocab) -> Vec<TokenId> {
    (0..vocab.len() as u32).map(TokenId).filter(|&id| allowed.has(id) && !vocab.is_eog(id)).collect()
}

/// Writes a text by drawing among the allowed tokens; `None` when it has not ended after `most` tokens. Ends as soon as it
/// may, in one of three cases, and always once half of the tokens are spent.
///
/// # Panics
/// The constraint fails, or refuses what it allows.
pub fn write(grammar: &Arc<dyn Grammar>, vocab: &Vocab, random: &mut Random, most: usize) -> Option<String> {
    let mut walk = grammar.start();
    let (mut decoder, mut text) = (Decoder::new(), String::new());
    for i in 0..most {
        if walk.is_complete() {
            return Some(text + &decoder.finish());
        }
        let allowed = walk.allowed().unwrap_or_else(|error| panic!("{error} after {text:?}"));
        let may_end = allowed.has(vocab.eog()[0]);
        if may_end && (i > most / 2 || random.below(3) == 0) {
            return Some(text + &decoder.finish());
        }
        let ids = allowed_ids(&allowed, vocab);
        // Closing signs come more often than by chance, or texts would hardly ever end.
        let closes = |id: &&TokenId| {
            let bytes = vocab.bytes(**id).unwrap_or_default();
            bytes.first().is_some_and(|b| b"\"}]\n</e[".contains(b))
        };
        let closing: Vec<&TokenId> = ids.iter().filter(closes).collect();
        let token = match closing.is_empty() || random.below(4) > 0 {
            true => ids[random.below(ids.len())],
            false => *closing[random.below(closing.len())],
        };
        text += &decoder.push(vocab.bytes(token).unwrap_or_default());
        walk.accept(token).unwrap_or_else(|error| panic!("{error}: {token:?} after {text:?}"));
    }
    None
}
