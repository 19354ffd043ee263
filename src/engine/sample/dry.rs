//! DRY: a penalty that grows with the length of the repetition a token would continue.
//! Owns the search for repetitions and the breakers that end one. Knows tokens and their bytes, nothing of logits.
//!
//! A breaker is found by its bytes, however the text around it was cut into tokens; llama.cpp looks for one cut only.

use std::collections::{HashMap, HashSet, VecDeque};

use text::TokenId;

use super::history::History;
use super::stage::MAX_BREAKER_BYTES;
use super::table::SamplingParams;

/// Which tokens end a sequence breaker: prepared once, so that a new token is one look-up in the common case.
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

    fn holds(&self, token: u32) -> bool {
        self.whole.contains(&token)
    }
}

/// Finds repetitions; the buffers stay from step to step.
#[derive(Debug, Default)]
pub(super) struct Search {
    newest: Vec<u32>,
    n_equal: Vec<usize>,
    longest: HashMap<u32, usize>,
}

impl Search {
    /// For each token that would continue a repetition of at least `dry_allowed_length` tokens: how many tokens before
    /// it repeat. Tokens that hold a breaker are left out.
    pub fn run(&mut self, params: &SamplingParams, history: &History, breakers: &Breakers) -> &HashMap<u32, usize> {
        self.longest.clear();
        self.newest.clear();
        self.newest.extend(history.newest(usize::try_from(params.dry_penalty_last_n).unwrap_or(usize::MAX)));
        let allowed = params.dry_allowed_length as usize;
        let limit = history.n_unbroken();
        if self.newest.len() <= allowed || limit < allowed {
            return &self.longest;
        }
        equal_prefixes(&self.newest, &mut self.n_equal);
        for (back, &n) in self.n_equal.iter().enumerate().skip(1) {
            let n = n.min(limit);
            // The token that came after the earlier occurrence is the one that would go on with it.
            let next = self.newest[back - 1];
            if n >= allowed && !breakers.holds(next) {
                let longest = self.longest.entry(next).or_default();
                *longest = n.max(*longest);
            }
        }
        &self.longest
    }
}

/// What to subtract from the logit of a token before which `n_repeated` tokens repeat.
pub(super) fn penalty(params: &SamplingParams, n_repeated: usize) -> f64 {
    let base = f64::from(params.dry_base);
    let beyond = n_repeated.saturating_sub(params.dry_allowed_length as usize) as f64;
    // As llama.cpp: the power stays within a float. A base this close to 1 cannot overflow.
    let most = if base > 1.000_001 { (f64::from(f32::MAX).ln() / base.ln()).floor() } else { f64::INFINITY };
    f64::from(params.dry_multiplier) * base.powf(beyond.min(most))
}

/// For each `i` the number of tokens from `i` on that equal those from the start; `out[0]` is the length.
/// Gusfield's Z-algorithm: linear, as the right end of the furthest match only moves on.
fn equal_prefixes(tokens: &[u32], out: &mut Vec<usize>) {
    let n = tokens.len();
    out.clear();
    out.resize(n, n);
    let (mut from, mut to) = (0, 0);
    for i in 1..n {
        let mut same = if i < to { out[i - from].min(to - i) } else { 0 };
        while i + same < n && tokens[same] == tokens[i + same] {
            same += 1;
        }
        out[i] = same;
        if i + same > to {
            (from, to) = (i, i + same);
        }
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
        fn equal_prefixes_agree_with_counting(tokens in prop::collection::vec(0_u32..3, 0..60)) {
            let mut got = Vec::new();
            equal_prefixes(&tokens, &mut got);
            for (i, n) in got.iter().enumerate() {
                let want = tokens.iter().zip(&tokens[i..]).take_while(|(a, b)| a == b).count();
                prop_assert_eq!(*n, want, "at {}", i);
            }
        }

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

    #[test]
    fn the_penalty_grows_by_the_base_and_stays_finite() {
        let params = SamplingParams { dry_multiplier: 0.5, dry_base: 2.0, dry_allowed_length: 3, ..Default::default() };
        assert_eq!([3, 4, 6].map(|n| penalty(&params, n)), [0.5, 1.0, 4.0]);
        // floor(ln(f32::MAX) / ln 2) = 127: f32::MAX is just below 2^128.
        assert_eq!(penalty(&params, 1_000_000), 0.5 * 2.0_f64.powi(127));
    }

    #[test]
    fn the_longest_repetition_before_a_token_counts() {
        let params = SamplingParams { dry_multiplier: 1.0, dry_allowed_length: 1, ..Default::default() };
        let mut history = History::new(&params);
        // 1 2 3 3 2 3 9 1 2 3: "1 2 3" came before 3, "2 3" before 9, "3" before 2.
        history.push_all([1, 2, 3, 3, 2, 3, 9, 1, 2, 3].into_iter(), &Breakers::default());
        let mut search = Search::default();
        let found = search.run(&params, &history, &Breakers::default());
        assert_eq!(found, &HashMap::from([(3, 3), (9, 2), (2, 1)]));
    }
}
