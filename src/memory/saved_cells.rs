//! Cells of a sequence on the host: bytes in parts, which sequences of one beginning can have in common.
//! Owns where parts begin. Knows of a part only which tensor's it is; knows no sequences.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a part: some tens of positions of a layer.
const PART: usize = 16 << 10;

/// The bytes of all tensors, one after the other, in the order in which cells are saved.
#[derive(Clone, Debug, Default)]
pub(crate) struct SavedCells {
    parts: Vec<Part>,
    n_bytes: usize,
}

#[derive(Clone, Debug)]
struct Part {
    /// Among all bytes.
    start: usize,
    /// Which tensor, and which part of it. `None`: of several, which no other sequence has at the same place.
    of: Option<(usize, usize)>,
    bytes: Arc<Vec<u8>>,
}

impl SavedCells {
    /// Bytes that were not made here, as one part.
    pub(crate) fn whole_of(bytes: Vec<u8>) -> Self {
        let n_bytes = bytes.len();
        Self { parts: vec![Part { start: 0, of: None, bytes: Arc::new(bytes) }], n_bytes }
    }

    /// Appends what number `tensor` has: its first positions first.
    pub(crate) fn push(&mut self, tensor: usize, bytes: &[u8]) {
        if bytes.len() < PART {
            return self.push_little(bytes);
        }
        for (i, part) in bytes.chunks(PART).enumerate() {
            self.parts.push(Part { start: self.n_bytes, of: Some((tensor, i)), bytes: Arc::new(part.to_vec()) });
            self.n_bytes += part.len();
        }
    }

    /// Appends bytes of a tensor that are few, to those of the one before if these are few too.
    fn push_little(&mut self, bytes: &[u8]) {
        let open = self.parts.last_mut().filter(|part| part.of.is_none() && part.bytes.len() < PART);
        match open.and_then(|part| Arc::get_mut(&mut part.bytes)) {
            Some(open) => open.extend_from_slice(bytes),
            None => self.parts.push(Part { start: self.n_bytes, of: None, bytes: Arc::new(bytes.to_vec()) }),
        }
        self.n_bytes += bytes.len();
    }

    /// Bytes of all.
    pub(crate) fn len(&self) -> usize {
        self.n_bytes
    }

    /// All of them, part by part.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| part.bytes.as_slice())
    }

    /// All of them in a row.
    pub(crate) fn in_a_row(&self) -> Cow<'_, [u8]> {
        match self.parts.as_slice() {
            [] => Cow::Borrowed(&[]),
            [one] => Cow::Borrowed(&one.bytes),
            _ => Cow::Owned(self.slices().collect::<Vec<_>>().concat()),
        }
    }

    /// Copies a range of them to `into`, in the place of what it holds.
    pub(crate) fn copy(&self, range: Range<usize>, into: &mut Vec<u8>) {
        into.clear();
        let first = self.parts.partition_point(|part| part.start + part.bytes.len() <= range.start);
        for part in self.parts[first..].iter().take_while(|part| part.start < range.end) {
            let from = range.start.saturating_sub(part.start);
            let to = (range.end - part.start).min(part.bytes.len());
            into.extend_from_slice(&part.bytes[from..to]);
        }
    }

    /// Takes over the parts of `other` that hold the same bytes at the same place of the same tensor.
    pub(crate) fn share_with(&mut self, other: &Self) {
        let mut theirs = other.parts.iter().filter(|part| part.of.is_some()).peekable();
        for part in self.parts.iter_mut().filter(|part| part.of.is_some()) {
            while theirs.next_if(|their| their.of < part.of).is_some() {}
            if let Some(their) = theirs.peek().filter(|their| their.of == part.of && their.bytes == part.bytes) {
                part.bytes = Arc::clone(&their.bytes);
            }
        }
    }

    /// Each part: what tells it from others as long as it lives, and its bytes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.parts.iter().map(|part| (Arc::as_ptr(&part.bytes).addr(), part.bytes.len()))
    }
}

/// Bytes that are worth a walk through what is free.
const MUCH: usize = 1 << 20;

impl Drop for SavedCells {
    /// Freed pieces are too small to go back to the system by themselves.
    fn drop(&mut self) {
        self.parts.clear();
        if self.n_bytes >= MUCH {
            ggml::give_back_freed();
        }
    }
}

impl PartialEq for SavedCells {
    fn eq(&self, other: &Self) -> bool {
        self.n_bytes == other.n_bytes && self.in_a_row() == other.in_a_row()
    }
}

impl Eq for SavedCells {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tensors with rows of 96 and 160 bytes for `len` positions, of which the first `common` depend on nothing else.
    fn cells(len: usize, common: usize, seed: u8) -> (SavedCells, Vec<u8>) {
        let (mut cells, mut all) = (SavedCells::default(), Vec::new());
        for (tensor, row) in [(0, 96), (1, 160)] {
            let byte = |i: usize| (i * 31 % 251) as u8 ^ if i / row < common { 0 } else { seed };
            let bytes: Vec<u8> = (0..len * row).map(byte).collect();
            cells.push(tensor, &bytes);
            all.extend(bytes);
        }
        (cells, all)
    }

    fn n_own(cells: &SavedCells, other: &SavedCells) -> usize {
        let theirs: Vec<usize> = other.parts().map(|(part, _)| part).collect();
        cells.parts().filter(|(part, _)| !theirs.contains(part)).map(|(_, n)| n).sum()
    }

    #[test]
    fn bytes_are_those_that_were_put_in_shared_or_not() {
        for (len, common, other_len) in [(0, 0, 9), (3, 3, 3), (700, 500, 900), (700, 500, 300), (170, 170, 171)] {
            let ((mut cells, all), (other, others)) = (cells(len, common, 0xa5), cells(other_len, common, 0x5a));
            for shared in [false, true] {
                if shared {
                    cells.share_with(&other);
                }
                assert!(cells.len() == all.len() && *cells.in_a_row() == all, "{len}, {common}, {shared}");
                let mut some = vec![1, 2, 3];
                for (from, to) in [(0, 0), (0, all.len()), (all.len() / 3, all.len() / 2), (all.len(), all.len())] {
                    cells.copy(from..to, &mut some);
                    assert_eq!(some, all[from..to], "{len}, {common}, {from} to {to}");
                }
            }
            assert!(*other.in_a_row() == others, "the other is as it was");
        }
    }

    #[test]
    fn a_common_beginning_is_there_once() {
        let ((mut one, _), (other, _)) = (cells(1000, 800, 1), cells(1200, 800, 2));
        assert_eq!(n_own(&one, &other), one.len());
        one.share_with(&other);
        // What is left: behind the beginning, and a part at its end in each tensor.
        let left = n_own(&one, &other);
        assert!((200 * 256..=200 * 256 + 2 * PART).contains(&left), "{left} of {} bytes", one.len());
        assert_eq!(one, cells(1000, 800, 1).0);
        assert_ne!(one, cells(1000, 800, 3).0);
    }

    #[test]
    fn what_came_from_elsewhere_is_equal_and_shares_nothing() {
        let (mut one, all) = cells(400, 400, 1);
        let from_file = SavedCells::whole_of(all);
        assert_eq!(one, from_file);
        one.share_with(&from_file);
        assert_eq!(n_own(&one, &from_file), one.len());
    }
}
