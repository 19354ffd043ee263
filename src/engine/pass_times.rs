//! How long passes with prompts take, by their tokens, and how long a prompt's chunk may therefore be beside generations.
//! Pure arithmetic. Knows no clock.

/// Milliseconds of passes of about as many tokens.
#[derive(Debug, Default)]
pub(crate) struct PassTimes {
    /// By the power of two below: tokens and milliseconds, of the latest ones most.
    known: [Option<(f64, f64)>; 24],
}

/// A generation waits for a chunk of a prompt so long, if shorter chunks are not that short.
const MOST_MS: f64 = 100.0;

/// Share of the latest pass in what is known.
const LATEST: f64 = 0.3;

impl PassTimes {
    /// A pass of so many tokens took so long.
    pub(crate) fn record(&mut self, n_tokens: usize, ms: f64) {
        let Some(known) = self.known.get_mut(n_tokens.max(1).ilog2() as usize) else { return };
        let (n, before) = known.unwrap_or((n_tokens as f64, ms));
        *known = Some((n + LATEST * (n_tokens as f64 - n), before + LATEST * (ms - before)));
    }

    /// What a pass of so many tokens will take: between those that are known, and as long as tokens count behind them.
    fn expected(&self, n_tokens: usize) -> Option<f64> {
        let n = n_tokens as f64;
        let below = self.known.iter().flatten().rev().find(|(at, _)| *at <= n);
        let above = self.known.iter().flatten().find(|(at, _)| *at >= n);
        Some(match (below, above) {
            (Some((a, of_a)), Some((b, of_b))) if b > a => of_a + (of_b - of_a) * (n - a) / (b - a),
            (Some((a, ms)), _) => ms * n / a,
            (None, Some((_, ms))) => *ms,
            (None, None) => return None,
        })
    }

    /// Tokens of a prompt's chunk: `least`, and twice as many as often as a pass of them is expected to be short, up to `most`.
    pub(crate) fn chunk(&self, least: usize, most: usize) -> usize {
        let sizes = std::iter::successors(Some(least), |&n| (n < most).then_some((2 * n).min(most)));
        let is_short = |&n: &usize| self.expected(n).is_some_and(|ms| ms <= MOST_MS);
        sizes.filter(is_short).last().unwrap_or(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(all: &[(usize, f64)]) -> PassTimes {
        let mut times = PassTimes::default();
        all.iter().for_each(|&(n, ms)| times.record(n, ms));
        times
    }

    #[test]
    fn chunks_are_as_long_as_they_may_hold_generations_up() {
        assert_eq!(times(&[]).chunk(128, 512), 128);
        // A GPU that takes nearly as long for few tokens as for many.
        assert_eq!(times(&[(135, 56.0), (512, 88.0)]).chunk(128, 512), 512);
        assert_eq!(times(&[(512, 88.0)]).chunk(128, 512), 512);
        // A dense model: 256 tokens are expected to take 106 ms.
        assert_eq!(times(&[(128, 62.0), (512, 193.0)]).chunk(128, 512), 128);
        assert_eq!(times(&[(128, 42.0), (512, 193.0)]).chunk(128, 512), 256);
        // Slow ones keep the least.
        assert_eq!(times(&[(128, 900.0)]).chunk(128, 512), 128);
        // Not more than the batch, whatever it is.
        assert_eq!(times(&[(300, 3.0)]).chunk(128, 300), 300);
        assert_eq!(times(&[(64, 1.0)]).chunk(64, 64), 64);
    }

    #[test]
    fn later_passes_count_more() {
        let mut times = times(&[(512, 400.0)]);
        (0..10).for_each(|_| times.record(512, 80.0));
        assert_eq!(times.chunk(128, 512), 512);
        times.record(1 << 30, 5.0);
    }
}
