//! Masks of attention that say of each row from where to where it sees cells. A device that makes them by itself
//! (`vendor/ggml-sys/cuda/mask.cu`) follows this file.

use std::ffi::{c_int, c_void};

use ggml_sys as sys;

use crate::nodes::n_columns;

/// The parameter that tells [`mask_of_spans`] from other nodes with functions, at [`crate::FIRST_PARAMETER`].
pub const MASK_OF_SPANS: i32 = 0x6d61_736b;

/// Minus infinity as F16 bits.
const MASKED: u16 = 0xFC00;

/// `dst: [n_cells, ..]` F16, dense: zero for cells that a row sees, else minus infinity. `src[0]: [2, n_rows]` I32, dense: the first
/// cell that each row sees, and the one after its last. Parameter: [`MASK_OF_SPANS`].
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn mask_of_spans(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: operands are alive, or absent.
    let Some(spans) = (unsafe { dst.src[0].as_ref() }) else { return };
    let (n_cells, n_rows) = (dst.ne[0] as usize, n_columns(dst));
    for row in (ith as usize..n_rows).step_by(nth as usize) {
        // SAFETY: two numbers for each row.
        let [first, end] = unsafe { spans.data.cast::<[i32; 2]>().add(row).read() }.map(|at| at.max(0) as usize);
        // SAFETY: this row, which no other thread writes.
        let cells = unsafe { std::slice::from_raw_parts_mut(dst.data.cast::<u16>().add(row * n_cells), n_cells) };
        let (first, end) = (first.min(n_cells), end.min(n_cells));
        cells.fill(MASKED);
        if first < end {
            cells[first..end].fill(0);
        }
    }
}
