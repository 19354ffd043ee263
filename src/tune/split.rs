//! Which texts are learned from and which held out, what is measured, and which words drafts are made of.

use std::collections::{HashMap, HashSet};

use anyhow::ensure;
use sha2::{Digest, Sha256};

use crate::batches::{Part, parts_by_length};
use crate::data::Text;

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

/// As [`split`]: held out are the latest texts, about `n_tokens` that count but at most half of all, with all of their groups; the
/// last one is the first of them.
///
/// # Errors
/// As [`split`]; all texts are of one group.
pub fn hold_latest(texts: Vec<Text>, n_tokens: usize) -> anyhow::Result<(Vec<Text>, usize)> {
    let of_groups = |mut counts: HashMap<usize, usize>, text: &Text| {
        *counts.entry(text.group).or_default() += text.n_counted();
        counts
    };
    let counts = texts.iter().fold(HashMap::new(), of_groups);
    let most = n_tokens.min(counts.values().sum::<usize>() / 2);
    let (mut held, mut n) = (HashSet::new(), 0);
    for text in texts.iter().rev() {
        // A long conversation is passed over where it would be too much.
        if n < most && n + counts[&text.group] <= 2 * most && held.insert(text.group) {
            n += counts[&text.group];
        }
    }
    let (mut latest, mut learned): (Vec<Text>, Vec<Text>) = texts.into_iter().partition(|t| held.contains(&t.group));
    let n_learned = learned.len();
    ensure!(!latest.is_empty(), "no replies can be held out: all belong to one conversation, or there is one alone");
    ensure!(learned.iter().any(|text| text.n_counted() > 0), "nothing is left to learn from beside what is held out");
    latest.reverse();
    learned.extend(latest);
    Ok((learned, n_learned))
}

/// Parts of at most `n_part` tokens, padding included, of the texts from `first` on, up to so many tokens that count.
pub fn measured(texts: &[Text], first: usize, most: usize, n_part: usize) -> Vec<Part> {
    let mut n = 0;
    let taken = (first..texts.len())
        .take_while(|i| {
            let before = n;
            n += texts[*i].n_counted();
            before < most
        })
        .collect();
    parts_by_length(taken, (n_part, usize::MAX), |i| (texts[i].tokens.len(), 0))
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

    #[test]
    fn the_latest_replies_are_held_out_with_their_conversations() {
        let groups = |all: &[Text]| all.iter().map(|text| text.group).collect::<Vec<usize>>();
        let (all, n_learned) = hold_latest(texts([0, 1, 2, 3, 1, 4, 5, 6].into_iter()), 3).unwrap();
        assert_eq!((groups(&all), n_learned), (vec![0, 1, 2, 3, 1, 6, 5, 4], 5));
        let (all, n_learned) = hold_latest(texts([0, 1, 2, 3, 4, 1].into_iter()), 2).unwrap();
        assert_eq!((groups(&all), n_learned), (vec![0, 2, 3, 4, 1, 1], 4), "an earlier turn is not learned from");
        assert_eq!(hold_latest(texts(0..6), 100).unwrap().1, 3, "half of all at most");
        assert!(hold_latest(texts([7, 7].into_iter()), 1).is_err());
        assert!(hold_latest(texts(0..1), 1).is_err());
    }
}
