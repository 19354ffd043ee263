//! Which texts are learned from and which held out, what is measured, and which words drafts are made of.

use anyhow::ensure;
use sha2::{Digest, Sha256};

use crate::batches::{Part, parts_by_length};
use crate::data::Text;

/// Tokens, padding included, that go through the head at once.
pub const N_PART: usize = 2048;

/// The texts in the order learned ones, then those held out, and the number of the former. Texts of one group stay together.
///
/// # Errors
/// All are held out, or none has a token to learn from.
pub fn split(texts: Vec<Text>, share: f64, seed: u64) -> anyhow::Result<(Vec<Text>, usize)> {
    let chance = |group: usize| {
        let digest = Sha256::digest([seed.to_le_bytes(), (group as u64).to_le_bytes()].concat());
        let [first, ..] = digest.as_chunks::<8>().0 else { return 0.0 };
        u64::from_le_bytes(*first) as f64 / u64::MAX as f64
    };
    let (held, mut learned): (Vec<Text>, Vec<Text>) = texts.into_iter().partition(|text| chance(text.group) < share);
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
