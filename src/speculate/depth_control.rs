//! How many tokens to draft: the depth with the most expected tokens a second, from costs and acceptance as measured.
//! Pure arithmetic: owns what was measured, knows nothing of tokens or graphs.
//!
//! With `d` drafts of which each is accepted with its own chance, a step gives `1 + a1 + a1 a2 + ..` tokens and costs the
//! time of its draft, its forward pass over `1 + d` tokens and the host's work around them. Depth 0 is plain decoding.
//! Trying a depth that looks worse than the best is paid from an allowance, a small share of the time that has passed, so
//! that what is lost to learning stays small however long a text resists drafting.

use std::time::Duration;

use engine::Built;

use crate::calibration::Known;
use crate::chances::Chances;
use crate::graph_prices::{GraphPrices, Kind};
use crate::step_costs::{StepCosts, TRUSTED};

/// Share of the time that trying other depths may cost.
const ALLOWANCE: f64 = 0.007;

/// How much better drafting must look than plain decoding.
const MARGIN: f64 = 1.02;

/// The same where a plain step takes less than a millisecond: what stands beside the steps (handing over, new graphs) weighs
/// as much as the gain there.
const MARGIN_OF_SHORT: f64 = 1.08;
const SHORT: f64 = 1e-3;

/// Steps of a try where plain decoding is best. The first brings the proposer up to date with what was decoded without it, so
/// that only the second shows what the depth costs.
const STEPS_OF_TRY: f64 = 2.0;

/// Verified so often, the chance at a depth is known well enough that no step is spent on it.
const FEW_VERIFIED: f64 = 8.0;

/// Steps of a warm-up at one depth that tell nothing of its cost, and one more for each draft token: they build graphs, or the first
/// passes are slow.
const FIRST_STEPS: usize = 2;

/// A depth whose graphs are not there yet must be worth them within so many steps, or within as many as the depth has held.
pub(crate) const SOON: u64 = 32;

/// Graphs that a try builds at most.
const GRAPHS_OF_TRY: u64 = 2;

/// Tokens of a batch up to which a warm-up measures depths.
const WARM_UP_TOKENS: usize = 128;

/// How much better than plain steps of so many seconds a draft must look.
pub(crate) fn margin(plain: f64) -> f64 {
    if plain < SHORT { MARGIN_OF_SHORT } else { MARGIN }
}

/// What steps promise, by the length of their drafts from 0 on.
struct Prospects {
    /// Seconds.
    times: Vec<f64>,
    tokens: Vec<f64>,
}

impl Prospects {
    fn deepest(&self) -> usize {
        self.times.len() - 1
    }

    /// Tokens a second.
    fn rate(&self, d: usize) -> f64 {
        self.tokens[d] / self.times[d]
    }
}

/// Chooses depths for the sequences of one engine.
#[derive(Clone, Debug)]
pub(crate) struct DepthControl {
    max: usize,
    chances: Chances,
    costs: StepCosts,
    /// Seconds that trying may cost now.
    allowance: f64,
    /// Steps so far.
    now: u64,
    /// Sequences and depth of a try that goes on for another step.
    trying: Option<(usize, usize)>,
    graphs: GraphPrices,
    /// Sequences and depth of the last drafts that were no try, and steps for which that has held.
    held: Option<((usize, usize), u64)>,
}

impl DepthControl {
    pub(crate) fn new(n_slots: usize, max: usize) -> Self {
        Self {
            max,
            chances: Chances::new(n_slots, max),
            costs: StepCosts::default(),
            allowance: 0.0,
            now: 0,
            trying: None,
            graphs: GraphPrices::default(),
            held: None,
        }
    }

    /// Graphs do not depend on slots.
    pub(crate) fn serve_all_slots(&mut self) {
        self.graphs.serve_all_slots();
    }

    /// Begins with what earlier engines measured.
    pub(crate) fn begin_with(&mut self, known: &Known) {
        self.costs.begin_with(&known.costs);
        self.chances.begin_with(&known.accepted);
    }

    /// What this engine has measured, for later ones; `None` where they do better with what is known already.
    pub(crate) fn known(&self) -> Option<Known> {
        let costs = self.costs.known()?;
        Some(Known { costs, accepted: self.chances.known() })
    }

    /// A new generation begins on `slot`.
    pub(crate) fn begin(&mut self, slot: usize) {
        self.chances.begin(slot);
        self.trying = None;
    }

    /// Another head drafts for `slot`, of which so much is known.
    pub(crate) fn follow(&mut self, slot: usize, head: &Chances) {
        self.chances.follow(slot, head);
    }

    /// A step verified `n_drafted` draft tokens of `slot` and accepted the first `n_accepted`.
    pub(crate) fn verified(&mut self, slot: usize, n_drafted: usize, n_accepted: usize) {
        self.chances.verified(slot, n_drafted, n_accepted);
    }

    /// A step of `n_seqs` sequences with `depth` draft tokens each took so long, from asking for drafts to verifying them.
    pub(crate) fn took(&mut self, n_seqs: usize, depth: usize, took: Duration) {
        let seconds = took.as_secs_f64();
        self.costs.add(n_seqs, depth, took, self.now);
        let most =
            3.0 * self.costs.measured(n_seqs, 0).unwrap_or(seconds) + self.graphs.price((0, 0, 0), GRAPHS_OF_TRY);
        self.allowance = (self.allowance + ALLOWANCE * seconds).min(most);
    }

    /// A step took so long because its proposer had to be brought up to date with what was decoded without it: no measure of the
    /// depth, and paid from the allowance, which may take a while to recover.
    pub(crate) fn caught_up(&mut self, n_seqs: usize, depth: usize, took: Duration) {
        let usual = self.costs.measured(n_seqs, depth).unwrap_or(f64::INFINITY);
        self.allowance -= (took.as_secs_f64() - usual).max(0.0);
    }

    /// A step of this kind had to build graphs, or none.
    pub(crate) fn built(&mut self, kind: Kind, built: Option<Built>) {
        let usual = self.costs.measured(kind.1, kind.2).filter(|_| self.costs.is_measured(kind.1, kind.2));
        self.graphs.add(kind, built, usual);
    }

    /// What steps of these sequences promise, at depths of at most `most` that may be chosen by now; `None` while too little was
    /// measured.
    fn prospects(&self, slots: &[usize], most: usize) -> Option<Prospects> {
        let n = slots.len();
        let plain = self.costs.plain(n)?;
        let most = self.costs.within_reach(n, most.min(self.max));
        Some(Prospects {
            times: (0..=most).map(|d| self.costs.estimate(n, d, plain)).collect(),
            tokens: (0..=most).map(|d| self.chances.tokens(slots, d)).collect(),
        })
    }

    /// The depth, at most `most`, that promises these sequences most tokens a second, tries aside, and how many; `None` while too
    /// little was measured.
    pub(crate) fn best(&self, slots: &[usize], most: usize) -> Option<(usize, f64)> {
        let prospects = self.prospects(slots, most)?;
        let deep = (1..=prospects.deepest()).max_by(|&a, &b| prospects.rate(a).total_cmp(&prospects.rate(b)));
        let gains = |d: &usize| prospects.rate(*d) > margin(prospects.times[0]) * prospects.rate(0);
        let best = deep.filter(gains).unwrap_or(0);
        Some((best, prospects.rate(best)))
    }

    /// Tokens that a step with a draft of `d` tokens is expected to give this sequence.
    pub(crate) fn tokens(&self, slot: usize, d: usize) -> f64 {
        self.chances.tokens(&[slot], d.min(self.max))
    }

    /// The depth, at most `most`, for a step of these sequences; all alike, so that recurrent layers take them in one
    /// batch.
    pub(crate) fn choose(&mut self, slots: &[usize], most: usize) -> usize {
        self.now += 1;
        let n = slots.len();
        let Some(prospects) = self.prospects(slots, most) else { return 0 };
        let (Prospects { times, tokens }, most) = (&prospects, prospects.deepest());
        let (plain, rate) = (times[0], |d: usize| prospects.rate(d));
        let first = slots.first().copied().unwrap_or(0);
        // What its graphs add to each of the steps in which another depth must pay.
        let added = |d: usize| match self.held {
            Some((held, n_steps)) if held != (n, d) => {
                self.graphs.price((first, n, d), u64::MAX) / (SOON + n_steps) as f64
            }
            _ => 0.0,
        };
        let worth = |d: usize| tokens[d] / (times[d] + added(d));
        let Some(deep) = (1..=most).max_by(|&a, &b| worth(a).total_cmp(&worth(b))) else { return 0 };
        let margin = margin(plain);
        let best = if rate(deep) > margin * rate(0) { deep } else { 0 };
        if let Some((_, depth)) = self.trying.take().filter(|&(seqs, depth)| seqs == n && depth <= most && best == 0) {
            return depth;
        }
        // Seconds that a try at `d` is expected to lose against the same tokens at the best depth. A draft that is not
        // expected to pay is not free either, however near it comes.
        let n_steps = if best == 0 { STEPS_OF_TRY } else { 1.0 };
        let loss = |d: usize| {
            let least = if best == 0 && d > 0 { (margin - 1.0) * times[d] } else { 0.0 };
            let graphs = self.graphs.price((first, n, d), GRAPHS_OF_TRY);
            n_steps * (times[d] - tokens[d] / rate(best)).max(least) + graphs
        };
        let affordable = |d: &usize| loss(*d) <= self.allowance;
        // What comes after a depth is judged by it, until some drafts got there.
        let is_judged = |d: usize| self.is_verified(slots, d) || !self.is_verified(slots, best);
        let to_try = if best == 0 {
            // Only drafting tells whether the text has become easier.
            Some(deep).filter(affordable)
        } else {
            [0, best + 1, best - 1]
                .into_iter()
                .filter(|&d| d <= most && !(self.costs.is_known(n, d, self.now) && is_judged(d)))
                .find(affordable)
        };
        let depth = to_try.unwrap_or(best);
        self.allowance -= if depth == best { 0.0 } else { loss(depth) };
        self.trying = (best == 0 && depth > 0).then_some((n, depth));
        if best > 0 {
            let n_steps = self.held.filter(|(held, _)| *held == (n, best)).map_or(0, |(_, n_steps)| n_steps + 1);
            self.held = Some(((n, best), n_steps));
        }
        depth
    }

    /// In a warm-up: the shortest draft, at most `most`, whose cost was not measured yet; then that which lacks most graphs.
    pub(crate) fn choose_unknown(&mut self, slots: &[usize], most: usize) -> usize {
        self.now += 1;
        let (n_seqs, first) = (slots.len(), slots.first().copied().unwrap_or(0));
        let deepest = (WARM_UP_TOKENS / n_seqs.max(1)).saturating_sub(1).clamp(1, self.max);
        let lacking = |d: &usize| self.graphs.n_new((first, n_seqs, *d));
        let depths = || 1..=most.min(deepest);
        let unknown = std::iter::once(0).chain(depths()).find(|&d| !self.costs.is_measured(n_seqs, d));
        unknown.or_else(|| depths().filter(|d| lacking(d) > 0).max_by_key(lacking)).unwrap_or(0)
    }

    /// Engine steps until a warm-up knows every depth.
    pub(crate) fn n_warm_up_steps(&self) -> usize {
        (0..=self.max).map(|depth| TRUSTED + FIRST_STEPS + depth).sum()
    }

    /// Tokens a second of a sequence that drafts in a step of so many, at the best of the depths that were measured; `None` where
    /// none was.
    pub(crate) fn outlook(&self, slot: usize, n_seqs: usize) -> Option<f64> {
        let rate = |d: usize| {
            let time = self.costs.measured(n_seqs, d).or_else(|| self.costs.between(n_seqs, d))?;
            Some(self.chances.tokens(&[slot], d) / time)
        };
        (1..=self.max).filter_map(rate).max_by(f64::total_cmp)
    }

    /// Seconds of a step of so many sequences without drafts, as measured.
    pub(crate) fn plain(&self, n_seqs: usize) -> Option<f64> {
        self.costs.measured(n_seqs, 0).or_else(|| self.costs.between(n_seqs, 0))
    }

    /// Whether drafts of these generations got to depth `d` often enough to tell how they end there.
    fn is_verified(&self, slots: &[usize], d: usize) -> bool {
        d == 0 || self.chances.n_verified(slots, d) >= FEW_VERIFIED
    }
}

#[cfg(test)]
mod tests;
