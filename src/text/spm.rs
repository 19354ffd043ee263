//! SentencePiece's merging: of all neighbours that make a token together, the two whose token has the best score go
//! first. Owns the order of tokens by score; knows nothing of special tokens or of where spaces come from.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::fallback::Fallback;
use crate::vocab::Tokens;

/// The scores of a vocabulary, and what stands for the rest.
pub(crate) struct Spm {
    /// By id: the smaller, the sooner it is made.
    order: Vec<u32>,
    fallback: Fallback,
    /// Bytes of the longest token that merging can make.
    max_bytes: usize,
}

/// Memory for encoding words, kept between them.
#[derive(Default)]
pub(crate) struct Scratch {
    slots: Vec<u32>,
    queue: Vec<Reverse<Candidate>>,
}

/// Two neighbours that make a token: its order, where they start, their length together.
type Candidate = (u32, u32, u32);

impl Spm {
    /// `scores` are as many as `tokens`.
    pub(crate) fn new(tokens: &Tokens, scores: &[f32], fallback: Fallback) -> Self {
        let longest = (0..tokens.len() as u32).map(|id| tokens.n_bytes(id)).max().unwrap_or(0);
        Self { order: scores.iter().map(order_of).collect(), fallback, max_bytes: longest.min(MAX_TOKEN_BYTES) }
    }

    /// Appends the tokens of `word`. Time is n log n in its length, memory at most 50 bytes a byte.
    pub(crate) fn encode(&self, tokens: &Tokens, word: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let mut rest = word;
        while !rest.is_empty() {
            let (stretch, after) = rest.split_at(rest.floor_char_boundary(MAX_WORD));
            self.encode_stretch(tokens, stretch, scratch, out);
            rest = after;
        }
    }

    fn encode_stretch(&self, tokens: &Tokens, word: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        // One slot a byte. Where a symbol starts stands its length; if that is more than a byte, where it ends stands
        // END + its length. So both neighbours of a symbol are found without a list.
        let text = word.as_bytes();
        let slots = &mut scratch.slots;
        slots.clear();
        slots.resize(text.len(), DEAD);
        for (at, c) in word.char_indices() {
            set(slots, at, c.len_utf8());
        }
        let candidate = |at: usize, n: usize| -> Option<Reverse<Candidate>> {
            let id = tokens.find_plain(text.get(at..at + n).filter(|_| n <= self.max_bytes)?)?;
            Some(Reverse((self.order[id as usize], at as u32, n as u32)))
        };
        let mut queue = std::mem::take(&mut scratch.queue);
        queue.clear();
        let mut at = 0;
        while at < text.len() {
            let n = slots[at] as usize;
            let n_next = slots.get(at + n).map_or(0, |&n| n as usize);
            if n_next > 0 {
                queue.extend(candidate(at, n + n_next));
            }
            at += n;
        }
        let mut queue = BinaryHeap::from(queue);
        while let Some(Reverse((_, start, n))) = queue.pop() {
            let (start, n) = (start as usize, n as usize);
            // A candidate is stale once one of its two went into another symbol.
            let n_left = slots[start];
            if n_left & END != 0 || n_left as usize >= n {
                continue;
            }
            let middle = start + n_left as usize;
            let n_right = slots[middle];
            if n_right & END != 0 || (n_left + n_right) as usize != n {
                continue;
            }
            slots[middle] = DEAD;
            set(slots, start, n);
            if let Some(&before) = slots[..start].last() {
                let n_before = if before & END != 0 { (before & !END) as usize } else { 1 };
                queue.extend(candidate(start - n_before, n_before + n));
            }
            if let Some(&n_after) = slots.get(start + n) {
                queue.extend(candidate(start, n + n_after as usize));
            }
        }
        scratch.queue = queue.into_vec();

        let mut at = 0;
        while let Some(&n) = slots.get(at) {
            let symbol = &text[at..at + n as usize];
            match tokens.find_plain(symbol) {
                Some(id) => out.push(id),
                None => self.fallback.push(symbol, out),
            }
            at += n as usize;
        }
    }
}

/// Enters a symbol of `n` bytes.
fn set(slots: &mut [u32], at: usize, n: usize) {
    slots[at] = n as u32;
    if n > 1 {
        slots[at + n - 1] = END | n as u32;
    }
}

/// Greater scores first; the two zeros are equal.
fn order_of(score: &f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// Marks the last slot of a symbol; lengths stay below it.
const END: u32 = 1 << 31;
/// Inside of a symbol, and never read as an end.
const DEAD: u32 = u32::MAX;
/// Longer words are cut, without regard to merges across the cut: this bounds the memory that a text can ask for.
const MAX_WORD: usize = 1 << 20;
/// Longer tokens are never made, so that a step takes bounded time; published ones have some dozens of bytes.
const MAX_TOKEN_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_scores_come_first() {
        let scores = [3.0, 0.5, 0.0, -0.25, -7.0, -1e9];
        assert!(scores.windows(2).all(|pair| order_of(&pair[0]) < order_of(&pair[1])));
        assert_eq!(order_of(&0.0), order_of(&-0.0));
    }
}
