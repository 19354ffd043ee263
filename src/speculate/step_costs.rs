//! What engine steps cost, by the number of their sequences and the length of their drafts: as measured, or estimated from
//! steps that are alike.
//! Pure arithmetic. Knows nothing of tokens or graphs.

use std::collections::HashMap;
use std::time::Duration;

/// What a drafted token costs before any was measured, as a share of a plain step.
const TOKEN_COST: f64 = 0.2;

/// Times that a median is taken of.
const N_TIMES: usize = 9;

/// Measured so often, a cost is trusted..
pub(crate) const TRUSTED: usize = 3;

/// ..for so many steps.
const STALE: u64 = 400;

/// The last times of one kind of step, in seconds.
#[derive(Clone, Debug, Default)]
struct Cost {
    /// The newest at `n % N_TIMES`.
    times: [f64; N_TIMES],
    n: usize,
    /// The step in which the newest was measured.
    at: u64,
    median: f64,
}

impl Cost {
    fn add(&mut self, seconds: f64, at: u64) {
        self.times[self.n % N_TIMES] = seconds;
        self.n += 1;
        self.at = at;
        let mut sorted = self.times;
        let sorted = &mut sorted[..self.n.min(N_TIMES)];
        sorted.sort_unstable_by(f64::total_cmp);
        // Of an even number the smaller: a pause of the machine is no cost of the depth.
        self.median = sorted[(sorted.len() - 1) / 2];
    }
}

/// Costs of whole steps, by sequences and depth.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepCosts(HashMap<(usize, usize), Cost>);

impl StepCosts {
    /// Step number `now`, of `n_seqs` sequences with `depth` draft tokens each, took so long from asking for drafts to
    /// verifying them.
    pub(crate) fn add(&mut self, n_seqs: usize, depth: usize, took: Duration, now: u64) {
        self.0.entry((n_seqs, depth)).or_default().add(took.as_secs_f64(), now);
    }

    /// Seconds as measured.
    pub(crate) fn measured(&self, n_seqs: usize, depth: usize) -> Option<f64> {
        self.0.get(&(n_seqs, depth)).map(|c| c.median)
    }

    /// Seconds as measured often enough.
    pub(crate) fn trusted(&self, n_seqs: usize, depth: usize) -> Option<f64> {
        self.0.get(&(n_seqs, depth)).filter(|c| c.n >= TRUSTED).map(|c| c.median)
    }

    /// The longest draft that was measured with so many sequences; 0 for none.
    pub(crate) fn deepest(&self, n_seqs: usize) -> usize {
        self.0.keys().filter(|(seqs, _)| *seqs == n_seqs).map(|(_, d)| *d).max().unwrap_or(0)
    }

    /// The nearest numbers of sequences below and above whose cost at this depth is trusted: generations of a batch end one
    /// by one, and what the whole batch has learned must not be learned again for each number.
    fn neighbours(&self, n_seqs: usize, depth: usize) -> Option<(usize, usize)> {
        let all = || self.0.iter().filter(|((_, d), c)| *d == depth && c.n >= TRUSTED).map(|((n, _), _)| *n);
        Some((all().filter(|n| *n < n_seqs).max()?, all().filter(|n| *n > n_seqs).min()?))
    }

    /// Between the neighbours' costs, in proportion.
    pub(crate) fn between(&self, n_seqs: usize, depth: usize) -> Option<f64> {
        let (below, above) = self.neighbours(n_seqs, depth)?;
        let (low, high) = (self.measured(below, depth)?, self.measured(above, depth)?);
        Some(low + (high - low) * (n_seqs - below) as f64 / (above - below) as f64)
    }

    /// Measured of late, as seen from step `now`, or lying between two that were.
    pub(crate) fn is_known(&self, n_seqs: usize, depth: usize, now: u64) -> bool {
        let of_late = |n| self.0.get(&(n, depth)).is_some_and(|c| c.n >= TRUSTED && now - c.at < STALE);
        of_late(n_seqs) || self.neighbours(n_seqs, depth).is_some_and(|(below, above)| of_late(below) && of_late(above))
    }

    /// Seconds of a step: measured, or between two that were, or stretched from the most alike that was. `plain`: those of
    /// a step without drafts.
    pub(crate) fn estimate(&self, n_seqs: usize, depth: usize, plain: f64) -> f64 {
        if let Some(known) = self.measured(n_seqs, depth).or_else(|| self.between(n_seqs, depth)) {
            return known;
        }
        // What a drafted token adds, by the nearest number of sequences, then the nearest depth.
        let added = self.0.iter().filter(|((_, d), _)| *d > 0).filter_map(|(&(n, d), c)| {
            let away = (n.abs_diff(n_seqs), d.abs_diff(depth), n, d);
            Some((away, (c.median - self.measured(n, 0)?) / (n * d) as f64))
        });
        let token = added.min_by_key(|&(away, _)| away).map_or(TOKEN_COST * plain / n_seqs as f64, |(_, token)| token);
        plain + token.max(0.0) * (n_seqs * depth) as f64
    }
}
