//! Whether the drafts of a step are looked up in the text, and how long these are, where another source may draft or none.
//! Owns what that is decided by: what steps cost without the time in which drafts are made, and what the other source's drafts
//! are worth. Pure arithmetic; knows nothing of tokens or graphs.
//!
//! A draft that is looked up costs nothing to make, but its tokens are verified like others. So what a step with it takes is
//! known from every step of that width, whoever drafted, less the time of drafting; and it is used where it promises more tokens
//! a second than the best that the other source, or plain decoding, promises.

use std::time::Duration;

use engine::Built;

use crate::calibration::Known;
use crate::depth::Depth;
use crate::depth_control::{DepthControl, SOON, margin};
use crate::graph_prices::{GraphPrices, Kind};
use crate::step_costs::StepCosts;

/// Share of the time that tries may cost: of lengths whose steps were not measured of late, and of the other source where lookup
/// has drafted for long.
const ALLOWANCE: f64 = 0.005;

/// What the first draft token ever costs, as a share of a plain step, while that is a guess: a text that surely repeats itself is
/// waited for.
const UNKNOWN_COST: f64 = 0.6;

/// Where lengths are given and nothing else drafts, a draft is worth a try if its first token is right so often.
const WORTH: f64 = 0.4;

/// How long looked-up drafts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// As long as was said.
    Given,
    /// As pays by measured time.
    Measured,
}

impl From<Depth> for Lengths {
    fn from(depth: Depth) -> Self {
        match depth {
            Depth::Auto => Self::Measured,
            Depth::Fixed(_) => Self::Given,
        }
    }
}

/// A sequence that wants a draft, and what was found for it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) slot: usize,
    /// Tokens of a draft at most.
    pub(crate) most: usize,
    /// Tokens that a step is expected to give with the first tokens of what was found, by how many; empty where nothing was.
    pub(crate) expected: Vec<f64>,
}

impl Candidate {
    fn n_found(&self) -> usize {
        self.expected.len().saturating_sub(1)
    }

    /// Tokens that a step gives this sequence where drafts have up to `d` tokens and are looked up.
    fn tokens(&self, d: usize) -> f64 {
        self.expected.get(d.min(self.n_found())).copied().unwrap_or(1.0)
    }
}

/// Who drafts for a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The other source, if there is one.
    Other,
    /// Lookup, so many tokens.
    Lookup(usize),
}

/// The choice for the sequences of one engine.
#[derive(Debug)]
pub(crate) struct LookupChoice {
    lengths: Lengths,
    max: usize,
    /// What is known of the other source; lengths are its own to choose.
    other: Option<DepthControl>,
    /// Of steps without the time of drafting.
    costs: StepCosts,
    graphs: GraphPrices,
    /// Seconds that trying may cost now.
    allowance: f64,
    /// Steps so far.
    now: u64,
}

impl LookupChoice {
    /// For drafts of up to `max` tokens. `other`: sequences and longest draft of the other source, where there is one.
    pub(crate) fn new(lengths: Lengths, max: usize, other: Option<(usize, usize)>) -> Self {
        Self {
            lengths,
            max,
            other: other.map(|(n_slots, max)| DepthControl::new(n_slots, max)),
            costs: StepCosts::default(),
            graphs: GraphPrices::default(),
            allowance: 0.0,
            now: 0,
        }
    }

    /// Graphs do not depend on slots.
    pub(crate) fn serve_all_slots(&mut self) {
        self.graphs.serve_all_slots();
    }

    /// Begins with what earlier engines measured: of steps, and of the other source.
    pub(crate) fn begin_with(&mut self, steps: &Known, other: &Known) {
        self.costs.begin_with(&steps.costs);
        if let Some(control) = &mut self.other {
            control.begin_with(other);
        }
    }

    /// What this engine has measured of steps and of the other source, for later ones.
    pub(crate) fn known(&self) -> (Option<Known>, Option<Known>) {
        let steps = self.costs.known().map(|costs| Known { costs, accepted: Vec::new() });
        (steps, self.other.as_ref().and_then(DepthControl::known))
    }

    /// A new generation begins on `slot`.
    pub(crate) fn begin(&mut self, slot: usize) {
        if let Some(other) = &mut self.other {
            other.begin(slot);
        }
    }

    /// Of a draft of the other source `n_drafted` tokens were compared with what came, and the first `n_accepted` were right.
    pub(crate) fn verified(&mut self, slot: usize, n_drafted: usize, n_accepted: usize) {
        if let Some(other) = &mut self.other {
            other.verified(slot, n_drafted, n_accepted);
        }
    }

    /// A step of `n_seqs` sequences with `depth` draft tokens each took so long, `drafting` of it for making these. `by_lookup`:
    /// some were looked up.
    pub(crate) fn took(
        &mut self,
        (n_seqs, depth): (usize, usize),
        took: Duration,
        drafting: Duration,
        by_lookup: bool,
    ) {
        self.costs.add(n_seqs, depth, took.saturating_sub(drafting), self.now);
        if let Some(other) = self.other.as_mut().filter(|_| !by_lookup) {
            other.took(n_seqs, depth, took);
        }
        let most = 3.0 * self.costs.measured(n_seqs, 0).unwrap_or(took.as_secs_f64());
        self.allowance = (self.allowance + ALLOWANCE * took.as_secs_f64()).min(most);
    }

    /// A step of this kind had to build graphs, or none.
    pub(crate) fn built(&mut self, kind: Kind, built: Option<Built>) {
        let usual = self.costs.measured(kind.1, kind.2).filter(|_| self.costs.is_measured(kind.1, kind.2));
        self.graphs.add(kind, built, usual);
    }

    /// Who drafts for each of these sequences in the next step.
    pub(crate) fn choose(&mut self, candidates: &[Candidate]) -> Vec<By> {
        self.now += 1;
        if candidates.iter().all(|candidate| candidate.n_found() == 0) {
            return vec![By::Other; candidates.len()];
        }
        match self.lengths {
            Lengths::Given => candidates.iter().map(|candidate| self.given(candidate)).collect(),
            Lengths::Measured => self.measured(candidates).unwrap_or_else(|| vec![By::Other; candidates.len()]),
        }
    }

    /// The one of which more is expected; without measured times a draft of either counts as dear as the other.
    fn given(&self, candidate: &Candidate) -> By {
        let n = candidate.n_found();
        let worth = match &self.other {
            Some(_) => n > 0 && candidate.tokens(n) >= self.other_tokens(candidate.slot, n),
            None => candidate.tokens(1) >= 1.0 + WORTH,
        };
        if worth { By::Lookup(n) } else { By::Other }
    }

    /// `None` where lookup does not gain, or too little is known.
    fn measured(&mut self, candidates: &[Candidate]) -> Option<Vec<By>> {
        let n = candidates.len();
        let slots: Vec<usize> = candidates.iter().map(|candidate| candidate.slot).collect();
        let most = candidates.iter().map(|candidate| candidate.most).max().unwrap_or(0);
        let plain = self.costs.plain(n)?;
        let (of_other, usual) = match &self.other {
            Some(other) => other.best(&slots, most)?,
            None => (0, n as f64 / plain),
        };
        let first = slots.first().copied().unwrap_or(0);
        let tokens = |d: usize| candidates.iter().map(|candidate| candidate.tokens(d)).sum::<f64>();
        // As if all drafts were as long: where some are shorter, or missing, the step takes no longer.
        let time = |d: usize| match self.costs.knows_drafts() {
            true => self.costs.estimate(n, d, plain),
            false => plain * (1.0 + UNKNOWN_COST * d as f64),
        };
        let added = |d: usize| self.graphs.price((first, n, d), u64::MAX) / SOON as f64;
        let rate = |d: usize| tokens(d) / (time(d) + added(d));
        let n_found = candidates.iter().map(Candidate::n_found).max().unwrap_or(0);
        let longest = self.costs.within_reach(n, n_found.min(self.max));
        let best = (1..=longest).max_by(|&a, &b| rate(a).total_cmp(&rate(b)))?;
        let gains = rate(best) > (margin(plain) * usual).max(self.exchanged(candidates, (of_other, usual)));
        let loss = if gains {
            // Only its drafts tell whether the other source has become better.
            let tokens = slots.iter().map(|&slot| self.other_tokens(slot, of_other)).sum::<f64>();
            tokens / usual - tokens / rate(best)
        } else {
            // What steps of that width cost may have changed.
            time(best) - tokens(best) / usual + added(best) * SOON as f64
        };
        let wanted = if gains { self.other.is_some() } else { !self.costs.is_known(n, best, self.now) };
        let tries = wanted && loss <= self.allowance;
        self.allowance -= if tries { loss.max(0.0) } else { 0.0 };
        (gains != tries).then(|| candidates.iter().map(|candidate| By::Lookup(best.min(candidate.n_found()))).collect())
    }

    /// Tokens that a step is expected to give this sequence with a draft of `d` tokens of the other source.
    fn other_tokens(&self, slot: usize, d: usize) -> f64 {
        self.other.as_ref().map_or(1.0, |other| other.tokens(slot, d))
    }

    /// Whether what was found for one of several sequences is better than the draft of as many tokens, `n`, that the other source
    /// has made for it: the step takes as long with either.
    pub(crate) fn is_better(&self, candidate: &Candidate, n: usize) -> bool {
        self.gain(candidate, n) > 0.0
    }

    /// Tokens that this sequence gains by such an exchange.
    fn gain(&self, candidate: &Candidate, n: usize) -> f64 {
        if n == 0 || candidate.n_found() < n {
            0.0
        } else {
            (candidate.tokens(n) - self.other_tokens(candidate.slot, n)).max(0.0)
        }
    }

    /// Tokens a second where the other source drafts at its best length and what is better is exchanged. `usual`: those without
    /// that.
    fn exchanged(&self, candidates: &[Candidate], (depth, usual): (usize, f64)) -> f64 {
        if candidates.len() == 1 {
            return usual;
        }
        let gain: f64 = candidates.iter().map(|candidate| self.gain(candidate, depth)).sum();
        let of_other: f64 = candidates.iter().map(|candidate| self.other_tokens(candidate.slot, depth)).sum();
        usual * (1.0 + gain / of_other)
    }
}

#[cfg(test)]
mod tests;
