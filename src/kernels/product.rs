//! The work of one thread: its weight rows, in groups, times all rows, eight at a time.

use ggml_sys as sys;
use std::ffi::{c_int, c_void};

use super::activations::{Columns, MAX_ROWS, Rows};
use super::weight_type::Kind;
use super::{Dots, GROUP, Group, Path};

/// Weight bytes are prefetched at least this far ahead.
const AHEAD: usize = 4096;

/// Weight bytes that stay in a core's cache while more than eight rows are multiplied with them.
const PANEL: usize = 128 << 10;

/// A weight whose rows lie one after the other.
pub(super) struct Matrix {
    pub(super) kind: Kind,
    pub(super) data: *const u8,
    /// Rows.
    pub(super) m: usize,
}

/// Where results go: row `j` of `m` values starts at `j * row_floats`.
pub(super) struct Output {
    pub(super) data: *mut f32,
    pub(super) row_floats: usize,
}

/// The rows `first..last` of `m` that are thread `ith`'s, whole groups.
pub(super) fn part(m: usize, ith: usize, nth: usize) -> std::ops::Range<usize> {
    let n_groups = m.div_ceil(GROUP);
    GROUP * (n_groups * ith / nth)..(GROUP * (n_groups * (ith + 1) / nth)).min(m)
}

/// The share of thread `ith` of `nth`.
///
/// # Safety
/// `path` is available; `rows` are quantised for the weight's kind and as long as its rows; `out` has room; threads come
/// with different `ith`.
pub(super) unsafe fn product(path: Path, w: &Matrix, rows: &Rows, out: &Output, ith: usize, nth: usize) {
    let n = rows.shape.n;
    let row_bytes = w.kind.row_bytes(rows.shape.k);
    let part = part(w.m, ith, nth);
    let panel = if n <= MAX_ROWS { w.m.max(1) } else { (PANEL / row_bytes).max(GROUP) / GROUP * GROUP };
    for first in part.clone().step_by(panel.next_multiple_of(GROUP)) {
        let last = (first + panel).min(part.end);
        for j in (0..n).step_by(MAX_ROWS) {
            let columns = rows.columns(j, MAX_ROWS.min(n - j));
            let to = std::array::from_fn(|i| out.data.wrapping_add((j + i) * out.row_floats));
            let ahead = if j == 0 { Ahead::Same } else { Ahead::Nothing };
            // SAFETY: the rows lie in the weight and are as long as the columns.
            unsafe { groups(path, w, first..last, row_bytes, &columns, &to, ahead) };
        }
    }
    // SAFETY: all rows were quantised.
    if unsafe { rows.odd() } {
        for j in 0..n {
            // SAFETY: the caller's promise.
            unsafe { odd_row(w, rows, j, out.data.wrapping_add(j * out.row_floats), part.clone()) };
        }
    }
}

/// What to prefetch.
#[derive(Clone, Copy)]
pub(super) enum Ahead {
    /// The bytes that come next.
    Same,
    /// After the last of this range, these.
    Then(*const u8),
    /// Nothing: the weights are in the cache.
    Nothing,
}

/// The weight rows `range` times `columns`; results of column `j` go to `out[j]`, each to the place of its weight row.
///
/// # Safety
/// `path` is available; the rows lie in the weight; there is room for the results.
pub(super) unsafe fn groups(
    path: Path,
    w: &Matrix,
    range: std::ops::Range<usize>,
    row_bytes: usize,
    columns: &Columns,
    out: &[*mut f32; MAX_ROWS],
    ahead: Ahead,
) {
    // Whole groups ahead, so that each byte is asked for once, in the order in which it is used.
    let distance = GROUP * AHEAD.div_ceil(GROUP * row_bytes);
    let at = |r: usize| w.data.wrapping_add(r * row_bytes);
    for r in range.clone().step_by(GROUP) {
        // Past the last row it is taken again, and its results are dropped.
        let rows = std::array::from_fn(|i| at((r + i).min(range.end - 1)));
        let next = r + distance;
        let ahead = match ahead {
            Ahead::Same => at(next),
            Ahead::Then(_) if next < range.end => at(next),
            Ahead::Then(other) => other.wrapping_add((next - range.end) * row_bytes),
            Ahead::Nothing => rows[0],
        };
        // SAFETY: the rows lie in the weight and have as many blocks as the columns.
        let dots: Dots = unsafe { path.dots(w.kind, &Group { rows, ahead }, columns) };
        for (i, dots) in dots.iter().take(range.end - r).enumerate() {
            for (&dot, out) in dots[..columns.n].iter().zip(out) {
                // SAFETY: `r + i < m`; this thread alone has these rows.
                unsafe { *out.wrapping_add(r + i) = dot };
            }
        }
    }
}

type VecDot = unsafe extern "C" fn(c_int, *mut f32, usize, *const c_void, usize, *const c_void, usize, c_int);

/// ggml's product of one row with one row.
pub(super) fn vec_dot(kind: Kind) -> VecDot {
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(kind.raw()) };
    // SAFETY: an entry of ggml's static table.
    unsafe { &*traits }.vec_dot.expect("types of weights have a dot product")
}

/// Row `j`, if it has a quant of -128, by ggml. Allocates: such rows hold NaN, infinities or next to nothing.
///
/// # Safety
/// As [`groups`]; the row was quantised for `Q8_0`.
pub(super) unsafe fn odd_row(w: &Matrix, rows: &Rows, j: usize, out: *mut f32, part: std::ops::Range<usize>) {
    // SAFETY: the caller's promise.
    if !unsafe { rows.is_odd(j) } {
        return;
    }
    let (vec_dot, k) = (vec_dot(w.kind), rows.shape.k);
    // SAFETY: the caller's promise.
    let row = unsafe { rows.as_ggml(j) };
    for r in part {
        let x = w.data.wrapping_add(r * w.kind.row_bytes(k));
        // SAFETY: both rows have `k` values; the place is this thread's.
        unsafe { vec_dot(k as c_int, out.wrapping_add(r), 0, x.cast(), 0, row.as_ptr().cast(), 0, 1) };
    }
}
