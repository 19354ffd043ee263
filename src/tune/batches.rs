//! The order of texts, by a seed: the same texts, seed and sizes give the same batches, from whichever one on.

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::data::Text;

/// Texts that are computed together: their numbers.
pub type Part = Vec<usize>;

/// Batches without an end: every text once in each round.
#[derive(Debug)]
pub struct Batches {
    lengths: Vec<(usize, usize)>,
    sizes: Sizes,
    seed: u64,
    round: u64,
    /// Parts of the round that are still to come, the last one first.
    parts: Vec<Part>,
}

/// Batches whose texts are sorted by length together, so that few of a part are padded.
const N_SORTED: usize = 8;

/// How large batches and their parts are.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Tokens that count, of a batch.
    n_batch: usize,
    /// Of these as many are enough.
    enough: usize,
    /// Tokens of a part, padding included, and those of them that count.
    part: (usize, usize),
}

impl Sizes {
    /// Small parts, of at most `n_part` tokens, one for each thread: batches have `n_batch` tokens or a little more.
    pub fn of_threads(n_batch: usize, n_part: usize) -> Self {
        Self { n_batch, enough: n_batch, part: (n_part.min(n_batch), usize::MAX) }
    }

    /// As few parts as there can be, of at most `n_part` tokens: batches have `n_batch` tokens, or up to an eighth fewer.
    pub fn of_gpu(n_batch: usize, n_part: usize) -> Self {
        Self { n_batch, enough: n_batch - n_batch / 8, part: (n_part, n_batch) }
    }
}

impl Batches {
    /// Batches of these texts.
    pub fn new(texts: &[Text], sizes: Sizes, seed: u64) -> Self {
        let lengths = texts.iter().map(|text| (text.tokens.len(), text.n_counted())).collect();
        Self { lengths, sizes, seed, round: 0, parts: Vec::new() }
    }

    /// All parts of the first round, in the order of the batches.
    pub fn first_round(texts: &[Text], sizes: Sizes, seed: u64) -> Vec<Part> {
        let mut batches = Self::new(texts, sizes, seed);
        batches.begin_round();
        batches.parts.reverse();
        batches.parts
    }

    /// The next batch: its parts.
    pub fn next_batch(&mut self) -> Vec<Part> {
        let (mut batch, mut n) = (Vec::new(), 0);
        while n < self.sizes.enough {
            let Some(part) = self.parts.pop() else {
                if self.lengths.iter().all(|(_, n_counted)| *n_counted == 0) {
                    break;
                }
                self.begin_round();
                continue;
            };
            n += part.iter().map(|i| self.lengths[*i].1).sum::<usize>();
            batch.push(part);
        }
        batch
    }

    fn begin_round(&mut self) {
        let mut rng = StdRng::seed_from_u64(self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(self.round));
        self.round += 1;
        let mut order: Vec<usize> = (0..self.lengths.len()).filter(|i| self.lengths[*i].1 > 0).collect();
        order.shuffle(&mut rng);
        let (mut group, mut n) = (Vec::new(), 0);
        let mut all = Vec::new();
        for i in order {
            group.push(i);
            n += self.lengths[i].1;
            if n >= N_SORTED * self.sizes.n_batch {
                all.extend(self.parts_of(std::mem::take(&mut group), &mut rng));
                n = 0;
            }
        }
        all.extend(self.parts_of(group, &mut rng));
        self.parts = all;
    }

    /// A group of texts in parts of like lengths, in any order.
    fn parts_of(&self, group: Vec<usize>, rng: &mut StdRng) -> Vec<Part> {
        let mut parts = parts_by_length(group, self.sizes.part, |i| self.lengths[i]);
        parts.shuffle(rng);
        parts
    }
}

/// Texts in parts of at most `most` tokens, padding included, of which at most `most_counted` count, shortest first; a longer text
/// is a part alone. `lengths` are the tokens of a text, and those that count.
pub fn parts_by_length(
    mut texts: Vec<usize>,
    (most, most_counted): (usize, usize),
    lengths: impl Fn(usize) -> (usize, usize),
) -> Vec<Part> {
    texts.sort_by_key(|&i| (lengths(i).0, i));
    let (mut parts, mut n_before): (Vec<Part>, usize) = (Vec::new(), 0);
    for i in texts {
        // The longest so far: it pads the others.
        let (n, n_counted) = lengths(i);
        match parts.last_mut().filter(|part| (part.len() + 1) * n <= most && n_before + n_counted <= most_counted) {
            Some(part) => part.push(i),
            None => {
                parts.push(vec![i]);
                n_before = 0;
            }
        }
        n_before += n_counted;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::TokenId;

    #[test]
    fn a_round_has_every_text_once_and_its_order_is_the_seeds() {
        let texts: Vec<Text> = (3..60).map(|n| Text::of_reply(&[TokenId(1)], &vec![TokenId(2); n])).collect();
        let batches = |seed| {
            let mut batches = Batches::new(&texts, Sizes::of_threads(200, 128), seed);
            (0..30).map(|_| batches.next_batch()).collect::<Vec<_>>()
        };
        let all = batches(1);
        assert!(all.iter().flatten().all(|part| part.len() * part.iter().map(|i| i + 4).max().unwrap() <= 128));
        let seen: Vec<usize> = all.iter().flatten().flatten().copied().collect();
        let mut n_rounds = 0;
        for round in seen.chunks_exact(texts.len()) {
            let mut round = round.to_vec();
            round.sort_unstable();
            assert_eq!(round, (0..texts.len()).collect::<Vec<_>>());
            n_rounds += 1;
        }
        assert!(n_rounds >= 2, "{n_rounds}");
        assert_eq!(all, batches(1));
        assert_ne!(all, batches(2));
        let first = Batches::first_round(&texts, Sizes::of_threads(200, 128), 1);
        assert!(!first.is_empty() && all.iter().flatten().zip(&first).all(|(a, b)| a == b));
        assert_eq!(first.iter().flatten().count(), texts.len());
    }

    #[test]
    fn a_batch_for_a_gpu_is_one_part_where_it_can_be() {
        let texts: Vec<Text> =
            (0..400).map(|n| Text::of_reply(&[TokenId(1); 30], &vec![TokenId(2); 5 + n % 20])).collect();
        let count = |batch: &[Part]| batch.iter().flatten().map(|i| texts[*i].n_counted()).sum::<usize>();
        let mut batches = Batches::new(&texts, Sizes::of_gpu(1000, 8000), 1);
        let all: Vec<_> = (0..12).map(|_| batches.next_batch()).collect();
        let n_whole = all.iter().filter(|batch| batch.len() == 1 && (875..=1000).contains(&count(batch))).count();
        // What is left at the end of a round is less.
        assert!(n_whole >= 9, "{all:?}");
        let mut batches = Batches::new(&texts, Sizes::of_gpu(1000, 800), 1);
        let batch = batches.next_batch();
        assert!(batch.len() > 1 && count(&batch) >= 875, "{batch:?}");
        assert!(
            batch.iter().all(|part| part.len() * part.iter().map(|i| texts[*i].tokens.len()).max().unwrap() <= 800)
        );
    }
}
