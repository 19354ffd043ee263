//! Byte-pair encoding of one word: the table of merges, and their application in order of rank.
//! Owns the merges; knows nothing of special tokens or of how text is cut into words.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use crate::error::{Error, quoted};
use crate::fallback::{Fallback, occurs};
use crate::vocab::Tokens;

/// The merges of a vocabulary, by ids.
pub(crate) struct Merges {
    start: Start,
    /// Rank of the merge of two neighbours.
    ranks: HashMap<(u32, u32), u32>,
    /// By rank.
    rules: Vec<Rule>,
}

/// What a word is before the first merge.
enum Start {
    /// The token of each byte, and what stands for the bytes that have none, if there are such.
    Bytes { ids: Box<[u32; 256]>, unknown: Option<u32>, complete: bool },
    /// The token of each character; here of those of ASCII.
    Characters(Box<[u32; 128]>, Fallback),
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
    /// For words that are bytes first. `merges` are "left right", spelled as the tokens are, best first. Left out are
    /// those that cannot happen or whose result is no token, and the later ones of the same two parts.
    ///
    /// Published vocabularies lack the token of some rare byte: there `unknown` comes out, or nothing, as in the
    /// reference tokenizers.
    ///
    /// # Errors
    /// A common byte without a token; a merge that is not two parts.
    pub(crate) fn of_bytes(tokens: &Tokens, merges: &[&str], unknown: Option<u32>) -> Result<Self, Error> {
        let mut ids = Box::new([DEAD; 256]);
        let mut complete = true;
        for byte in 0..=u8::MAX {
            match tokens.find_plain(&[byte]) {
                Some(id) => ids[usize::from(byte)] = id,
                None if is_common(byte) => return Err(Error::MissingByte { byte }),
                None => complete &= !occurs(byte),
            }
        }
        Self::new(tokens, merges, Start::Bytes { ids, unknown, complete })
    }

    /// For words that are characters first, with `fallback` for those that are no token.
    ///
    /// # Errors
    /// A merge that is not two parts.
    pub(crate) fn of_characters(tokens: &Tokens, merges: &[&str], fallback: Fallback) -> Result<Self, Error> {
        let mut ids = Box::new([DEAD; 128]);
        for (id, byte) in ids.iter_mut().zip(0..) {
            *id = tokens.find_plain(&[byte]).unwrap_or(DEAD);
        }
        Self::new(tokens, merges, Start::Characters(ids, fallback))
    }

    fn new(tokens: &Tokens, merges: &[&str], start: Start) -> Result<Self, Error> {
        let find = |bytes: &[u8]| match (bytes, &start) {
            ([byte], Start::Bytes { ids, .. }) => Some(ids[usize::from(*byte)]).filter(|&id| id != DEAD),
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
            tokens.spell_into(left, &mut bytes);
            let n_left = bytes.len();
            tokens.spell_into(right, &mut bytes);
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
        Ok(Self { start, ranks, rules })
    }

    /// Appends the tokens of `word` to `out`. Time is n log n in its length, memory 12 bytes a byte at most.
    pub(crate) fn encode(&self, tokens: &Tokens, word: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        match &self.start {
            Start::Bytes { ids, unknown, complete } => {
                let id = |byte: &u8| ids[usize::from(*byte)];
                for mut stretch in word.as_bytes().chunks(MAX_WORD) {
                    while !*complete && let Some(at) = stretch.iter().position(|byte| id(byte) == DEAD) {
                        scratch.slots.clear();
                        scratch.slots.extend(stretch[..at].iter().map(id));
                        self.merge(tokens, scratch, out);
                        out.extend(unknown);
                        stretch = &stretch[at + 1..];
                    }
                    scratch.slots.clear();
                    scratch.slots.extend(stretch.iter().map(id));
                    self.merge(tokens, scratch, out);
                }
            }
            Start::Characters(ids, fallback) => {
                scratch.slots.clear();
                for (at, c) in word.char_indices() {
                    let bytes = &word.as_bytes()[at..at + c.len_utf8()];
                    let id = match bytes {
                        [byte] => Some(ids[usize::from(*byte)]).filter(|&id| id != DEAD),
                        _ => tokens.find_plain(bytes),
                    };
                    if id.is_none() || scratch.slots.len() + bytes.len() > MAX_WORD {
                        self.merge(tokens, scratch, out);
                        scratch.slots.clear();
                    }
                    match id {
                        Some(id) => start_symbol(&mut scratch.slots, id, bytes.len()),
                        None => fallback.push(bytes, out),
                    }
                }
                self.merge(tokens, scratch, out);
            }
        }
    }

    /// Merges what lies in the slots and appends it to `out`.
    ///
    /// One slot a byte. The slot where a token starts holds its id; if it is longer than a byte, the slot where it
    /// ends holds END + its length. So both neighbours of a token are found without a list.
    fn merge(&self, tokens: &Tokens, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let slots = &mut scratch.slots;
        let mut queue = std::mem::take(&mut scratch.queue);
        queue.clear();
        match &self.start {
            Start::Bytes { .. } => {
                let pairs = slots.windows(2).enumerate();
                queue.extend(pairs.filter_map(|(at, pair)| Some(entry(*self.ranks.get(&(pair[0], pair[1]))?, at))));
            }
            Start::Characters(..) => {
                let mut at = 0;
                while let Some(&left) = slots.get(at) {
                    let next = at + tokens.n_bytes(left);
                    let rank = slots.get(next).and_then(|&right| self.ranks.get(&(left, right)));
                    queue.extend(rank.map(|&rank| entry(rank, at)));
                    at = next;
                }
            }
        }
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

/// Whether text of most languages has this byte; only 0xF1 to 0xF4, of planes 4 to 16, and controls are not.
fn is_common(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7E | 0x80..=0xBF | 0xC2..=0xF0)
}

/// Appends a token of `n` bytes.
fn start_symbol(slots: &mut Vec<u32>, id: u32, n: usize) {
    slots.push(id);
    if n > 1 {
        slots.resize(slots.len() + n - 2, DEAD);
        slots.push(END | n as u32);
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
