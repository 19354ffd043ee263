//! The pictures of one sequence: where their rows stand, at which positions, and the ids that stand for them in its tokens.
//! Owns all arithmetic of positions that are not counts. Knows nothing of how a picture became rows.
//!
//! A picture of `n` tokens takes `n` places in a sequence. Their ids ([`TokenId::is_of_picture`]) are made of the picture's
//! content hash, 31 bits each, so that whoever compares sequences compares pictures. As a picture has 4 tokens at least, two
//! of them are the same for 124 bits or more; a prefix that ends inside of a picture is none ([`Pictures::whole`]).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use text::TokenId;

use crate::embedded::Embedded;

/// How pictures stand among the tokens of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureKind {
    /// Each token has a position in time, in height and in width (interleaved M-RoPE).
    Sections,
    /// Positions count tokens.
    Plain {
        /// Where tokens of a picture see later ones of the same picture.
        both_ways: BothWays,
    },
}

/// The layers in which tokens of a picture see one another, so that a picture must be computed in one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BothWays {
    /// In none: a picture is read like text.
    #[default]
    Nowhere,
    /// In those with a window (Gemma 4).
    InWindows,
    /// In all (Gemma 3).
    Everywhere,
}

/// A picture in a prompt.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The first of its places among the prompt's tokens.
    pub first: usize,
    /// Its rows.
    pub embedded: Arc<Embedded>,
    /// Of its content and of everything else that its rows depend on.
    pub hash: [u8; 32],
}

/// Tokens of a picture at least: fewer would hold too little of its hash.
pub const MIN_PICTURE_TOKENS: usize = 4;

/// The pictures of one sequence; none by default. Cheap to clone.
#[derive(Clone, Default)]
pub struct Pictures {
    spans: Arc<[Span]>,
    n_embd: usize,
    sections: bool,
    both_ways: BothWays,
}

struct Span {
    tokens: Range<usize>,
    /// Position of its first token.
    position: usize,
    /// Position of the token after it.
    after: usize,
    picture: Placed,
}

/// Pictures that cannot stand where they are said to.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PictureError(String);

impl Pictures {
    /// Pictures, in ascending order of their places, among `n_tokens` tokens of a model with hidden states of `n_embd`
    /// elements. `kind` is what [`crate::Model::picture_kind`] says.
    ///
    /// # Errors
    /// [`PictureError`]: a model that takes no pictures, pictures that overlap or lie outside of the prompt, rows of another
    /// width or number, a picture of fewer than [`MIN_PICTURE_TOKENS`] tokens.
    pub fn new(
        kind: Option<PictureKind>,
        n_embd: usize,
        n_tokens: usize,
        placed: Vec<Placed>,
    ) -> Result<Self, PictureError> {
        let refuse = |what: String| Err(PictureError(what));
        if placed.is_empty() {
            return Ok(Self::default());
        }
        let Some(kind) = kind else { return refuse("the model takes no pictures".into()) };
        let (mut spans, mut end, mut position) = (Vec::<Span>::with_capacity(placed.len()), 0, 0);
        for picture in placed {
            let Placed { first, embedded, .. } = &picture;
            let [n_t, n_h, n_w] = embedded.grid;
            let n = n_t.checked_mul(n_h).and_then(|n| n.checked_mul(n_w)).unwrap_or(usize::MAX);
            if n.checked_mul(n_embd) != Some(embedded.rows.len()) {
                return refuse(format!(
                    "a picture has {} numbers, {n_t} x {n_h} x {n_w} rows of {n_embd} expected: was its projector made for \
                     another model?",
                    embedded.rows.len()
                ));
            }
            if n < MIN_PICTURE_TOKENS {
                return refuse(format!(
                    "a picture has {n} tokens, at least {MIN_PICTURE_TOKENS} expected: raise the least number of pixels"
                ));
            }
            let Some(last) = first.checked_add(n).filter(|last| *first >= end && *last <= n_tokens) else {
                return refuse(format!(
                    "a picture of {n} tokens at {first} of a prompt of {n_tokens} tokens, of which {end} are before it"
                ));
            };
            position += first - end;
            let after = position + if kind == PictureKind::Sections { n_t.max(n_h).max(n_w) } else { n };
            spans.push(Span { tokens: *first..last, position, after, picture });
            (end, position) = (last, after);
        }
        let (sections, both_ways) = match kind {
            PictureKind::Sections => (true, BothWays::Nowhere),
            PictureKind::Plain { both_ways } => (false, both_ways),
        };
        Ok(Self { spans: spans.into(), n_embd, sections, both_ways })
    }

    /// The same behind `n_tokens` tokens of text.
    #[must_use]
    pub fn behind(&self, n_tokens: usize) -> Self {
        let span = |span: &Span| Span {
            tokens: span.tokens.start + n_tokens..span.tokens.end + n_tokens,
            position: span.position + n_tokens,
            after: span.after + n_tokens,
            picture: Placed { first: span.picture.first + n_tokens, ..span.picture.clone() },
        };
        Self { spans: self.spans.iter().map(span).collect(), ..*self }
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The places that pictures take, in order.
    pub fn spans(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.spans.iter().map(|span| span.tokens.clone())
    }

    /// The last picture that begins at a token or before it.
    fn before(&self, token: usize) -> Option<&Span> {
        self.spans[..self.spans.partition_point(|span| span.tokens.start <= token)].last()
    }

    /// The places of the picture that a token belongs to.
    pub fn at(&self, token: usize) -> Option<Range<usize>> {
        self.before(token).map(|span| span.tokens.clone()).filter(|tokens| tokens.contains(&token))
    }

    /// Position of a token in time, height and width; three times the same for text. Tokens after the prompt count on.
    pub fn position(&self, token: usize) -> [i32; 3] {
        let at = match self.before(token) {
            None => [token; 3],
            Some(span) if self.sections && token < span.tokens.end => {
                let [_, n_h, n_w] = span.picture.embedded.grid;
                let i = token - span.tokens.start;
                [i / (n_h * n_w), i / n_w % n_h, i % n_w].map(|at| span.position + at)
            }
            Some(span) if token < span.tokens.end => [span.position + (token - span.tokens.start); 3],
            Some(span) => [span.after + (token - span.tokens.end); 3],
        };
        at.map(|at| i32::try_from(at).unwrap_or(i32::MAX))
    }

    /// What stands in place of a token's embedding: `[n_embd]`; `None` for text.
    pub fn row(&self, token: usize) -> Option<&[f32]> {
        let span = self.before(token).filter(|span| token < span.tokens.end)?;
        span.picture.embedded.rows.chunks_exact(self.n_embd).nth(token - span.tokens.start)
    }

    /// The longest prefix of at most `n` tokens that ends in no picture.
    pub fn whole(&self, n: usize) -> usize {
        self.at(n).map_or(n, |tokens| tokens.start)
    }

    /// True when a picture must be computed in one pass.
    pub fn are_seen_both_ways(&self) -> bool {
        self.both_ways != BothWays::Nowhere
    }

    /// Where tokens of a picture see later ones.
    pub(crate) fn both_ways(&self) -> BothWays {
        self.both_ways
    }

    /// The most tokens of one picture.
    pub fn longest(&self) -> usize {
        self.spans().map(|tokens| tokens.len()).max().unwrap_or(0)
    }

    /// Writes the ids of pictures into the places that they take among `tokens`.
    pub fn write_ids(&self, tokens: &mut [TokenId]) {
        for span in self.spans.iter() {
            let grid: Vec<u8> = span.picture.embedded.grid.iter().flat_map(|&n| (n as u64).to_le_bytes()).collect();
            let Some(places) = tokens.get_mut(span.tokens.clone()) else { continue };
            for (block, places) in (0u64..).zip(places.chunks_mut(8)) {
                let digest =
                    Sha256::new().chain_update(span.picture.hash).chain_update(&grid).chain_update(block.to_le_bytes());
                let digest = digest.finalize();
                for (place, bits) in places.iter_mut().zip(digest.as_chunks::<4>().0) {
                    *place = TokenId(u32::from_le_bytes(*bits) | TokenId::FIRST_OF_PICTURES);
                }
            }
        }
    }
}

impl fmt::Debug for Pictures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.spans()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(first: usize, grid: [usize; 3], n_embd: usize) -> Placed {
        let n: usize = grid.iter().product();
        let rows = (0..n * n_embd).map(|i| i as f32).collect();
        Placed { first, embedded: Arc::new(Embedded { rows, grid }), hash: [first as u8; 32] }
    }

    fn sections(placed: Vec<Placed>) -> Result<Pictures, PictureError> {
        Pictures::new(Some(PictureKind::Sections), 2, 20, placed)
    }

    #[test]
    fn text_goes_on_after_the_longer_side_of_a_picture() {
        let pictures = sections(vec![picture(2, [1, 2, 3], 2), picture(9, [1, 4, 1], 2)]).expect("they fit");
        let at: Vec<_> = (0..15).map(|token| pictures.position(token)).collect();
        let text = |p| [p; 3];
        let first = [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]];
        let second = [[6, 6, 6], [6, 7, 6], [6, 8, 6], [6, 9, 6]];
        let want = [&[text(0), text(1)][..], &first, &[text(5)], &second, &[text(10), text(11)]].concat();
        assert_eq!(at, want);
        assert_eq!(pictures.row(4), Some(&[4.0, 5.0][..]));
        assert_eq!((pictures.row(1), pictures.row(8)), (None, None));
        assert_eq!([1, 2, 3, 7, 8, 9, 12, 13].map(|n| pictures.whole(n)), [1, 2, 2, 2, 8, 9, 9, 13]);
        let later = pictures.behind(3);
        assert_eq!(later.position(2), text(2));
        let moved: Vec<_> = at.iter().map(|position| position.map(|p| p + 3)).collect();
        assert_eq!((3..18).map(|token| later.position(token)).collect::<Vec<_>>(), moved);
        assert_eq!(later.row(7), Some(&[4.0, 5.0][..]));
    }

    #[test]
    fn positions_count_tokens_where_a_model_has_no_sections() {
        let kind = Some(PictureKind::Plain { both_ways: BothWays::InWindows });
        let pictures = Pictures::new(kind, 2, 20, vec![picture(2, [1, 2, 3], 2)]).expect("it fits");
        assert!((0..12).all(|token| pictures.position(token) == [token as i32; 3]));
    }

    #[test]
    fn ids_tell_pictures_by_content_and_by_shape() {
        let ids = |hash: u8, grid: [usize; 3]| {
            let pictures = sections(vec![Placed { hash: [hash; 32], ..picture(1, grid, 2) }]).expect("it fits");
            let mut tokens = vec![TokenId(7); 14];
            pictures.write_ids(&mut tokens);
            tokens
        };
        let one = ids(1, [1, 3, 4]);
        assert_eq!(one, ids(1, [1, 3, 4]));
        assert!(one[1..13].iter().all(|id| id.is_of_picture()));
        assert_eq!((one[0], one[13]), (TokenId(7), TokenId(7)));
        for other in [ids(2, [1, 3, 4]), ids(1, [1, 4, 3]), ids(1, [1, 2, 6])] {
            assert_ne!(one[1], other[1]);
        }
    }

    #[test]
    fn pictures_that_do_not_fit_are_refused() {
        for (placed, what) in [
            (vec![picture(15, [1, 2, 3], 2)], "15 of a prompt of 20"),
            (vec![picture(2, [1, 2, 3], 2), picture(7, [1, 2, 3], 2)], "of which 8 are before it"),
            (vec![picture(2, [1, 2, 3], 3)], "rows of 2 expected"),
            (vec![picture(2, [1, 1, 3], 2)], "at least 4"),
            (vec![picture(usize::MAX, [1, 2, 3], 2)], "of a prompt of 20"),
        ] {
            let error = sections(placed).expect_err("they do not fit").to_string();
            assert!(error.contains(what), "{error}");
        }
        assert!(Pictures::new(None, 2, 20, vec![picture(2, [1, 2, 3], 2)]).is_err());
    }
}
