//! Generations that go on when the context is full: the state goes back to the beginning of the sequence, and what is left of
//! the rest is computed anew behind it. So the text is that of a prompt which was never longer, on recurrent models too, and
//! with any type of KV cache.

use text::TokenId;

use super::Engine;
use crate::request::ContextShift;

impl Engine {
    /// Makes room in the contexts of generations that have none left for their next tokens.
    pub(super) fn shift_full(&mut self) {
        let n_ctx = self.config.n_ctx(self.model.facts());
        for i in 0..self.sequences.len() {
            let s = &self.sequences[i];
            let Some(shift) = s.request.shift() else { continue };
            let n_held = self.cache.get(s.slot).tokens.len();
            if s.finished || s.is_prefill() || n_held + s.pending.len() <= n_ctx {
                continue;
            }
            let all: Vec<TokenId> = self.cache.get(s.slot).tokens.iter().chain(&s.pending).copied().collect();
            let boundary = s.request.options().checkpoint_boundaries.first().copied();
            let (n_keep, tokens) = shifted(shift, boundary, s.request.prompt().len(), n_ctx, &all);
            let slot = s.slot;
            match self.cache.cut(&mut self.state.memory, slot, n_keep) {
                Ok(n_there) => {
                    tracing::debug!(slot, n_keep, n_there, n_left = tokens.len(), n_all = all.len(), "context shift");
                    self.sequences[i].shift(n_there, &tokens);
                    let pictures = self.sequences[i].request.pictures().clone();
                    self.begin(slot, &pictures);
                }
                Err(error) => self.sequences[i].spoil(error.to_string()),
            }
        }
    }
}

/// The tokens that stay, and how many of them were at the beginning: those and the end of `all` tokens.
fn shifted(
    shift: ContextShift,
    boundary: Option<usize>,
    n_prompt: usize,
    n_ctx: usize,
    all: &[TokenId],
) -> (usize, Vec<TokenId>) {
    // Half of the context at most, so that there is something to shift.
    let n_keep = shift.keep.unwrap_or(boundary.unwrap_or(1)).min(n_prompt).min(n_ctx / 2);
    let n_rest = all.len() - n_keep;
    // All of the rest is read anew at each shift: one for each token would read a context for each token.
    let least = n_rest.div_ceil(LEAST_PART);
    // What was sampled last stays: its successor is to be sampled.
    let most = n_rest.saturating_sub(1).max(least);
    let n_cut = shift.discard.unwrap_or(n_rest / 2).clamp(least, most).max(all.len().saturating_sub(n_ctx));
    (n_keep, [&all[..n_keep], &all[n_keep + n_cut..]].concat())
}

/// A shift discards at least this part of the tokens behind those that stay, so that a new token costs the reading of 16 at most.
const LEAST_PART: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_the_beginning_and_the_end_and_leaves_room() {
        for n_ctx in [256usize, 300, 1024] {
            for n_all in n_ctx + 1..n_ctx + 8 {
                let all: Vec<TokenId> = (0..n_all as u32).map(TokenId).collect();
                for n_prompt in [1, 5, n_ctx / 2, n_ctx - 1] {
                    for keep in [None, Some(0), Some(3), Some(n_ctx), Some(usize::MAX)] {
                        for discard in [None, Some(1), Some(40), Some(usize::MAX)] {
                            let shift = ContextShift { keep, discard };
                            let (n_keep, left) = shifted(shift, Some(4), n_prompt, n_ctx, &all);
                            let case = format!("{shift:?} of {n_all} in {n_ctx}, prompt {n_prompt}: {left:?}");
                            assert!(left.len() <= n_ctx && n_keep < left.len(), "{case}");
                            assert_eq!(left.last(), all.last(), "{case}");
                            assert_eq!(left[..n_keep], all[..n_keep], "{case}");
                            assert!(left.ends_with(&all[all.len() - (left.len() - n_keep)..]), "{case}");
                            match discard {
                                None => assert!(left.len() <= n_ctx * 3 / 4 + 8, "{case}"),
                                Some(usize::MAX) => assert_eq!(left.len(), n_keep + 1, "{case}"),
                                Some(n) => {
                                    let n = n.max((n_all - n_keep).div_ceil(16));
                                    assert_eq!(left.len(), (n_all - n).min(n_ctx), "{case}");
                                }
                            }
                        }
                    }
                }
            }
        }
        let all: Vec<TokenId> = (0..301).map(TokenId).collect();
        let kept = |keep, boundary| shifted(ContextShift { keep, discard: None }, boundary, 20, 300, &all).0;
        assert_eq!(
            [kept(None, Some(7)), kept(None, None), kept(Some(0), Some(7)), kept(Some(90), None)],
            [7, 1, 0, 20]
        );
    }

    #[test]
    fn a_shift_of_one_token_makes_room_for_many() {
        let n_ctx = 1024;
        let all: Vec<TokenId> = (0..1025).map(TokenId).collect();
        let room = |discard| n_ctx - shifted(ContextShift { keep: Some(1), discard }, None, 20, n_ctx, &all).1.len();
        assert_eq!([Some(1), Some(63), Some(64), Some(65), Some(100)].map(room), [63, 63, 63, 64, 99]);
    }
}
