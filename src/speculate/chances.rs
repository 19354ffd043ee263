//! How often drafts were accepted, by sequence and position in the draft, and the tokens that this lets expect of a step.
//! Pure arithmetic; knows nothing of costs.

/// The chance that a draft's first token is accepted, before any was verified.
pub(crate) const FIRST_CHANCE: f64 = 0.6;

/// The chance of a further one before any was verified, as a share of that of the token before it.
pub(crate) const NEXT_CHANCE: f64 = 0.95;

/// How many verified drafts the prior of a generation counts as.
const PRIOR_WEIGHT: f64 = 3.0;

/// Verified drafts that an estimate remembers, about.
const MEMORY: f64 = 90.0;

/// Verified drafts that what earlier engines saw counts as, at most: this one's texts may be others.
const MOST_KNOWN: f64 = 20.0;

/// How often drafts of one depth were accepted, the newer the more.
#[derive(Clone, Copy, Debug, Default)]
struct Chance {
    accepted: f64,
    n: f64,
}

impl Chance {
    fn add(&mut self, accepted: bool) {
        let keep = 1.0 - 1.0 / MEMORY;
        self.n = keep * self.n + 1.0;
        self.accepted = keep * self.accepted + f64::from(u8::from(accepted));
    }

    /// The chance, where `prior` counts as some drafts.
    fn estimate(&self, prior: f64) -> f64 {
        (self.accepted + PRIOR_WEIGHT * prior) / (self.n + PRIOR_WEIGHT)
    }
}

/// The chances of one kind of drafts.
#[derive(Clone, Debug)]
pub(crate) struct Chances {
    /// For each sequence and depth, drafts of its generation that got there.
    of_slot: Vec<Vec<Chance>>,
    /// The same over all generations: the prior of a new one.
    of_all: Vec<Chance>,
    /// The chance of a first token, before any was verified.
    first: f64,
}

impl Chances {
    /// For so many sequences, and drafts of up to `max` tokens.
    pub(crate) fn new(n_slots: usize, max: usize) -> Self {
        Self::with_first(FIRST_CHANCE, n_slots, max)
    }

    /// Likewise, of drafts whose first token is accepted with this chance, as far as is known before any was verified.
    pub(crate) fn with_first(first: f64, n_slots: usize, max: usize) -> Self {
        Self { of_slot: vec![vec![Chance::default(); max]; n_slots], of_all: vec![Chance::default(); max], first }
    }

    /// Begins with what earlier engines saw: accepted and verified drafts, by depth.
    pub(crate) fn begin_with(&mut self, known: &[(f64, f64)]) {
        for (chance, &(accepted, n)) in self.of_all.iter_mut().zip(known).filter(|(_, (_, n))| *n > 0.0) {
            let weight = (MOST_KNOWN / n).min(1.0);
            *chance = Chance { accepted: weight * accepted, n: weight * n };
        }
    }

    /// What was seen, for later engines.
    pub(crate) fn known(&self) -> Vec<(f64, f64)> {
        self.of_all.iter().map(|c| (c.accepted, c.n)).collect()
    }

    /// From here on the generation on `slot` drafts as `other` has seen it draft, and so do those that begin later.
    pub(crate) fn follow(&mut self, slot: usize, other: &Self) {
        self.of_slot[slot].clone_from(&other.of_slot[slot]);
        self.of_all.clone_from(&other.of_all);
    }

    /// A new generation begins on `slot`.
    pub(crate) fn begin(&mut self, slot: usize) {
        self.of_slot[slot].fill(Chance::default());
    }

    /// A step verified `n_drafted` draft tokens of `slot` and accepted the first `n_accepted`.
    pub(crate) fn verified(&mut self, slot: usize, n_drafted: usize, n_accepted: usize) {
        for i in 0..n_drafted.min(self.of_all.len()).min(n_accepted + 1) {
            self.of_slot[slot][i].add(i < n_accepted);
            self.of_all[i].add(i < n_accepted);
        }
    }

    /// Drafts of these generations that got to depth `d`, from 1.
    pub(crate) fn n_verified(&self, slots: &[usize], d: usize) -> f64 {
        slots.iter().map(|&slot| self.of_slot[slot][d - 1].n).sum()
    }

    /// Drafts of all generations so far, as far as they are remembered.
    pub(crate) fn n_of_all(&self) -> f64 {
        self.of_all.first().map_or(0.0, |first| first.n)
    }

    /// Tokens that a step with a draft of `d` tokens of each of these sequences is expected to give.
    pub(crate) fn tokens(&self, slots: &[usize], d: usize) -> f64 {
        let of = |&slot: &usize| {
            let (mut chance, mut prior) = (1.0, self.first);
            let depths = self.of_slot[slot][..d].iter().zip(&self.of_all);
            let drafted = depths.map(|(own, all)| {
                let here = own.estimate(all.estimate(prior));
                prior = NEXT_CHANCE * here;
                chance *= here;
                chance
            });
            1.0 + drafted.sum::<f64>()
        };
        slots.iter().map(of).sum()
    }
}
