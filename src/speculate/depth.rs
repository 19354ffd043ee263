//! How many tokens to draft: the depth with the most expected tokens a second, from costs and acceptance as measured.
//! Pure arithmetic: owns running means, knows nothing of tokens or graphs.
//!
//! With `d` drafts of which each is right with its own chance, a cycle gives `1 + a1 + a1 a2 + ..` tokens and costs the
//! pass over `1 + d` rows and the draft. Depth 0 is plain decoding, so a good estimate is never slower; estimates are kept
//! fresh by a probe now and then.

use std::collections::HashMap;
use std::time::Duration;

/// Weight of a new measurement in a running mean.
const WEIGHT: f64 = 0.15;

/// Plain cycles between two probes of drafting.
const PROBE_EVERY: u32 = 160;

/// The first cycles of an engine: what a plain pass costs, then what drafting costs, each twice.
const FIRST: [usize; 4] = [0, 0, 2, 2];

/// How much better drafting must look than plain decoding.
const MARGIN: f64 = 1.03;

/// A running mean.
#[derive(Clone, Copy, Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |mean| mean + WEIGHT * (value - mean)));
    }
}

/// A running mean of times.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    mean: Mean,
    n: u32,
}

impl Cost {
    fn add(&mut self, took: Duration) {
        let value = took.as_secs_f64();
        self.n += 1;
        match self.mean.0 {
            // The first time includes building the graph: the second stands alone.
            Some(_) if self.n == 2 => self.mean = Mean(Some(value)),
            // A pause of the machine is not a cost of the depth: outliers count as little more than usual.
            Some(mean) => self.mean.add(value.min(2.0 * mean)),
            None => self.mean.add(value),
        }
    }
}

/// Chooses depths for the sequences of one engine.
#[derive(Clone, Debug)]
pub(crate) struct DepthControl {
    max: usize,
    /// For each sequence and depth, the chance that a draft which got there is right.
    right: Vec<Vec<Mean>>,
    /// Seconds of a pass, by sequences and rows of each.
    pass: HashMap<(usize, usize), Cost>,
    /// Seconds of a draft, by sequences and depth.
    draft: HashMap<(usize, usize), Cost>,
    /// Cycles since the last probe.
    plain_cycles: u32,
    /// Cycles so far.
    cycles: u32,
}

impl DepthControl {
    pub(crate) fn new(n_slots: usize, max: usize) -> Self {
        let right = vec![vec![Mean::default(); max]; n_slots];
        Self { max, right, pass: HashMap::new(), draft: HashMap::new(), plain_cycles: 0, cycles: 0 }
    }

    /// A new answer begins on `slot`: what was learned of the last one is a first guess, no more.
    pub(crate) fn begin(&mut self, slot: usize) {
        for mean in &mut self.right[slot] {
            mean.0 = mean.0.map(|a| 0.5 * (a + 0.7));
        }
    }

    /// A step judged `n_drafted` drafts of `slot` and kept the first `n_right`.
    pub(crate) fn judged(&mut self, slot: usize, n_drafted: usize, n_right: usize) {
        for i in 0..n_drafted.min(self.max).min(n_right + 1) {
            self.right[slot][i].add(if i < n_right { 1.0 } else { 0.0 });
        }
    }

    /// A pass over `n_seqs` sequences with `n_rows` rows each took so long.
    pub(crate) fn passed(&mut self, n_seqs: usize, n_rows: usize, took: Duration) {
        self.pass.entry((n_seqs, n_rows)).or_default().add(took);
    }

    /// A draft of `depth` tokens for `n_seqs` sequences took so long.
    pub(crate) fn drafted(&mut self, n_seqs: usize, depth: usize, took: Duration) {
        self.draft.entry((n_seqs, depth)).or_default().add(took);
    }

    /// The depth for a cycle of these sequences, all alike, so that recurrent layers take them in one batch.
    pub(crate) fn choose(&mut self, slots: &[usize]) -> usize {
        let n_seqs = slots.len();
        self.cycles += 1;
        if let Some(&d) = FIRST.get(self.cycles as usize - 1) {
            return d.min(self.max);
        }
        let Some(plain) = self.pass_time(n_seqs, 1) else { return 0 };
        let rate = |d: usize| self.tokens(slots, d) / (self.estimate(n_seqs, d, plain));
        let best = (1..=self.max).max_by(|&a, &b| rate(a).total_cmp(&rate(b))).unwrap_or(0);
        if best > 0 && rate(best) > MARGIN * n_seqs as f64 / plain {
            self.plain_cycles = 0;
            // Now and then a neighbour, so that its cost is known and not guessed.
            let untried = |d: &usize| *d >= 1 && *d <= self.max && !self.pass.contains_key(&(n_seqs, d + 1));
            return [best + 1, best.saturating_sub(1)]
                .into_iter()
                .find(untried)
                .filter(|_| self.cycles.is_multiple_of(8))
                .unwrap_or(best);
        }
        self.plain_cycles += 1;
        if self.plain_cycles >= PROBE_EVERY && best > 0 {
            self.plain_cycles = 0;
            return best;
        }
        0
    }

    /// Tokens that a cycle at depth `d` is expected to give.
    fn tokens(&self, slots: &[usize], d: usize) -> f64 {
        let of = |&slot: &usize| {
            let mut chance = 1.0;
            let right = self.right[slot][..d].iter();
            1.0 + right
                .map(|mean| {
                    chance *= mean.0.unwrap_or(0.7);
                    chance
                })
                .sum::<f64>()
        };
        slots.iter().map(of).sum()
    }

    fn pass_time(&self, n_seqs: usize, n_rows: usize) -> Option<f64> {
        self.pass.get(&(n_seqs, n_rows)).and_then(|cost| cost.mean.0)
    }

    /// Seconds of a cycle at depth `d`: measured, or stretched from the nearest depth that was.
    fn estimate(&self, n_seqs: usize, d: usize, plain: f64) -> f64 {
        let pass = self.pass_time(n_seqs, 1 + d).unwrap_or_else(|| {
            let known = (1..=self.max).filter_map(|k| Some((k, self.pass_time(n_seqs, 1 + k)?)));
            let nearest = known.min_by_key(|(k, _)| k.abs_diff(d));
            nearest.map_or(plain * (1.0 + 0.1 * d as f64), |(k, t)| plain + (t - plain).max(0.0) * d as f64 / k as f64)
        });
        let draft = self.draft.get(&(n_seqs, d)).and_then(|cost| cost.mean.0).unwrap_or_else(|| {
            let known = (1..=self.max).filter_map(|k| Some((k, self.draft.get(&(n_seqs, k))?.mean.0?)));
            let nearest = known.min_by_key(|(k, _)| k.abs_diff(d));
            nearest.map_or(0.05 * plain * d as f64, |(k, t)| t * d as f64 / k as f64)
        });
        pass + draft
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `n` cycles of a machine whose pass over `r` rows costs `pass(r)` and whose draft of `d` costs `draft(d)`, with
    /// drafts right with chance `a`; gives the time a token against plain decoding, over the second half.
    fn against_plain(n: u32, a: f64, pass: impl Fn(usize) -> f64, draft: impl Fn(usize) -> f64) -> f64 {
        let mut control = DepthControl::new(1, 6);
        let mut state = 12345u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        let (mut time, mut tokens) = (0.0, 0.0);
        for cycle in 0..n {
            let d = control.choose(&[0]);
            let n_right = (0..d).take_while(|_| random() < a).count();
            control.judged(0, d, n_right);
            control.passed(1, 1 + d, Duration::from_secs_f64(pass(1 + d)));
            if d > 0 {
                control.drafted(1, d, Duration::from_secs_f64(draft(d)));
            }
            if cycle >= n / 2 {
                time += pass(1 + d) + if d > 0 { draft(d) } else { 0.0 };
                tokens += (1 + n_right) as f64;
            }
        }
        time / tokens / pass(1)
    }

    #[test]
    fn cheap_rows_and_good_drafts_go_deep() {
        let ratio = against_plain(4000, 0.8, |r| 0.01 * (1.0 + 0.06 * (r as f64 - 1.0)), |d| 0.0005 * d as f64);
        assert!(ratio < 0.5, "{ratio}");
    }

    #[test]
    fn dear_rows_or_bad_drafts_end_in_plain_decoding() {
        let ratio = against_plain(8000, 0.3, |r| 0.01 * (1.0 + 0.4 * (r as f64 - 1.0)), |d| 0.001 * d as f64);
        assert!(ratio < 1.015, "{ratio}");
        let ratio = against_plain(8000, 0.8, |r| 0.01 * (1.0 + 1.2 * (r as f64 - 1.0)), |d| 0.001 * d as f64);
        assert!(ratio < 1.015, "{ratio}");
    }

    #[test]
    fn one_slow_pass_does_not_change_the_choice_for_long() {
        let mut control = DepthControl::new(1, 4);
        for _ in 0..200 {
            let d = control.choose(&[0]);
            control.judged(0, d, d);
            control.passed(1, 1 + d, Duration::from_millis(10));
            control.drafted(1, d, Duration::from_millis(1));
        }
        let before = control.choose(&[0]);
        assert!(before > 0);
        control.passed(1, 1 + before, Duration::from_secs(1));
        for _ in 0..40 {
            let d = control.choose(&[0]);
            control.judged(0, d, d);
            control.passed(1, 1 + d, Duration::from_millis(10));
            control.drafted(1, d, Duration::from_millis(1));
        }
        assert_eq!(control.choose(&[0]), before);
    }
}
