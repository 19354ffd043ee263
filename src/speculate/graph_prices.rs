//! What graphs cost that were not built yet: a step that builds some takes longer, on a GPU by one or two steps for each.
//! Owns how many there are of a depth, as far as steps have shown it, and the estimate of their price.

use std::collections::HashMap;

use engine::Built;

/// Graphs of a depth beside one for each state that a step may begin from: two widths of drafts.
const BESIDE: u64 = 2;

/// So many steps that build nothing show that a depth has its graphs: on devices that take states by number they are few.
const QUIET: u64 = 4;

/// A graph costs as much again when it comes back: CUDA captures it then.
const AGAIN: f64 = 2.0;

/// Share of a new measurement.
const SHARE: f64 = 0.25;

/// The first slot of a step, its sequences, and the draft tokens of each: what graphs may depend on.
pub(crate) type Kind = (usize, usize, usize);

/// What steps that begin with one slot have built.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    n_built: u64,
    /// Steps since the last that built some.
    n_quiet: u64,
}

impl Seen {
    /// Graphs that steps with drafts of so many tokens have still to build, about.
    fn n_new(self, depth: usize) -> u64 {
        if self.n_quiet >= QUIET { 0 } else { (1 + depth as u64 + BESIDE).saturating_sub(self.n_built) }
    }
}

/// What was built, and what it cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct GraphPrices {
    /// Seconds of one; `None` before any was measured.
    seconds: Option<f64>,
    seen: HashMap<Kind, Seen>,
    /// A graph serves every slot.
    slots_alike: bool,
}

impl GraphPrices {
    /// From now on: a graph serves every slot.
    pub(crate) fn serve_all_slots(&mut self) {
        self.slots_alike = true;
    }

    /// The kind whose graphs serve this one.
    fn served(&self, (first, n_seqs, depth): Kind) -> Kind {
        (if self.slots_alike { 0 } else { first }, n_seqs, depth)
    }

    /// A step built graphs, or none where `built` is `None`. `usual`: the seconds of such a step that builds none, where that is
    /// known.
    pub(crate) fn add(&mut self, kind: Kind, built: Option<Built>, usual: Option<f64>) {
        let kind = self.served(kind);
        let seen = self.seen.entry(kind).or_default();
        let Some(built) = built else {
            seen.n_quiet += 1;
            return;
        };
        (seen.n_built, seen.n_quiet) = (seen.n_built + built.n_graphs, 0);
        if let Some(usual) = usual {
            let each = (built.took.as_secs_f64() - usual).max(0.0) / built.n_graphs.max(1) as f64;
            let before = self.seconds.unwrap_or(each);
            self.seconds = Some(before + SHARE * (each - before));
        }
    }

    /// Graphs that steps of this kind have still to build, about.
    pub(crate) fn n_new(&self, kind: Kind) -> u64 {
        self.seen.get(&self.served(kind)).copied().unwrap_or_default().n_new(kind.2)
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

    fn built(n_graphs: u64, ms: u64) -> Option<Built> {
        Some(Built { n_graphs, took: Duration::from_millis(ms) })
    }

    #[test]
    fn a_kind_costs_what_it_has_not_built_yet() {
        let mut prices = GraphPrices::default();
        assert_eq!(prices.price((0, 1, 3), 9), 0.0, "nothing is known");
        prices.add((0, 1, 3), built(2, 20), Some(0.010));
        assert!((prices.price((0, 1, 3), 9) - 2.0 * 0.005 * 4.0).abs() < 1e-9);
        assert!((prices.price((0, 1, 2), 2) - 2.0 * 0.005 * 2.0).abs() < 1e-9);
        prices.add((0, 1, 3), built(9, 90), None);
        assert_eq!(prices.price((0, 1, 3), 9), 0.0, "all are there");
    }

    #[test]
    fn a_kind_whose_steps_build_nothing_has_all_its_graphs() {
        let mut prices = GraphPrices::default();
        prices.add((0, 1, 5), built(2, 20), Some(0.010));
        for n in 0..QUIET {
            assert_eq!(prices.n_new((0, 1, 5)), 6, "after {n} steps");
            prices.add((0, 1, 5), None, None);
        }
        assert_eq!(prices.n_new((0, 1, 5)), 0);
        assert_eq!(prices.n_new((0, 2, 5)), 8, "of other widths nothing is known");
        prices.add((0, 1, 5), built(1, 20), None);
        assert_eq!(prices.n_new((0, 1, 5)), 5, "there was one more");
    }

    #[test]
    fn where_a_graph_serves_every_slot_none_is_dear_that_others_have_built() {
        let mut prices = GraphPrices::default();
        prices.serve_all_slots();
        prices.add((0, 1, 1), built(2, 20), None);
        (0..QUIET).for_each(|_| prices.add((3, 1, 1), None, None));
        assert_eq!((prices.n_new((0, 1, 1)), prices.n_new((2, 1, 1)), prices.n_new((2, 1, 2))), (0, 0, 5));
    }
}
