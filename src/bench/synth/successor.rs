//! What the model says: every token has one successor, and the draft head knows it for a chosen share of tokens.
//! Owns the order of tokens, their vectors and their classes; knows nothing of tensors or files.
//!
//! A vector has small whole numbers, -7 to 7. Its first elements mean something ([`CONST`], [`CLASS`], [`COUNTERS`]); the
//! rest is random. With a head of its own, the head's row for the successor of `t` is the vector of `t`. When the head is
//! the embedding, the vector of the successor is that of `t` with its elements moved along fixed rings, which the last
//! layer does to the hidden state.

use super::random::Random;
use super::shapes::{N_RESERVED, Shape};

/// Element that is [`MOST`] in every vector.
pub(crate) const CONST: usize = 0;

/// Element that says how good the draft head is at the successor of this token.
pub(crate) const CLASS: usize = 1;

/// Elements that are zero in every vector; the draft head counts its depth in them, twice.
pub(crate) const COUNTERS: usize = 2;

/// Draft depths that can have a rate of their own.
pub(crate) const MAX_RATES: usize = (N_RESERVED - COUNTERS) / 2;

/// The largest element.
pub(crate) const MOST: i8 = 7;

/// One unit of an element: makes random vectors have a mean square of 1.
pub(crate) const UNIT: f32 = 0.231_455;

/// The order of tokens, and their vectors.
pub(crate) struct Successor {
    n_embd: usize,
    /// Elements of the vectors of this file, where it is a head that is narrower than its target.
    n_own: usize,
    n_movable: usize,
    seed: u64,
    /// The orbit that generated text runs through, then the tokens outside it.
    orbits: [Vec<u32>; 2],
    /// Orbit and place in it of each token.
    place: Vec<(bool, u32)>,
    /// Rings of elements, when the head is the embedding: first element and length.
    rings: Option<Vec<(usize, usize)>>,
    classes: Classes,
}

/// Shares of right drafts, and what each token is good for.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    /// Chance that a draft is right when those before it are, by depth; the last holds for deeper ones.
    rates: Vec<f64>,
    /// The distinct rates in ascending order.
    steps: Vec<f64>,
}

impl Classes {
    /// `rates` has 1 to [`MAX_RATES`] shares between 0 and 1.
    pub(crate) fn new(rates: &[f64]) -> Self {
        let mut steps = rates.to_vec();
        steps.sort_by(f64::total_cmp);
        steps.dedup();
        Self { rates: rates.to_vec(), steps }
    }

    /// Element [`CLASS`] of a token that falls on `chance` of 0 to 1: low ones are right at more depths.
    fn level(&self, chance: f64) -> i8 {
        let class = self.steps.iter().filter(|&&step| step <= chance).count();
        self.level_of(class)
    }

    fn level_of(&self, class: usize) -> i8 {
        // Two apart, so that a whole number lies between; one step alone takes the ends.
        if self.steps.len() == 1 { [-MOST, MOST][class] } else { 2 * class as i8 - MOST }
    }

    /// A draft at `depth` (0 is the first) is wrong when [`CLASS`] of its token is above this whole number.
    pub(crate) fn border(&self, depth: usize) -> i32 {
        let rate = self.rates[depth.min(self.rates.len() - 1)];
        let class = self.steps.iter().position(|&step| step == rate).expect("steps are made of rates");
        if self.steps.len() == 1 { 0 } else { i32::from(self.level_of(class)) + 1 }
    }

    /// Weights of [`CONST`] and of the counters that make `CLASS - border` out of a vector, when the first `depth` counters
    /// are [`MOST`]: in units of the weight of [`CLASS`], divided by [`MOST`].
    pub(crate) fn weights(&self) -> (i32, Vec<i32>) {
        let borders: Vec<i32> = (0..MAX_RATES).map(|depth| self.border(depth)).collect();
        let steps = borders.windows(2).map(|pair| pair[0] - pair[1]).collect();
        (-borders[0], steps)
    }
}

impl Successor {
    /// `cover` is the share of frequent tokens in generated text; tokens from `n_text` on are special and never generated.
    pub(crate) fn new(shape: &Shape, seed: u64, cover: f64, n_text: usize, rates: &[f64]) -> Self {
        let mut rng = Random::stream(seed, 1);
        let n_frequent = shape.n_frequent().min(n_text);
        let mut rare: Vec<u32> = (n_frequent as u32..n_text as u32).collect();
        rng.shuffle(&mut rare);
        let n_rare = ((n_frequent as f64 * (1.0 - cover) / cover).round() as usize).min(rare.len());
        let mut text: Vec<u32> = (0..n_frequent as u32).chain(rare.drain(..n_rare)).collect();
        rng.shuffle(&mut text);
        let mut others: Vec<u32> = rare.into_iter().chain(n_text as u32..shape.n_vocab as u32).collect();
        rng.shuffle(&mut others);
        let mut place = vec![(false, 0); shape.n_vocab];
        for (outside, orbit) in [(false, &text), (true, &others)] {
            for (i, &token) in orbit.iter().enumerate() {
                place[token as usize] = (outside, i as u32);
            }
        }
        let (n_embd, n_movable) = (shape.n_embd, shape.n_movable());
        let rings = shape.tied.then(|| rings(N_RESERVED + n_movable));
        Self {
            n_embd,
            n_own: n_embd,
            n_movable,
            seed,
            orbits: [text, others],
            place,
            rings,
            classes: Classes::new(rates),
        }
    }

    pub(crate) fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Elements behind the reserved ones that the last layer can move; those after them are the same in all vectors of an
    /// orbit, where it has to.
    pub(crate) fn n_movable(&self) -> usize {
        self.n_movable
    }

    /// Elements of a vector.
    pub(crate) fn n_embd(&self) -> usize {
        self.n_embd
    }

    /// The same for a file whose vectors have `n` of the elements.
    pub(crate) fn narrowed(self, n: usize) -> Self {
        Self { n_own: n, ..self }
    }

    /// The element of a vector that is element `at` of those of this file: spread over all, so that they tell all tokens
    /// apart.
    pub(crate) fn own(&self, at: usize) -> usize {
        if at < N_RESERVED || self.n_own == self.n_embd {
            return at;
        }
        N_RESERVED + (at - N_RESERVED) * (self.n_embd - N_RESERVED) / (self.n_own - N_RESERVED)
    }

    /// A token of generated text.
    pub(crate) fn some_token(&self) -> u32 {
        self.orbits[0][0]
    }

    /// The token before `token`.
    pub(crate) fn previous(&self, token: u32) -> u32 {
        let (outside, i) = self.place[token as usize];
        let orbit = &self.orbits[usize::from(outside)];
        orbit[(i as usize + orbit.len() - 1) % orbit.len()]
    }

    /// The element that moves to element `at` in the vector of the successor; itself when the head has rows of its own.
    pub(crate) fn source(&self, at: usize) -> usize {
        let ring = self.rings.iter().flatten().find(|(first, n)| (*first..first + n).contains(&at));
        ring.map_or(at, |&(first, n)| first + (at - first + n - 1) % n)
    }

    /// The vector of a token, in units of [`UNIT`].
    pub(crate) fn vector(&self, token: u32, out: &mut [i8]) {
        let (outside, i) = self.place[token as usize];
        let stream = if self.rings.is_some() { u64::from(outside) } else { u64::from(token) };
        let mut rng = Random::stream(self.seed, (2 << 32) + stream);
        for part in out[..self.n_embd].chunks_mut(16) {
            let mut bits = rng.bits();
            for v in part {
                *v = (((bits & 15) * 15) >> 4) as i8 - MOST;
                bits >>= 4;
            }
        }
        for &(first, n) in self.rings.iter().flatten() {
            out[first..first + n].rotate_right(i as usize % n);
        }
        out[..N_RESERVED].fill(0);
        out[CONST] = MOST;
        out[CLASS] = self.classes.level(Random::stream(self.seed, (3 << 32) + u64::from(token)).unit());
    }
}

/// Rings over the random ones of `n_embd` elements whose lengths are different primes: an element is back where it was only after very many
/// steps, and after few steps only a small part of a vector is.
fn rings(n_embd: usize) -> Vec<(usize, usize)> {
    let is_prime = |n: &usize| *n > 1 && (2..*n).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    let longest = n_embd / if n_embd < 1024 { 4 } else { 8 };
    let mut at = N_RESERVED;
    let mut rings = Vec::new();
    for n in (2..=longest).rev().filter(is_prime) {
        if at + n <= n_embd {
            rings.push((at, n));
            at += n;
        }
    }
    rings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn successor(name: &str, rates: &[f64]) -> (Shape, Successor) {
        let shape = Shape::find(name).expect("a known shape");
        let successor = Successor::new(&shape, 5, 0.97, shape.n_vocab - 10, rates);
        (shape, successor)
    }

    #[test]
    fn text_stays_among_frequent_tokens_for_the_share_that_was_asked_for() {
        let (shape, successor) = successor("27b", &[0.8]);
        let text = &successor.orbits[0];
        let frequent = text.iter().filter(|&&t| (t as usize) < shape.n_frequent()).count();
        assert!((frequent as f64 / text.len() as f64 - 0.97).abs() < 1e-3);
        assert_eq!(frequent, shape.n_frequent(), "every frequent token leads into the text");
        assert_eq!(successor.orbits[0].len() + successor.orbits[1].len(), shape.n_vocab);
    }

    #[test]
    fn moving_the_elements_of_a_vector_gives_the_vector_of_the_successor() {
        let (shape, successor) = successor("tiny-tied", &[0.8]);
        let (mut before, mut after) = (vec![0; shape.n_embd], vec![0; shape.n_embd]);
        for pair in successor.orbits[0].windows(2).take(200) {
            successor.vector(pair[0], &mut before);
            successor.vector(pair[1], &mut after);
            assert_eq!(successor.previous(pair[1]), pair[0]);
            let moved = (N_RESERVED..shape.n_embd).all(|i| after[i] == before[successor.source(i)]);
            assert!(moved, "token {} to {}", pair[0], pair[1]);
            assert_ne!(before, after);
        }
    }

    #[test]
    fn the_counters_weights_tell_right_from_wrong_at_every_depth() {
        for rates in [&[0.8][..], &[0.9, 0.5, 0.2], &[0.1, 0.9], &[0.1, 0.7, 0.2, 0.6, 0.3, 0.5, 0.4]] {
            let classes = Classes::new(rates);
            let (constant, counters) = classes.weights();
            for (depth, rate) in rates.iter().enumerate() {
                for chance in [0.0, 0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95] {
                    let sum = i32::from(classes.level(chance)) + constant + counters[..depth].iter().sum::<i32>();
                    assert_eq!(sum < 0, chance < *rate, "{rates:?} at {depth}, {chance}: {sum}");
                    assert_ne!(sum, 0);
                }
            }
        }
    }
}
