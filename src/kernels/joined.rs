//! Panels of weight rows for many columns: rows are joined once ([`crate::avx2::joined`]) for all tiles of eight columns, which then
//! need not bring them side by side each. The bits are those of rows as they lie.

use std::cell::RefCell;
use std::ops::Range;

use crate::activations::MAX_COLUMNS;
use crate::avx2::joined::join;
use crate::isa::Isa;
use crate::tile::WIDE;
use crate::weight_type::WeightType;

thread_local! {
    /// The rows of a panel; kept from node to node.
    static JOINED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Columns from which on it pays to join rows.
const LEAST_COLUMNS: usize = 4 * MAX_COLUMNS;

/// True if the rows of such a weight are joined for so many columns.
pub(crate) fn for_columns(isa: Isa, ty: WeightType, n: usize) -> bool {
    matches!(isa, Isa::Avx2 | Isa::AvxVnni) && ty.is_quantised() && n >= LEAST_COLUMNS
}

/// `then` with the rows `range`, whole groups of eight, of `n_blocks` blocks each and joined: with where row 0 would be, were all
/// rows joined that begin at `data`.
///
/// # Safety
/// The rows can be read; [`for_columns`] says yes.
pub(crate) unsafe fn with_joined(
    ty: WeightType,
    data: *const u8,
    range: Range<usize>,
    n_blocks: usize,
    then: impl FnOnce(*const u8),
) {
    let row_bytes = n_blocks * ty.block_bytes();
    JOINED.with_borrow_mut(|joined| {
        if joined.len() < range.len() * row_bytes {
            joined.resize(range.len() * row_bytes, 0);
        }
        for r in range.clone().step_by(WIDE) {
            let rows = std::array::from_fn(|i| data.wrapping_add((r + i) * row_bytes));
            let to = joined[(r - range.start) * row_bytes..][..WIDE * row_bytes].as_mut_ptr();
            // SAFETY: rows that can be read (the caller); room for eight; the instruction set has AVX2 (`for_columns`).
            unsafe { join(ty, &rows, n_blocks, to) };
        }
        then(joined.as_ptr().wrapping_sub(range.start * row_bytes));
    });
}
