//! DRY: a penalty that grows with the length of the repetition a token would continue.
//! Owns the search for repetitions. Knows tokens, nothing of logits.

use std::collections::HashMap;

use super::dry_breakers::Breakers;
use super::history::History;
use super::table::SamplingParams;

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
