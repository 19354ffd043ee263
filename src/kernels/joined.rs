//! Panels of weight rows times many columns: rows are joined once ([`crate::avx2::joined`]) for all tiles of eight columns, which
//! then need not bring them side by side each. The bits are those of rows as they lie.

use std::cell::RefCell;
use std::ops::Range;

use crate::activations::{Activations, MAX_COLUMNS};
use crate::avx2::joined::join;
use crate::isa::Isa;
use crate::product::{Matrix, Output, Part, Prefetch};
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

/// The first rows of `range` times all columns but those of the last tile that is not full, and the rest of these rows times
/// that. Gives the first row that is left: less than eight are.
///
/// # Safety
/// As [`crate::product::rows_times_tile`], for all columns; [`for_columns`] says yes.
pub(crate) unsafe fn on_panel(
    isa: Isa,
    w: &Matrix,
    range: Range<usize>,
    row_bytes: usize,
    activations: &Activations,
    out: &Output,
) -> usize {
    let whole = range.start..range.start + range.len() / WIDE * WIDE;
    let n = activations.shape.n;
    JOINED.with_borrow_mut(|joined| {
        if joined.len() < whole.len() * row_bytes {
            joined.resize(whole.len() * row_bytes, 0);
        }
        for r in whole.clone().step_by(WIDE) {
            let rows = std::array::from_fn(|i| w.data.wrapping_add((r + i) * row_bytes));
            let to = joined[(r - whole.start) * row_bytes..][..WIDE * row_bytes].as_mut_ptr();
            // SAFETY: rows of the weight (the caller); room for eight.
            unsafe { join(w.ty, &rows, activations.shape.n_blocks(), to) };
        }
        // Where row 0 were if all were joined.
        let data = joined.as_ptr().wrapping_sub(whole.start * row_bytes);
        let of_panel = Matrix { ty: w.ty, data, n_rows: w.n_rows };
        for j in (0..n).step_by(MAX_COLUMNS) {
            let tile = &activations.tile(j, MAX_COLUMNS.min(n - j));
            let to = std::array::from_fn(|i| out.data.wrapping_add((j + i) * out.column_floats));
            let (range, prefetch) = (whole.clone(), Prefetch::Nothing);
            if tile.n < MAX_COLUMNS {
                // SAFETY: the caller's.
                unsafe { crate::product::rows_times_tile(isa, w, range, row_bytes, tile, &to, prefetch) };
                continue;
            }
            let part = Part { w: &of_panel, range, row_bytes, tile, out: &to, prefetch };
            // SAFETY: the caller's; the rows of the range are joined, eight by eight.
            unsafe {
                match isa {
                    Isa::AvxVnni => part.in_groups::<WIDE>(|group| crate::avx2::dots::<true, true>(w.ty, group, tile)),
                    _ => part.in_groups::<WIDE>(|group| crate::avx2::dots::<false, true>(w.ty, group, tile)),
                }
            }
        }
    });
    whole.end
}
