//! What engine steps cost, by the number of their sequences and the length of their drafts: as measured, or estimated from
//! steps that are alike.
//! Pure arithmetic. Knows nothing of tokens or graphs.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// What a drafted token costs before any was measured, as a share of a plain step.
const TOKEN_COST: f64 = 0.2;

/// Times that the usual one is taken of.
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
    /// Of the last times a quarter was shorter.
    usual: f64,
    least: f64,
}

impl Cost {
    fn add(&mut self, seconds: f64, at: u64) {
        self.times[self.n % N_TIMES] = seconds;
        self.n += 1;
        self.at = at;
        let mut sorted = self.times;
        let sorted = &mut sorted[..self.n.min(N_TIMES)];
        sorted.sort_unstable_by(f64::total_cmp);
        // Not the median, and of three the least: a pause of the machine, or a file that is read, is no cost of the depth.
        self.usual = sorted[(sorted.len() - 1) / 4];
        self.least = if self.n == 1 { seconds } else { self.least.min(seconds) };
    }
}

/// Ratios that a median is taken of.
const N_RATIOS: usize = 15;

/// So many tell whether what earlier engines measured holds: the first steps of a program are slow.
const ENOUGH_RATIOS: usize = 9;

/// A machine that is faster or slower than this against earlier is another one: its costs have another shape.
const MOST_CHANGED: f64 = 2.5;

/// Or it was busy with other programs: only so many steps outweigh what was known.
const LONG_CHANGED: u64 = 500;

/// Costs of whole steps, by sequences and depth.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepCosts {
    measured: HashMap<(usize, usize), Cost>,
    /// What earlier engines measured, in seconds: that of a step stands here until it is trusted as measured. Of another speed of
    /// the machine, all are out by one factor.
    earlier: HashMap<(usize, usize), f64>,
    /// The last steps' times as shares of what was known of them earlier.
    ratios: VecDeque<f64>,
    /// Steps since what was known earlier turned out not to hold.
    n_since_changed: Option<u64>,
}

impl StepCosts {
    /// Step number `now`, of `n_seqs` sequences with `depth` draft tokens each, took so long from asking for drafts to
    /// verifying them.
    pub(crate) fn add(&mut self, n_seqs: usize, depth: usize, took: Duration, now: u64) {
        let seconds = took.as_secs_f64();
        self.measured.entry((n_seqs, depth)).or_default().add(seconds, now);
        self.n_since_changed = self.n_since_changed.map(|n| n + 1);
        if let Some(earlier) = self.earlier.get(&(n_seqs, depth)) {
            self.ratios.truncate(N_RATIOS - 1);
            self.ratios.push_front(seconds / earlier);
            let holds = (1.0 / MOST_CHANGED..=MOST_CHANGED).contains(&self.scale());
            if self.ratios.len() >= ENOUGH_RATIOS && !holds {
                (self.earlier, self.ratios) = Default::default();
                self.n_since_changed = Some(0);
            }
        }
    }

    /// Takes what earlier engines measured.
    pub(crate) fn begin_with(&mut self, costs: &[(usize, usize, f64)]) {
        self.earlier = costs.iter().map(|&(n, d, seconds)| ((n, d), seconds)).collect();
    }

    /// All that is trusted, for later engines: the least that such a step took here or in earlier ones. What it takes when nothing
    /// else runs is the same from run to run, and an engine that never decodes plainly does not mend what was measured while
    /// the file was read. `None` where earlier costs did not hold and too little was measured to say otherwise.
    pub(crate) fn known(&self) -> Option<Vec<(usize, usize, f64)>> {
        if self.n_since_changed.is_some_and(|n| n < LONG_CHANGED) {
            return None;
        }
        let mut all = self.earlier.clone();
        for (&step, cost) in self.measured.iter().filter(|(_, cost)| cost.n >= TRUSTED) {
            let least = all.entry(step).or_insert(cost.least);
            *least = least.min(cost.least);
        }
        let mut all: Vec<_> = all.into_iter().map(|((n, d), seconds)| (n, d, seconds)).collect();
        all.sort_unstable_by_key(|&(n, d, _)| (n, d));
        Some(all)
    }

    /// How much slower this machine is now than where the earlier costs were measured.
    fn scale(&self) -> f64 {
        let mut sorted: Vec<f64> = self.ratios.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(1.0)
    }

    /// Seconds by what earlier engines measured, at the speed of this one.
    fn by_earlier(&self, n_seqs: usize, depth: usize) -> Option<f64> {
        Some(self.earlier.get(&(n_seqs, depth))? * self.scale())
    }

    /// Seconds as measured, or as earlier engines did as long as that is not trusted. A longer draft of as many sequences is never
    /// cheaper: where one was measured to be, the machine was busy with something else, and what the longer one takes is an
    /// upper bound.
    pub(crate) fn measured(&self, n_seqs: usize, depth: usize) -> Option<f64> {
        let of_this = self.measured.get(&(n_seqs, depth));
        let trusted = of_this.filter(|cost| cost.n >= TRUSTED).map(|cost| cost.usual);
        let by_earlier = || self.by_earlier(n_seqs, depth);
        let own = trusted.or_else(by_earlier).or_else(|| Some(of_this?.usual))?;
        let longer = self.measured.iter().filter(|((n, d), c)| *n == n_seqs && *d > depth && c.n >= TRUSTED);
        Some(longer.map(|(_, c)| c.usual).fold(own, f64::min))
    }

    /// Seconds as measured often enough, here or by earlier engines.
    pub(crate) fn trusted(&self, n_seqs: usize, depth: usize) -> Option<f64> {
        let is_trusted = self.is_measured(n_seqs, depth) || self.earlier.contains_key(&(n_seqs, depth));
        self.measured(n_seqs, depth).filter(|_| is_trusted)
    }

    /// Measured often enough by this engine.
    pub(crate) fn is_measured(&self, n_seqs: usize, depth: usize) -> bool {
        self.measured.get(&(n_seqs, depth)).is_some_and(|cost| cost.n >= TRUSTED)
    }

    /// The longest draft that was measured with so many sequences; 0 for none.
    pub(crate) fn deepest(&self, n_seqs: usize) -> usize {
        let all = self.measured.keys().chain(self.earlier.keys());
        all.filter(|(seqs, _)| *seqs == n_seqs).map(|(_, d)| *d).max().unwrap_or(0)
    }

    /// Some step with a draft was measured, here or by earlier engines.
    pub(crate) fn knows_drafts(&self) -> bool {
        self.measured.keys().chain(self.earlier.keys()).any(|(_, d)| *d > 0)
    }

    /// The longest draft, at most `max`, that may be chosen with so many sequences: step by step into the unknown, since what one
    /// token costs says little of what six do.
    pub(crate) fn within_reach(&self, n_seqs: usize, max: usize) -> usize {
        let deepest = self.deepest(n_seqs);
        let known = (deepest + 1..=max).take_while(|&d| self.between(n_seqs, d).is_some()).last().unwrap_or(deepest);
        max.min(known + 1)
    }

    /// Seconds of a step without drafts. A machine that wakes up is slow at first: one such step tells too little.
    pub(crate) fn plain(&self, n_seqs: usize) -> Option<f64> {
        self.trusted(n_seqs, 0).or_else(|| self.between(n_seqs, 0))
    }

    /// The nearest numbers of sequences below and above whose cost at this depth is trusted: generations of a batch end one
    /// by one, and what the whole batch has learned must not be learned again for each number.
    fn neighbours(&self, n_seqs: usize, depth: usize) -> Option<(usize, usize)> {
        let measured = || self.measured.iter().filter(|(_, c)| c.n >= TRUSTED).map(|(step, _)| step);
        let all = || measured().chain(self.earlier.keys()).filter(|(_, d)| *d == depth).map(|(n, _)| *n);
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
        let of_late = |n| match self.measured.get(&(n, depth)).filter(|c| c.n >= TRUSTED) {
            Some(cost) => now - cost.at < STALE,
            None => now < STALE && self.earlier.contains_key(&(n, depth)),
        };
        of_late(n_seqs) || self.neighbours(n_seqs, depth).is_some_and(|(below, above)| of_late(below) && of_late(above))
    }

    /// Seconds of a step: measured, or between two that were, or stretched from the most alike that was. `plain`: those of
    /// a step without drafts.
    pub(crate) fn estimate(&self, n_seqs: usize, depth: usize, plain: f64) -> f64 {
        if let Some(known) = self.measured(n_seqs, depth).or_else(|| self.between(n_seqs, depth)) {
            return known;
        }
        // What a drafted token adds, by the nearest number of sequences, then the nearest depth.
        let steps = self.measured.keys().chain(self.earlier.keys());
        let added = steps.filter(|(_, d)| *d > 0).filter_map(|&(n, d)| {
            let away = (n.abs_diff(n_seqs), d.abs_diff(depth), n, d);
            Some((away, (self.measured(n, d)? - self.measured(n, 0)?) / (n * d) as f64))
        });
        let token = added.min_by_key(|&(away, _)| away).map_or(TOKEN_COST * plain / n_seqs as f64, |(_, token)| token);
        plain + token.max(0.0) * (n_seqs * depth) as f64
    }
}
