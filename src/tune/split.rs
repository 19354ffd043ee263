//! Which texts are learned from and which held out, what is measured, and which words drafts are made of.

use anyhow::ensure;
use sha2::{Digest, Sha256};

use crate::batches::{Part, parts_by_length};
use crate::data::Text;

/// Tokens, padding included, that go through the head at once.
pub const N_PART: usize = 2048;

/// The texts in the order learned ones, then those held out, and the number of the former. Texts of one group stay together. Of two
/// groups or more one is held out at least, unless `share` is 0.
///
/// # Errors
/// All are held out, or none has a token to learn from.
pub fn split(texts: Vec<Text>, share: f64, seed: u64) -> anyhow::Result<(Vec<Text>, usize)> {
    let chance = |group: usize| {
        let digest = Sha256::digest([seed.to_le_bytes(), (group as u64).to_le_bytes()].concat());
        let [first, ..] = digest.as_chunks::<8>().0 else { return 0.0 };
        u64::from_le_bytes(*first) as f64 / u64::MAX as f64
    };
    let least = texts.iter().map(|text| text.group).min_by(|&a, &b| chance(a).total_cmp(&chance(b)));
    let one = least.filter(|least| share > 0.0 && texts.iter().any(|text| text.group != *least));
    let is_held = |text: &Text| chance(text.group) < share || Some(text.group) == one;
    let (held, mut learned): (Vec<Text>, Vec<Text>) = texts.into_iter().partition(is_held);
    let n_learned = learned.len();
    let n: usize = learned.iter().map(Text::n_counted).sum();
    ensure!(n > 0, "nothing is left to learn from: give more texts, or less --held-out");
    learned.extend(held);
    Ok((learned, n_learned))
}

/// Parts of the texts from `first` on, up to so many tokens that count.
pub fn measured(texts: &[Text], first: usize, most: usize) -> Vec<Part> {
    let mut n = 0;
    let taken = (first..texts.len())
        .take_while(|i| {
            let before = n;
            n += texts[*i].n_counted();
            before < most
        })
        .collect();
    parts_by_length(taken, N_PART, |i| texts[i].tokens.len())
}

/// The words that drafts are made of, ascending: the most frequent ones, then the first. `None` for all.
pub fn words(texts: &[Text], n_vocab: usize, n: usize) -> Option<Vec<u32>> {
    if n >= n_vocab {
        return None;
    }
    let mut counts = vec![0_u64; n_vocab];
    texts.iter().flat_map(|text| &text.tokens).for_each(|token| counts[token.0 as usize] += 1);
    let mut ids: Vec<u32> = (0..n_vocab as u32).collect();
    ids.sort_by_key(|id| (std::cmp::Reverse(counts[*id as usize]), *id));
    ids.truncate(n);
    ids.sort_unstable();
    Some(ids)
}

#[cfg(test)]
mod tests {
    use text::TokenId;

    use super::*;

    fn texts(groups: impl Iterator<Item = usize>) -> Vec<Text> {
        groups.map(|group| Text { group, ..Text::of_reply(&[TokenId(1)], &[TokenId(2)]) }).collect()
    }

    #[test]
    fn few_texts_are_measured_on_as_well() {
        for seed in 0..50 {
            let (all, n_learned) = split(texts([0, 0, 1].into_iter()), 0.05, seed).unwrap();
            let groups: Vec<usize> = all.iter().map(|text| text.group).collect();
            assert!(matches!((&groups[..], n_learned), ([0, 0, 1], 2) | ([1, 0, 0], 1)), "{groups:?} {n_learned}");
        }
        assert_eq!(split(texts([3, 3].into_iter()), 1e-9, 0).unwrap().1, 2, "nothing would be left to learn from");
        assert_eq!(split(texts(0..9), 0.0, 0).unwrap().1, 9);
        let n_learned = split(texts(0..1000), 0.2, 0).unwrap().1;
        assert!((750..850).contains(&n_learned), "{n_learned}");
    }
}
