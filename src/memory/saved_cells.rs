//! Cells of a sequence on the host: bytes in parts, which sequences of one beginning can have in common.
//! Owns where parts begin. Knows of a part only which tensor's it is; knows no sequences.

use std::borrow::Cow;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;
use std::vec::IntoIter;

use ggml::{Piece, Pieces};

/// Bytes of a part: some tens of positions of a layer.
const PART: usize = if Pieces::UNIT > 16 << 10 { Pieces::UNIT } else { 16 << 10 };

/// Bytes that are read or written at a time: whole parts.
pub(crate) const AT_ONCE: usize = 16 * PART;

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
    bytes: Arc<Piece>,
}

impl SavedCells {
    /// Bytes that were not made here, as one part.
    pub(crate) fn whole_of(bytes: Vec<u8>) -> Self {
        let n_bytes = bytes.len();
        Self { parts: vec![Part { start: 0, of: None, bytes: Arc::new(Piece::from(bytes)) }], n_bytes }
    }

    /// Bytes of all.
    pub(crate) fn len(&self) -> usize {
        self.n_bytes
    }

    /// All of them, part by part.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| &**part.bytes)
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

    /// Each part: what tells it from others as long as it lives, and its bytes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.parts.iter().map(|part| (Arc::as_ptr(&part.bytes).addr(), part.bytes.len()))
    }
}

/// Makes cells of what is copied, tensor by tensor.
#[derive(Debug)]
pub(crate) struct CellsWriter {
    cells: SavedCells,
    pieces: Pieces,
    /// Bytes of tensors that have few, not yet a part.
    little: Vec<u8>,
    /// Bytes that were read last.
    bytes: Vec<u8>,
    /// Parts of other cells that have not been passed, in order.
    beside: Peekable<IntoIter<Part>>,
}

impl CellsWriter {
    /// For so many bytes of so many tensors. Parts that hold the same bytes at the same place of the same tensor as those of
    /// `beside` are taken over from there.
    pub(crate) fn new(n_bytes: usize, n_tensors: usize, beside: Option<&SavedCells>) -> Self {
        let (cells, little, bytes) = (SavedCells::default(), Vec::new(), Vec::new());
        let pieces = Pieces::new(n_bytes, n_bytes / PART + n_tensors);
        let beside = beside.map_or_else(Vec::new, |cells| cells.parts.clone());
        Self { cells, pieces, little, bytes, beside: beside.into_iter().peekable() }
    }

    /// Appends bytes from `at` on of the `n_bytes` of number `tensor`, and gives how many: few at a time, since the C library keeps
    /// large buffers that were freed. Numbers and places ascend; `read` gives the bytes.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) fn push<E>(
        &mut self,
        (tensor, n_bytes): (usize, usize),
        at: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        if n_bytes < PART {
            let start = self.little.len();
            self.little.resize(start + n_bytes, 0);
            read(&mut self.little[start..])?;
            if self.little.len() >= PART {
                self.end_little();
            }
            return Ok(n_bytes);
        }
        self.end_little();
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.resize(AT_ONCE.min(n_bytes - at), 0);
        read(&mut bytes)?;
        for (i, part) in bytes.chunks(PART).enumerate() {
            self.push_part((tensor, at / PART + i), part);
        }
        self.bytes = bytes;
        Ok(self.bytes.len())
    }

    fn push_part(&mut self, of: (usize, usize), part: &[u8]) {
        let of = Some(of);
        while self.beside.next_if(|their| their.of < of).is_some() {}
        let same = self.beside.next_if(|their| their.of == of).filter(|their| **their.bytes == *part);
        let bytes = same.map_or_else(|| Arc::new(self.pieces.push(part)), |their| their.bytes);
        self.append(of, bytes);
    }

    /// All of them.
    pub(crate) fn finish(mut self) -> SavedCells {
        self.end_little();
        self.cells
    }

    fn end_little(&mut self) {
        if !self.little.is_empty() {
            let bytes = Arc::new(self.pieces.push(&self.little));
            self.little.clear();
            self.append(None, bytes);
        }
    }

    fn append(&mut self, of: Option<(usize, usize)>, bytes: Arc<Piece>) {
        let start = self.cells.n_bytes;
        self.cells.n_bytes += bytes.len();
        self.cells.parts.push(Part { start, of, bytes });
    }
}

impl Drop for SavedCells {
    fn drop(&mut self) {
        Piece::drop_together(self.parts.drain(..).filter_map(|part| Arc::into_inner(part.bytes)));
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
    fn cells(len: usize, common: usize, seed: u8, beside: Option<&SavedCells>) -> (SavedCells, Vec<u8>) {
        let (mut cells, mut all) = (CellsWriter::new(len * 256, 2, beside), Vec::new());
        for (tensor, row) in [(0, 96), (1, 160)] {
            let byte = |i: usize| (i * 31 % 251) as u8 ^ if i / row < common { 0 } else { seed };
            let bytes: Vec<u8> = (0..len * row).map(byte).collect();
            let mut at = 0;
            while at < bytes.len() {
                let read = |into: &mut [u8]| {
                    into.copy_from_slice(&bytes[at..at + into.len()]);
                    Ok::<_, std::convert::Infallible>(())
                };
                at += cells.push((tensor, bytes.len()), at, read).unwrap();
            }
            all.extend(bytes);
        }
        (cells.finish(), all)
    }

    fn n_own(cells: &SavedCells, other: &SavedCells) -> usize {
        let theirs: Vec<usize> = other.parts().map(|(part, _)| part).collect();
        cells.parts().filter(|(part, _)| !theirs.contains(part)).map(|(_, n)| n).sum()
    }

    #[test]
    fn bytes_are_those_that_were_put_in_shared_or_not() {
        for (len, common, other_len) in [(0, 0, 9), (3, 3, 3), (700, 500, 900), (700, 500, 300), (170, 170, 171)] {
            let (other, others) = cells(other_len, common, 0x5a, None);
            for shared in [false, true] {
                let (cells, all) = cells(len, common, 0xa5, Some(&other).filter(|_| shared));
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
        let (other, _) = cells(1200, 800, 2, None);
        let (one, _) = cells(1000, 800, 1, None);
        assert_eq!(n_own(&one, &other), one.len());
        let (one, _) = cells(1000, 800, 1, Some(&other));
        // What is left: behind the beginning, and a part at its end in each tensor.
        let left = n_own(&one, &other);
        assert!((200 * 256..=200 * 256 + 2 * PART).contains(&left), "{left} of {} bytes", one.len());
        assert_eq!(one, cells(1000, 800, 1, None).0);
        assert_ne!(one, cells(1000, 800, 3, None).0);
    }

    #[test]
    fn what_came_from_elsewhere_is_equal_and_shares_nothing() {
        let (one, all) = cells(400, 400, 1, None);
        let from_file = SavedCells::whole_of(all);
        assert_eq!(one, from_file);
        let (one, _) = cells(400, 400, 1, Some(&from_file));
        assert_eq!(n_own(&one, &from_file), one.len());
    }
}
