//! Where the rows of a weight lie. Computes nothing.

use std::ops::Range;

use crate::tile::WIDE;
use crate::weight_type::WeightType;

/// A weight whose rows lie one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub(crate) ty: WeightType,
    pub(crate) data: *const u8,
    /// The same rows joined, for [`crate::joined::reads`] and whole groups of eight; null if they are not.
    pub(crate) joined: *const u8,
    pub(crate) n_rows: usize,
}

impl Matrix {
    /// Where the bytes begin that products read.
    pub(crate) fn read(&self) -> *const u8 {
        if self.joined.is_null() { self.data } else { self.joined }
    }
}

/// Where the rows from `r` on begin. Past the last one of `range` it is taken again, and its results are to be dropped. Eight joined rows
/// begin where the first of them would; past the last eight the first eight are taken.
#[inline(always)]
pub(crate) fn rows_from<const ROWS: usize>(
    w: &Matrix,
    range: &Range<usize>,
    r: usize,
    row_bytes: usize,
) -> [*const u8; ROWS] {
    std::array::from_fn(|i| {
        let row = match w.joined.is_null() {
            true => (r + i).min(range.end - 1),
            false if r + i < range.end => r + i / WIDE * WIDE,
            false => r,
        };
        w.read().wrapping_add(row * row_bytes)
    })
}
