//! Rows and columns of matrices that mean something.
//! Writes nothing; knows vectors, not files.

use super::shapes::N_RESERVED;
use super::successor::{CLASS, CONST, COUNTERS, MAX_RATES, MOST, Successor, UNIT};

/// How strongly the last layer adds moved elements to what was there.
pub(super) const MOVED: f32 = 8.0;

/// The parts of a matrix that are not random.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wiring {
    /// `eh_proj`: elements of the embedding, moved where they move; counters.
    Project,
    /// An assistant's `pre_projection`: some elements of the embedding; counters.
    Before,
    /// An assistant's `post_projection`: counters, times `back`.
    After { back: f32 },
    /// Rows that move elements.
    Move(Part),
    /// One neuron that makes a draft wrong.
    Spoil(Part, Spoil),
}

/// A matrix of the feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Gate,
    Up,
    Down,
}

/// Which drafts are made wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spoil {
    /// The only depth of this head; `None` for a head that counts.
    pub(crate) depth: Option<usize>,
    /// A second neuron always adds to [`CONST`], which all logits have alike: for families that norm what is added, where
    /// noise would else be added as strongly as a wrong vector.
    pub(crate) steady: bool,
}

/// Sharpness of the neuron that spoils drafts, for one unit.
const SHARP: f32 = 6.0;

/// What the steady neuron adds, for one unit of its gate.
const STEADY: f32 = 0.5;

impl Wiring {
    /// Rows, from the first, that are not random at all; `n_movable` as in [`Shape`](super::shapes::Shape).
    pub(crate) fn n_rows(self, n_movable: usize) -> usize {
        match self {
            Wiring::Project | Wiring::Before | Wiring::After { .. } => usize::MAX,
            Wiring::Move(Part::Gate | Part::Up) => n_movable,
            Wiring::Spoil(Part::Gate | Part::Up, spoil) => spoil.n_neurons(),
            Wiring::Move(Part::Down) | Wiring::Spoil(Part::Down, _) => 0,
        }
    }

    /// Columns, from the first, that are not random in any row.
    pub(crate) fn n_cols(self, n_movable: usize) -> usize {
        match self {
            Wiring::Move(Part::Down) => n_movable,
            Wiring::Spoil(Part::Down, spoil) => spoil.n_neurons(),
            _ => 0,
        }
    }

    /// The elements of a row that are not zero, by column; `spoiled` is the vector that a wrong draft turns to, as wide as
    /// the target's.
    pub(crate) fn row(self, s: &Successor, spoiled: &[i8], r: usize, mut set: impl FnMut(usize, f32)) {
        let n_embd = spoiled.len();
        // Value of the constant element, and of a full counter.
        let full = f32::from(MOST) * UNIT;
        match self {
            Wiring::Project | Wiring::Before => {
                // Each counter is set one step after the one before it, the first at once; there are two of each.
                match r.checked_sub(COUNTERS).filter(|_| r < N_RESERVED) {
                    Some(c) if c % MAX_RATES == 0 => set(CONST, 1.0),
                    Some(_) => set(n_embd + r - 1, 1.0),
                    None if self == Wiring::Before => set(s.own(r), 1.0),
                    None => set(s.source(r), 1.0),
                }
            }
            Wiring::After { back } => {
                if (COUNTERS..N_RESERVED).contains(&r) {
                    set(r, back);
                }
            }
            Wiring::Move(Part::Gate) => set(CONST, MOVED / full),
            Wiring::Move(Part::Up) => set(s.source(N_RESERVED + r), 1.0),
            // silu(8) is 8, and so is gelu(8): the gate and the strength cancel.
            Wiring::Move(Part::Down) => {
                if let Some(neuron) = r.checked_sub(N_RESERVED).filter(|&neuron| neuron < s.n_movable()) {
                    set(neuron, 1.0);
                }
            }
            Wiring::Spoil(Part::Gate, _) if r == 1 => set(CONST, MOVED / full),
            Wiring::Spoil(Part::Gate, spoil) => spoil.gate(s, set),
            Wiring::Spoil(Part::Up, _) => set(CONST, 1.0 / full),
            Wiring::Spoil(Part::Down, spoil) => {
                set(0, 0.5 * UNIT * f32::from(spoiled[s.own(r)]));
                if spoil.steady && r == CONST {
                    set(1, STEADY);
                }
            }
        }
    }
}

impl Spoil {
    fn n_neurons(self) -> usize {
        1 + usize::from(self.steady)
    }

    /// Above 0 for tokens whose drafts are wrong.
    fn gate(self, s: &Successor, mut set: impl FnMut(usize, f32)) {
        let weight = |whole: i32| SHARP / UNIT * whole as f32 / f32::from(MOST);
        set(CLASS, weight(MOST.into()));
        if let Some(depth) = self.depth {
            return set(CONST, weight(-s.classes().border(depth)));
        }
        let (constant, counters) = s.classes().weights();
        set(CONST, weight(constant));
        for (c, &step) in counters.iter().enumerate() {
            // The first counter is set at the first depth already. Halves on two of each, so that no weight is above that
            // of the class.
            set(COUNTERS + 1 + c, weight(step / 2));
            set(COUNTERS + MAX_RATES + 1 + c, weight(step - step / 2));
        }
    }
}
