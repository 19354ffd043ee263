//! What graphs cost that were not built yet: a step that builds some takes longer, on a GPU by one or two steps for each.
//! Owns how many there are of a depth and the estimate of their price.

use std::collections::HashMap;

use engine::Built;

/// Graphs of a depth beside one for each state that a step may begin from: two widths of drafts.
const BESIDE: u64 = 2;

/// A graph costs as much again when it comes back: CUDA captures it then.
const AGAIN: f64 = 2.0;

/// Share of a new measurement.
const SHARE: f64 = 0.25;

/// The first slot of a step, its sequences, and the draft tokens of each: what graphs depend on.
pub(crate) type Kind = (usize, usize, usize);

/// What was built, and what it cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct GraphPrices {
    /// Seconds of one; `None` before any was measured.
    seconds: Option<f64>,
    built: HashMap<Kind, u64>,
}

impl GraphPrices {
    /// A step built graphs. `usual`: the seconds of such a step that builds none, where that is known.
    pub(crate) fn add(&mut self, kind: Kind, built: Built, usual: Option<f64>) {
        *self.built.entry(kind).or_default() += built.n_graphs;
        if let Some(usual) = usual {
            let each = (built.took.as_secs_f64() - usual).max(0.0) / built.n_graphs.max(1) as f64;
            let before = self.seconds.unwrap_or(each);
            self.seconds = Some(before + SHARE * (each - before));
        }
    }

    /// Graphs that steps of this kind have still to build, about.
    pub(crate) fn n_new(&self, kind: Kind) -> u64 {
        (1 + kind.2 as u64 + BESIDE).saturating_sub(self.built.get(&kind).copied().unwrap_or(0))
    }

    /// Seconds that all of these will cost, or the first `most`.
    pub(crate) fn price(&self, kind: Kind, most: u64) -> f64 {
        AGAIN * self.seconds.unwrap_or(0.0) * self.n_new(kind).min(most) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_kind_costs_what_it_has_not_built_yet() {
        let mut prices = GraphPrices::default();
        assert_eq!(prices.price((0, 1, 3), 9), 0.0, "nothing is known");
        let built = |n_graphs, ms| Built { n_graphs, took: Duration::from_millis(ms) };
        prices.add((0, 1, 3), built(2, 20), Some(0.010));
        assert!((prices.price((0, 1, 3), 9) - 2.0 * 0.005 * 4.0).abs() < 1e-9);
        assert!((prices.price((1, 1, 3), 2) - 2.0 * 0.005 * 2.0).abs() < 1e-9);
        prices.add((0, 1, 3), built(9, 90), None);
        assert_eq!(prices.price((0, 1, 3), 9), 0.0, "all are there");
    }
}
