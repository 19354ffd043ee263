//! Byte-pair encoding of one word: the table of merges, and their application in order of rank.
//! Owns the merges; knows nothing of special tokens or of how text is cut into words.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use crate::byte_level::spell_into;
use crate::error::{Error, quoted};
use crate::vocab::Tokens;

/// The merges of a vocabulary, by ids.
pub(crate) struct Merges {
    byte_ids: [u32; 256],
    /// Rank of the merge of two neighbours.
    ranks: HashMap<(u32, u32), u32>,
    /// By rank.
    rules: Vec<Rule>,
}

#[derive(Copy, Clone)]
struct Rule {
    left: u32,
    right: u32,
    merged: u32,
}

/// Memory for encoding words, kept between them.
#[derive(Default)]
pub(crate) struct Scratch {
    slots: Vec<u32>,
    queue: Vec<Reverse<u64>>,
}

impl Merges {
    /// `merges` are "left right" in the byte-level alphabet, best first. Left out are those that cannot happen or
    /// whose result is no token, and the later ones of the same two parts.
    pub(crate) fn new(tokens: &Tokens, merges: &[&str]) -> Result<Self, Error> {
        let mut byte_ids = [0; 256];
        for byte in 0..=u8::MAX {
            byte_ids[usize::from(byte)] = tokens.find_plain(&[byte]).ok_or(Error::MissingByte { byte })?;
        }
        let find = |bytes: &[u8]| match *bytes {
            [byte] => Some(byte_ids[usize::from(byte)]),
            _ => tokens.find_plain(bytes),
        };
        // Room for what is likely; a list that is longer than it can be of use takes no memory here.
        let n_likely = merges.len().min(4 * tokens.len());
        let mut ranks = HashMap::with_capacity(n_likely);
        let mut rules = Vec::with_capacity(n_likely);
        let mut bytes = Vec::new();
        for (index, merge) in merges.iter().enumerate() {
            let (left, right) = parts(merge).ok_or_else(|| Error::Merge { index, text: quoted(merge) })?;
            bytes.clear();
            spell_into(left, &mut bytes);
            let n_left = bytes.len();
            spell_into(right, &mut bytes);
            let Some(merged) = find(&bytes) else { continue };
            let (left, right) = bytes.split_at(n_left);
            let (Some(left), Some(right)) = (find(left), find(right)) else { continue };
            let rank = rules.len() as u32;
            ranks.entry((left, right)).or_insert_with(|| {
                rules.push(Rule { left, right, merged });
                rank
            });
        }
        rules.shrink_to_fit();
        Ok(Self { byte_ids, ranks, rules })
    }

    /// Appends the tokens of `word` to `out`. Time is n log n in its length, memory 12 bytes a byte at most.
    pub(crate) fn encode(&self, tokens: &Tokens, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        for stretch in word.chunks(MAX_WORD) {
            self.encode_stretch(tokens, stretch, scratch, out);
        }
    }

    fn encode_stretch(&self, tokens: &Tokens, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        // One slot a byte. The slot where a token starts holds its id; if it is longer than a byte, the slot
        // where it ends holds END + its length. So both neighbours of a token are found without a list.
        let slots = &mut scratch.slots;
        slots.clear();
        slots.extend(word.iter().map(|&byte| self.byte_ids[usize::from(byte)]));

        let mut queue = std::mem::take(&mut scratch.queue);
        queue.clear();
        let pairs = slots.windows(2).enumerate();
        queue.extend(pairs.filter_map(|(at, pair)| Some(entry(*self.ranks.get(&(pair[0], pair[1]))?, at))));
        let mut queue = BinaryHeap::from(queue);

        while let Some(Reverse(next)) = queue.pop() {
            let (rank, start) = ((next >> 32) as usize, (next & 0xFFFF_FFFF) as usize);
            let Rule { left, right, merged } = self.rules[rank];
            // An entry is stale once one of its parts went into another merge.
            let middle = start + tokens.n_bytes(left);
            if slots[start] != left || slots.get(middle) != Some(&right) {
                continue;
            }
            let end = middle + tokens.n_bytes(right);
            slots[middle] = DEAD;
            slots[start] = merged;
            slots[end - 1] = END | (end - start) as u32;

            if let Some(&before) = slots[..start].last() {
                let n_before = if before & END != 0 { (before & !END) as usize } else { 1 };
                let previous = start - n_before;
                if let Some(&rank) = self.ranks.get(&(slots[previous], merged)) {
                    queue.push(entry(rank, previous));
                }
            }
            if let Some(&after) = slots.get(end)
                && let Some(&rank) = self.ranks.get(&(merged, after))
            {
                queue.push(entry(rank, start));
            }
        }
        scratch.queue = queue.into_vec();

        let mut at = 0;
        while let Some(&id) = slots.get(at) {
            out.push(id);
            at += tokens.n_bytes(id);
        }
    }
}

/// Queue order: best rank first, leftmost first among equals.
fn entry(rank: u32, start: usize) -> Reverse<u64> {
    Reverse(u64::from(rank) << 32 | start as u64)
}

/// Splits "left right" at the first space after the first character, which may itself be a space.
fn parts(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?;
    let space = merge.as_bytes()[first.len_utf8()..].iter().position(|&b| b == b' ')? + first.len_utf8();
    let (left, right) = (&merge[..space], &merge[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

/// Marks the last slot of a token; ids stay below it.
const END: u32 = 1 << 31;
/// Inside of a token. Never an id, and never read as an end: what is read as one was just written.
const DEAD: u32 = u32::MAX;
/// Longer words are cut, without regard to merges across the cut: this bounds the memory that a text can ask for,
/// and the queue stays in the processor's cache. Natural words are ten thousand times shorter.
const MAX_WORD: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_splits_at_the_first_space_after_its_first_character() {
        assert_eq!(parts("a b"), Some(("a", "b")));
        assert_eq!(parts("\u{120}\u{120} x"), Some(("\u{120}\u{120}", "x")));
        assert_eq!(parts("  x"), Some((" ", "x")));
        assert_eq!(parts("a b c"), Some(("a", "b c")));
        for bad in ["", "a", "ab", "ab ", " a", " "] {
            assert_eq!(parts(bad), None, "{bad:?}");
        }
    }
}
