//! The tokens that penalties look back on.
//! Owns the windows and the counts. Knows nothing of logits.

use std::collections::{HashMap, VecDeque};

use super::dry_breakers::Breakers;
use super::table::SamplingParams;

/// The last tokens, as many as the longest window needs, and what is counted over them.
#[derive(Debug)]
pub(super) struct History {
    tokens: VecDeque<u32>,
    n_keep: usize,
    n_counted: usize,
    counts: HashMap<u32, u32>,
    /// Tokens since a DRY breaker ended, not counting the one that it ended in.
    n_unbroken: usize,
}

impl History {
    pub fn new(params: &SamplingParams) -> Self {
        // -1 means all, and a conversion of -1 to an unsigned number is refused.
        let window = |on: bool, n: i32| if on { usize::try_from(n).unwrap_or(usize::MAX) } else { 0 };
        let n_counted = window(params.penalises(), params.penalty_last_n);
        let n_dry = window(params.dries(), params.dry_penalty_last_n);
        Self { tokens: VecDeque::new(), n_keep: n_counted.max(n_dry), n_counted, counts: HashMap::new(), n_unbroken: 0 }
    }

    pub fn push_all(&mut self, tokens: impl ExactSizeIterator<Item = u32>, breakers: &Breakers) {
        let n_beyond = tokens.len().saturating_sub(self.n_keep);
        for token in tokens.skip(n_beyond) {
            self.push(token, breakers);
        }
    }

    pub fn push(&mut self, token: u32, breakers: &Breakers) {
        if self.n_keep == 0 {
            return;
        }
        self.tokens.push_back(token);
        if self.n_counted > 0 {
            *self.counts.entry(token).or_default() += 1;
            if self.tokens.len() > self.n_counted {
                let gone = self.tokens[self.tokens.len() - 1 - self.n_counted];
                if let Some(n) = self.counts.get_mut(&gone) {
                    *n -= 1;
                    if *n == 0 {
                        self.counts.remove(&gone);
                    }
                }
            }
        }
        if self.tokens.len() > self.n_keep {
            self.tokens.pop_front();
        }
        self.n_unbroken = if breakers.end_in_newest(&self.tokens) { 0 } else { self.n_unbroken + 1 };
    }

    /// How often each token occurs in the window of the three penalties. Only tokens that do.
    pub fn counts(&self) -> &HashMap<u32, u32> {
        &self.counts
    }

    /// The last `n` tokens, newest first.
    pub fn newest(&self, n: usize) -> impl Iterator<Item = u32> + '_ {
        self.tokens.iter().rev().take(n).copied()
    }

    pub fn n_unbroken(&self) -> usize {
        self.n_unbroken
    }
}

impl Clone for History {
    fn clone(&self) -> Self {
        Self { tokens: self.tokens.clone(), counts: self.counts.clone(), ..*self }
    }

    /// Keeps its own buffers: a fork that is reused allocates nothing.
    fn clone_from(&mut self, other: &Self) {
        self.tokens.clone_from(&other.tokens);
        self.counts.clone_from(&other.counts);
        (self.n_keep, self.n_counted, self.n_unbroken) = (other.n_keep, other.n_counted, other.n_unbroken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_cover_the_window_and_no_more() {
        for (n, want) in [(3, vec![(1, 2), (2, 1)]), (-1, vec![(1, 3), (2, 1), (3, 2)]), (0, vec![])] {
            let params = SamplingParams { repeat_penalty: 2.0, penalty_last_n: n, ..Default::default() };
            let mut pushed = History::new(&params);
            let tokens = [3, 3, 1, 1, 2, 1];
            tokens.iter().for_each(|&t| pushed.push(t, &Breakers::default()));
            let mut primed = History::new(&params);
            primed.push_all(tokens.into_iter(), &Breakers::default());
            for history in [pushed, primed] {
                let mut counts: Vec<_> = history.counts().iter().map(|(&t, &n)| (t, n)).collect();
                counts.sort_unstable();
                assert_eq!(counts, want, "window {n}");
            }
        }
    }

    #[test]
    fn the_longer_window_is_kept_for_both() {
        let params = SamplingParams {
            repeat_penalty: 2.0,
            penalty_last_n: 1,
            dry_multiplier: 1.0,
            dry_penalty_last_n: 3,
            ..Default::default()
        };
        let mut history = History::new(&params);
        history.push_all([1, 2, 3, 4].into_iter(), &Breakers::default());
        assert_eq!(history.newest(9).collect::<Vec<_>>(), [4, 3, 2]);
        assert_eq!(history.counts(), &HashMap::from([(4, 1)]));
    }
}
