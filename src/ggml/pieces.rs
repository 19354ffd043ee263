//! Copies on the host in pieces, each of which goes back to the system when it is dropped, whatever lies beside it.
//! Owns the map that many pieces have in common. Knows nothing of what they hold.
//!
//! The C library would keep what was freed between other pieces, and giving that back by hand takes time for all that is free.

use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::pages::{PAGE, Pages};

/// Where pieces are put one after the other.
#[derive(Debug)]
pub struct Pieces {
    /// `None`: each is an allocation of its own.
    map: Option<Arc<Map>>,
    at: usize,
}

/// Bytes that stay as they are.
#[derive(Debug)]
pub struct Piece(Place);

#[derive(Debug)]
enum Place {
    Own(Vec<u8>),
    /// Bytes of a map, from the beginning of a page on; no other piece has a byte of its last page.
    Mapped {
        map: Arc<Map>,
        range: Range<usize>,
    },
}

#[derive(Debug)]
struct Map {
    pages: Pages,
    start: NonNull<u8>,
    n_bytes: usize,
}

// SAFETY: the map stays where it is as long as this lives. Only `Pieces::push`, which nobody else can call meanwhile, writes to
// it, and to bytes that no piece has yet; pieces read their own bytes.
unsafe impl Send for Map {}
// SAFETY: as above; what is given back is the bytes of a piece that is being dropped.
unsafe impl Sync for Map {}

impl Map {
    fn place(&self, at: usize) -> NonNull<u8> {
        assert!(at <= self.n_bytes, "a place behind the end of a map");
        // SAFETY: within the map, as checked.
        unsafe { self.start.add(at) }
    }
}

impl Pieces {
    /// Memory is given back by as many bytes: smaller pieces take more than they are.
    pub const UNIT: usize = PAGE;

    /// Room for `n_pieces` of `n_bytes` in all. Memory is taken when a piece is put there.
    pub fn new(n_bytes: usize, n_pieces: usize) -> Self {
        // Elsewhere parts of a map cannot be given back.
        let is_worth_it = cfg!(target_os = "linux") && n_bytes >= MAPPED_FROM;
        let n_bytes = n_bytes.saturating_add(n_pieces.saturating_mul(PAGE));
        let map = if is_worth_it { Pages::new(n_bytes) } else { None };
        let map = map.and_then(|mut pages| {
            let start = NonNull::new(pages.start())?;
            Some(Arc::new(Map { pages, start, n_bytes }))
        });
        Self { map, at: 0 }
    }

    /// Copies these bytes. What no room was asked for becomes an allocation of its own.
    pub fn push(&mut self, bytes: &[u8]) -> Piece {
        let end = self.at.checked_add(bytes.len());
        match (&self.map, end) {
            (Some(map), Some(end)) if end <= map.n_bytes => {
                // SAFETY: `at` to `end` lies within the map, and no piece has these bytes: all lie before `at`, which only grows.
                unsafe { map.place(self.at).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
                let range = self.at..end;
                self.at = end.next_multiple_of(PAGE);
                Piece(Place::Mapped { map: Arc::clone(map), range })
            }
            _ => Piece::from(bytes.to_vec()),
        }
    }
}

impl From<Vec<u8>> for Piece {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Place::Own(bytes))
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Own(bytes) => bytes,
            // SAFETY: the range lies within the map, was written before the piece was made, and does not change until it is
            // dropped.
            Place::Mapped { map, range } => unsafe {
                std::slice::from_raw_parts(map.place(range.start).as_ptr(), range.len())
            },
        }
    }
}

impl Piece {
    /// Drops many: those that lie side by side go back to the system at once, which takes less time.
    pub fn drop_together(pieces: impl Iterator<Item = Self>) {
        let mut run: Option<(Arc<Map>, Range<usize>)> = None;
        for mut piece in pieces {
            let Place::Mapped { map, range } = std::mem::replace(&mut piece.0, Place::Own(Vec::new())) else {
                continue;
            };
            let range = range.start..range.end.next_multiple_of(PAGE);
            match &mut run {
                Some((of, run)) if Arc::ptr_eq(of, &map) && run.end == range.start => run.end = range.end,
                _ => {
                    if let Some((map, run)) = run.replace((map, range)) {
                        give_back(&map, run);
                    }
                }
            }
        }
        if let Some((map, run)) = run {
            give_back(&map, run);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Place::Mapped { map, range } = &self.0 {
            give_back(map, range.start..range.end.next_multiple_of(PAGE));
        }
    }
}

/// Gives pages of pieces back that are being dropped.
fn give_back(map: &Arc<Map>, pages: Range<usize>) {
    // The last one gives all of it back.
    if Arc::strong_count(map) > 1 {
        // SAFETY: references to the bytes borrow from the pieces, so there are none; the rest of each last page is nobody's.
        unsafe { map.pages.give_back(pages.start..pages.end.min(map.n_bytes)) };
    }
}

/// Bytes from which on a map is made: a process may have some 65,000.
const MAPPED_FROM: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_keep_their_bytes_whatever_goes_beside_them() {
        for n_bytes in [3 << 20, 1000] {
            let mut pieces = Pieces::new(n_bytes, 300);
            let bytes = |i: usize| -> Vec<u8> { (0..1 + i * 7919 % 9000).map(|b| (b * 31 + i) as u8).collect() };
            let mut all: Vec<(usize, Piece)> = (0..300).map(|i| (i, pieces.push(&bytes(i)))).collect();
            drop(pieces);
            for step in [2, 3, 5, 7] {
                let (kept, gone): (Vec<_>, Vec<_>) = all.into_iter().partition(|(i, _)| i / 4 % step != 0);
                Piece::drop_together(gone.into_iter().map(|(_, piece)| piece));
                all = kept;
                assert!(!all.is_empty() && all.iter().all(|(i, piece)| **piece == *bytes(*i)), "{n_bytes}, {step}");
            }
        }
    }

    /// Bytes of the map that are in memory.
    #[cfg(target_os = "linux")]
    fn resident(map: &Map) -> usize {
        let text = std::fs::read_to_string("/proc/self/smaps").expect("Linux tells");
        let (from, to) = (map.start.addr().get(), map.start.addr().get() + map.n_bytes);
        let mut is_inside = false;
        let mut n = 0;
        for line in text.lines() {
            let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
            let range = range.map(|(a, b)| (usize::from_str_radix(a, 16), usize::from_str_radix(b, 16)));
            if let Some((Ok(a), Ok(b))) = range {
                is_inside = a < to && from < b;
            } else if is_inside && let Some(kib) = line.strip_prefix("Rss:") {
                n += kib.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10;
            }
        }
        n
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_dropped_piece_takes_no_memory() {
        let mut pieces = Pieces::new(64 << 20, 4096);
        let mut all: Vec<Piece> = (0..4096).map(|i| pieces.push(&vec![i as u8; 16 << 10])).collect();
        let map = Arc::clone(pieces.map.as_ref().expect("it is large"));
        // Neighbours that the system has joined with the map may be counted, too.
        let before = resident(&map);
        assert!(before >= 64 << 20, "{before} bytes");
        let mut i = 0;
        all.retain(|_| {
            i += 1;
            i % 4 == 0
        });
        let given = before.saturating_sub(resident(&map));
        assert!(given >= 40 << 20, "{given} of {} bytes were given back", 48 << 20);
    }
}
