//! The sequence breakers of DRY: texts across which no repetition is looked for.
//! A breaker is found by its bytes, however the text around it was cut into tokens; llama.cpp looks for one cut only.

use std::collections::{HashMap, HashSet, VecDeque};

use text::TokenId;

use super::stage::MAX_BREAKER_BYTES;

/// Which tokens end a sequence breaker: prepared once, so that a new token is one lookup in the common case.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    texts: Vec<Vec<u8>>,
    /// Tokens that hold a whole breaker.
    whole: HashSet<u32>,
    /// Tokens that begin with the end of a breaker: which one, and how many of its bytes must come before.
    ends: HashMap<u32, Vec<(usize, usize)>>,
    /// Bytes of tokens that hold the beginning of a breaker at their end, or lie wholly inside one.
    inner: HashMap<u32, Vec<u8>>,
}

impl Breakers {
    /// Looks at every token of the vocabulary once; `bytes_of` appends a token's bytes.
    pub fn new(texts: &[String], n_vocab: u32, bytes_of: &dyn Fn(TokenId, &mut Vec<u8>)) -> Self {
        let mut this = Self { texts: texts.iter().map(|t| t.as_bytes().to_vec()).collect(), ..Self::default() };
        // Where in which breaker a byte occurs: a token is compared only at places that its own bytes name.
        let mut places = vec![Vec::new(); 256];
        for (which, text) in this.texts.iter().enumerate() {
            for (at, &byte) in text.iter().enumerate() {
                places[usize::from(byte)].push((which, at));
            }
        }
        let mut starts = places.clone();
        starts.iter_mut().for_each(|list| list.retain(|&(_, at)| at == 0));
        let mut piece = Vec::new();
        for id in 0..n_vocab {
            piece.clear();
            bytes_of(TokenId(id), &mut piece);
            this.file(id, &piece, &places, &starts);
        }
        this
    }

    fn file(&mut self, id: u32, piece: &[u8], places: &[Vec<(usize, usize)>], starts: &[Vec<(usize, usize)>]) {
        let mut is_inner = false;
        for (from, &byte) in piece.iter().enumerate() {
            for &(which, _) in &starts[usize::from(byte)] {
                let (text, rest) = (&self.texts[which], &piece[from..]);
                if rest.starts_with(text) {
                    self.whole.insert(id);
                    return;
                }
                is_inner |= text.starts_with(rest);
            }
        }
        let Some(&first) = piece.first() else { return };
        for &(which, at) in places[usize::from(first)].iter().filter(|(_, at)| *at > 0) {
            let tail = &self.texts[which][at..];
            if piece.starts_with(tail) {
                self.ends.entry(id).or_default().push((which, at));
            }
            is_inner |= tail.starts_with(piece);
        }
        if is_inner {
            self.inner.insert(id, piece[piece.len().saturating_sub(MAX_BREAKER_BYTES)..].to_vec());
        }
    }

    /// Whether a breaker ends in the last of `tokens`, having begun in it or before.
    pub fn end_in_newest(&self, tokens: &VecDeque<u32>) -> bool {
        let Some(newest) = tokens.back() else { return false };
        let ends = || self.ends.get(newest).into_iter().flatten();
        self.whole.contains(newest) || ends().any(|&(which, n)| self.came_before(&self.texts[which][..n], tokens))
    }

    /// Whether the bytes before the last token end with `want`.
    fn came_before(&self, want: &[u8], tokens: &VecDeque<u32>) -> bool {
        let mut want = want;
        for token in tokens.iter().rev().skip(1) {
            let Some(piece) = self.inner.get(token) else { return false };
            if piece.ends_with(want) {
                return true;
            }
            let Some(left) = want.strip_suffix(piece.as_slice()) else { return false };
            want = left;
        }
        false
    }

    pub fn holds(&self, token: u32) -> bool {
        self.whole.contains(&token)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PIECES: [&str; 12] = ["a", "b", "ab", "x\n", "\n", "aba", "bc", "cd", "", "xxab", "cdx", "c"];

    fn bytes_of(TokenId(id): TokenId, out: &mut Vec<u8>) {
        out.extend(PIECES[id as usize].bytes());
    }

    proptest! {
        #[test]
        fn a_breaker_is_found_in_the_token_where_its_bytes_end(
            tokens in prop::collection::vec(0_u32..PIECES.len() as u32, 1..12),
        ) {
            // The empty piece stands for a control token, which a breaker does not reach across.
            let texts = ["\n", "abcd", "bab"].map(String::from);
            let breakers = Breakers::new(&texts, PIECES.len() as u32, &bytes_of);
            let after_control = tokens.iter().rposition(|&t| PIECES[t as usize].is_empty()).map_or(0, |i| i + 1);
            let text: String = tokens[after_control..].iter().map(|&t| PIECES[t as usize]).collect();
            let newest = tokens.last().map_or("", |&t| PIECES[t as usize]);
            let want = texts.iter().any(|b| text.match_indices(b.as_str()).any(|(at, _)| at + b.len() > text.len() - newest.len()))
                // `match_indices` skips overlaps; only "bab" overlaps itself.
                || (text.len() - newest.len()..=text.len()).any(|e| e > text.len() - newest.len() && text[..e].ends_with("bab"));
            prop_assert_eq!(breakers.end_in_newest(&tokens.into()), want, "{:?}", text);
        }
    }
}
