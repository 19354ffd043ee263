//! The candidates of one step, from the whole vocabulary down to the few that remain.
//! Owns sorting, pruning by logit and changes to logits. Knows nothing of the samplers' parameters.
//!
//! A pool starts as the row of logits itself, and most pruning happens on that row without a copy; the first stage that
//! keeps a few turns it into a list. Order everywhere: higher logit first, then lower id.

use super::math::{self, LOGIT_MAX, clean};
use super::select::{Cand, above, argmax, top};

/// Buffers that a sampler keeps from step to step, so that a step allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    row: Vec<f32>,
    cands: Vec<Cand>,
}

/// What is left to choose from. Never holds a masked token once it is a list.
pub(super) struct Pool<'a> {
    given: &'a [f32],
    copy: &'a mut Vec<f32>,
    cands: &'a mut Vec<Cand>,
    form: Form,
    /// The first so many candidates are in order and come before all others. Meaningful in the list form.
    n_sorted: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The caller's row, untouched: values may be NaN or infinite.
    Given,
    /// Our changed copy of the row.
    Copied,
    List,
}

impl<'a> Pool<'a> {
    pub fn new(logits: &'a [f32], scratch: &'a mut Scratch) -> Self {
        scratch.cands.clear();
        let Scratch { row, cands } = scratch;
        Self { given: logits, copy: row, cands, form: Form::Given, n_sorted: 0 }
    }

    /// A pool of the first candidates only, in whatever order they come.
    pub fn of(candidates: impl Iterator<Item = (u32, f32)>, scratch: &'a mut Scratch) -> Self {
        let Scratch { row, cands } = scratch;
        cands.clear();
        let usable = candidates.map(|(id, x)| (id, clean(x))).filter(|c| c.1 > f32::NEG_INFINITY);
        cands.extend(usable.map(|(id, x)| Cand::new(id, x)));
        cands.sort_unstable();
        let n_sorted = cands.len();
        Self { given: &[], copy: row, cands, form: Form::List, n_sorted }
    }

    /// Number of tokens not masked. A pass over the vocabulary as long as nothing has pruned.
    pub fn n_usable(&self) -> usize {
        match self.row() {
            Some(row) => row.iter().filter(|&&x| x >= -LOGIT_MAX).count(),
            None => self.cands.len(),
        }
    }

    /// Largest logit; `None` when every token is masked.
    pub fn max(&self) -> Option<f32> {
        let max = match self.row() {
            Some(row) => math::max(row),
            None if self.n_sorted > 0 => self.cands[0].logit(),
            None => self.cands.iter().min().map_or(f32::NEG_INFINITY, |c| c.logit()),
        };
        (max > f32::NEG_INFINITY).then_some(max)
    }

    /// Sum of `exp(logit - max)`.
    pub fn sum_exp(&self, max: f32) -> f64 {
        match self.row() {
            Some(row) => math::sum_exp(row, max),
            None => self.cands.iter().map(|c| f64::from(math::exp(c.logit() - max))).sum(),
        }
    }

    /// Shannon entropy in nats of the softmax over the pool, given its `max` and `sum_exp`.
    pub fn entropy(&self, max: f32, sum_exp: f64) -> f64 {
        let times = match self.row() {
            Some(row) => math::sum_exp_times(row, max),
            None => {
                let term = |d: f32| f64::from(math::exp(d)) * f64::from(d);
                self.cands.iter().map(|c| term(c.logit() - max)).sum()
            }
        };
        sum_exp.ln() - times / sum_exp
    }

    /// Mean and standard deviation (of the population) of the logits; `None` when every token is masked.
    pub fn mean_and_deviation(&self) -> Option<(f64, f64)> {
        if let Some(row) = self.row() {
            return math::mean_and_deviation(row);
        }
        let n = self.cands.len() as f64;
        let mean = self.cands.iter().map(|c| f64::from(c.logit())).sum::<f64>() / n;
        let variance = self.cands.iter().map(|c| (f64::from(c.logit()) - mean).powi(2)).sum::<f64>() / n;
        (n > 0.0).then(|| (mean, variance.sqrt()))
    }

    /// Changes the logits of a few tokens. `tokens` gives each id once with what `change` needs to know of it;
    /// `look` finds the same by id. Ids outside the vocabulary are passed over, masked tokens stay masked, and a
    /// changed logit stays within `LOGIT_MAX`, so that a forced token survives any penalty. Only a change to minus
    /// infinity masks.
    ///
    /// Two ways to the same end: a row is indexed by the few ids, a list is walked.
    pub fn touch<T: Copy>(
        &mut self,
        tokens: impl Iterator<Item = (u32, T)>,
        look: impl Fn(u32) -> Option<T>,
        change: impl Fn(f64, T) -> f64,
    ) {
        if self.is_row() {
            self.own_row();
            for (id, what) in tokens {
                if let Some(x) = self.copy.get_mut(id as usize).filter(|x| **x > f32::NEG_INFINITY) {
                    *x = bound(change(f64::from(*x), what));
                }
            }
            return;
        }
        self.cands.retain_mut(|c| {
            let Some(what) = look(c.id()) else { return true };
            let x = bound(change(f64::from(c.logit()), what));
            if x > f32::NEG_INFINITY {
                *c = Cand::new(c.id(), x);
            }
            x > f32::NEG_INFINITY
        });
        self.n_sorted = 0;
    }

    /// Divides every logit by `t`, which must be positive and no smaller than 1e-6.
    pub fn divide(&mut self, t: f32) {
        if self.is_row() {
            self.own_row();
            self.copy.iter_mut().for_each(|x| *x = quotient(*x, t));
        } else {
            // Keeps the order, except that logits which round to the same value keep that of their parents.
            self.cands.iter_mut().for_each(|c| *c = Cand::new(c.id(), quotient(c.logit(), t)));
        }
    }

    /// Keeps only the first candidate in order.
    pub fn keep_best(&mut self) {
        let best = match self.row() {
            Some(row) => argmax(row).map(|i| Cand::new(i, clean(row[i as usize]))),
            None if self.n_sorted > 0 => self.cands.first().copied(),
            None => self.cands.iter().min().copied(),
        };
        self.cands.clear();
        self.cands.extend(best);
        self.set_list(self.cands.len());
    }

    /// Keeps the first `k >= 1` candidates in order, and sorts them.
    pub fn keep_top(&mut self, k: usize) {
        if let Some(row) = row_of(self.form, self.given, self.copy) {
            top(row, k, self.cands);
            self.set_list(self.cands.len());
        } else {
            self.sort_to(k);
            self.cands.truncate(k);
        }
    }

    /// Keeps the candidates with a logit of at least `least`, but no fewer than the `min_keep >= 1` first ones.
    pub fn keep_at_least(&mut self, least: f32, min_keep: usize) {
        if !self.is_row() && self.n_sorted == self.cands.len() {
            let n = self.cands.partition_point(|c| c.logit() >= least);
            self.keep_top(n.max(min_keep));
            return;
        }
        let n_above = match self.row() {
            Some(row) => row.iter().filter(|&&x| clean(x) >= least && x >= -LOGIT_MAX).count(),
            None => self.cands.iter().filter(|c| c.logit() >= least).count(),
        };
        if n_above < min_keep {
            self.keep_top(min_keep);
        } else if let Some(row) = row_of(self.form, self.given, self.copy) {
            above(row, least, self.cands);
            self.set_list(0);
        } else {
            self.cands.retain(|c| c.logit() >= least);
            self.n_sorted = 0;
        }
    }

    /// The candidates as a list, in no particular order.
    pub fn list(&mut self) -> &mut Vec<Cand> {
        if let Some(row) = row_of(self.form, self.given, self.copy) {
            above(row, f32::NEG_INFINITY, self.cands);
            self.set_list(0);
        }
        self.cands
    }

    /// Must follow a change to [`Pool::list`] that breaks the order.
    pub fn forget_order(&mut self) {
        self.n_sorted = 0;
    }

    /// Candidate number `i` in order. Sorts no more than it must: the tail of a vocabulary is rarely asked for.
    pub fn nth(&mut self, i: usize) -> Option<Cand> {
        self.list();
        if i >= self.n_sorted {
            self.sort_to((i + 1).max(4 * self.n_sorted).max(FIRST_SORTED));
        }
        self.cands.get(i).copied()
    }

    /// The whole list in order.
    pub fn sorted(&mut self) -> &[Cand] {
        self.list();
        self.sort_to(self.cands.len());
        self.cands
    }

    /// Whether the pool is still the whole row, so that ids can be used as indices.
    pub fn is_row(&self) -> bool {
        self.form != Form::List
    }

    /// The row, as long as nothing has made it a list. Values may be masked or not clean.
    pub fn row(&self) -> Option<&[f32]> {
        row_of(self.form, self.given, self.copy)
    }

    fn set_list(&mut self, n_sorted: usize) {
        self.form = Form::List;
        self.n_sorted = n_sorted;
    }

    fn own_row(&mut self) {
        if self.form == Form::Given {
            self.copy.clear();
            self.copy.extend(self.given.iter().map(|&x| clean(x)));
            self.form = Form::Copied;
        }
    }

    fn sort_to(&mut self, n: usize) {
        let n = n.min(self.cands.len());
        if n <= self.n_sorted {
            return;
        }
        let rest = &mut self.cands[self.n_sorted..];
        let want = n - self.n_sorted;
        if want < rest.len() {
            rest.select_nth_unstable(want - 1);
        }
        rest[..want].sort_unstable();
        self.n_sorted = n;
    }
}

fn row_of<'r>(form: Form, given: &'r [f32], copy: &'r [f32]) -> Option<&'r [f32]> {
    match form {
        Form::Given => Some(given),
        Form::Copied => Some(copy),
        Form::List => None,
    }
}

/// Stays within `LOGIT_MAX`, as a chain may divide more than once; minus infinity stays what it is.
fn quotient(x: f32, t: f32) -> f32 {
    if x == f32::NEG_INFINITY { x } else { (x / t).clamp(-LOGIT_MAX, LOGIT_MAX) }
}

fn bound(x: f64) -> f32 {
    if x == f64::NEG_INFINITY { f32::NEG_INFINITY } else { x.clamp(f64::from(-LOGIT_MAX), f64::from(LOGIT_MAX)) as f32 }
}

/// How many candidates a walk in order sorts first: the nucleus of an ordinary step is smaller.
const FIRST_SORTED: usize = 128;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn logit() -> impl Strategy<Value = f32> {
        prop_oneof![
            8 => -20.0_f32..20.0,
            2 => (-3_i32..4).prop_map(|x| x as f32),
            1 => prop::sample::select(vec![f32::NAN, f32::NEG_INFINITY, f32::INFINITY, f32::MIN, f32::MAX, 0.0, -0.0]),
        ]
    }

    /// Every usable candidate in order, by the plainest means.
    fn plain(row: &[f32]) -> Vec<(u32, f32)> {
        let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().map(|&x| clean(x))).collect();
        all.retain(|c| c.1 > f32::NEG_INFINITY);
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        all
    }

    fn pairs(list: &[Cand]) -> Vec<(u32, f32)> {
        list.iter().map(|c| (c.id(), c.logit())).collect()
    }

    proptest! {
        #[test]
        fn selection_from_the_row_agrees_with_sorting_everything(
            row in prop::collection::vec(logit(), 1..900),
            k in 1_usize..1000,
            least in -25.0_f32..25.0,
        ) {
            let want = plain(&row);
            prop_assert_eq!(argmax(&row), want.first().map(|c| c.0));
            let mut scratch = Scratch::default();
            let mut pool = Pool::new(&row, &mut scratch);
            prop_assert_eq!(pool.n_usable(), want.len());
            prop_assert_eq!(pool.max(), want.first().map(|c| c.1));
            pool.keep_top(k);
            let top = &want[..k.min(want.len())];
            prop_assert_eq!(pairs(pool.sorted()), top);
            pool.keep_at_least(least, 2);
            let n = top.iter().filter(|c| c.1 >= least).count().max(2).min(top.len());
            prop_assert_eq!(pairs(pool.sorted()), &top[..n]);

            let mut pool = Pool::new(&row, &mut scratch);
            pool.keep_at_least(least, 1);
            let n = want.iter().filter(|c| c.1 >= least).count().max(1).min(want.len());
            for (i, c) in want[..n].iter().enumerate() {
                prop_assert_eq!(pool.nth(i).map(|c| (c.id(), c.logit())), Some(*c));
            }
            prop_assert_eq!(pool.nth(n), None);

            let mut pool = Pool::new(&row, &mut scratch);
            pool.keep_best();
            prop_assert_eq!(pairs(pool.sorted()), &want[..want.len().min(1)]);
        }

        #[test]
        fn touching_a_row_and_touching_a_list_agree(row in prop::collection::vec(logit(), 4..80)) {
            let change = |x: f64, by: f64| x * 1.5 - by;
            let by = |id: u32| id.is_multiple_of(3).then_some(f64::from(id));
            let tokens: Vec<(u32, f64)> = (0..200).filter_map(|id| Some((id, by(id)?))).collect();
            let mut scratch = Scratch::default();
            let mut pool = Pool::new(&row, &mut scratch);
            pool.touch(tokens.iter().copied(), by, change);
            let of_row = pairs(pool.sorted());
            let mut pool = Pool::new(&row, &mut scratch);
            pool.list();
            pool.touch(tokens.iter().copied(), by, change);
            prop_assert_eq!(pairs(pool.sorted()), of_row);
        }
    }
}
