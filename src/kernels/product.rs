//! A matrix times columns, as one thread computes it: its weight rows, in groups, times all columns, eight at a
//! time.

use ggml_sys as sys;
use std::ffi::{c_int, c_void};
use std::ops::Range;

use crate::activations::{Activations, ColumnTile, MAX_COLUMNS};
#[cfg(target_arch = "x86_64")]
use crate::amx;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::joined;
use crate::scalar;
#[cfg(target_arch = "x86_64")]
use crate::tile::WIDEST;
use crate::tile::{Dots, GROUP, RowGroup, WIDE};
use crate::weight_rows::{Matrix, rows_from};
use crate::weight_type::{ActivationFormat, WeightType};

/// Weight bytes are prefetched at least this far ahead.
const PREFETCH_DISTANCE: usize = 4096;

/// Likewise by kernels that ask for the second cache.
#[cfg(target_arch = "x86_64")]
const FAR_DISTANCE: usize = 16 << 10;

/// Weight bytes that stay in a core's cache while more than eight columns are multiplied with them.
const PANEL: usize = 128 << 10;

/// Where results go: those of column `j`, one for each weight row, start at `j * column_floats`.
pub(crate) struct Output {
    pub(crate) data: *mut f32,
    pub(crate) column_floats: usize,
}

/// Weight rows of a type that kernels take at a time, at most.
fn rows_at_once(isa: Isa, ty: WeightType) -> usize {
    match (isa, ty.format()) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Amx, ActivationFormat::Q8_0 | ActivationFormat::Q8K) => WIDEST,
        (_, ActivationFormat::Q8_0 | ActivationFormat::Q8K | ActivationFormat::F32) => WIDE,
    }
}

/// The weight rows, of `n_rows`, that thread `ith` of `nth` computes: whole groups.
pub(crate) fn rows_of_thread(isa: Isa, ty: WeightType, n_rows: usize, ith: usize, nth: usize) -> Range<usize> {
    let group = rows_at_once(isa, ty);
    let n_groups = n_rows.div_ceil(group);
    (group * (n_groups * ith / nth)).min(n_rows)..(group * (n_groups * (ith + 1) / nth)).min(n_rows)
}

/// What thread `ith` of `nth` computes of `w` times `activations`.
///
/// # Safety
/// `isa` is available; `activations` were made for the weight's type and are as long as its rows; `out` has room for
/// `w.n_rows` results of each column; threads come with different `ith`.
pub(crate) unsafe fn on_thread(isa: Isa, w: &Matrix, activations: &Activations, out: &Output, ith: usize, nth: usize) {
    let n = activations.shape.n;
    let row_bytes = w.ty.row_bytes(activations.shape.k);
    let mine = rows_of_thread(isa, w.ty, w.n_rows, ith, nth);
    let group = rows_at_once(isa, w.ty);
    let panel = if n <= MAX_COLUMNS { w.n_rows.max(1) } else { (PANEL / row_bytes).max(group) / group * group };
    let all_columns = |w: &Matrix, rows: Range<usize>, in_cache: bool| {
        for j in (0..n).step_by(MAX_COLUMNS) {
            let tile = activations.tile(j, MAX_COLUMNS.min(n - j));
            let to = std::array::from_fn(|i| out.data.wrapping_add((j + i) * out.column_floats));
            let prefetch = if j == 0 && !in_cache { Prefetch::Next } else { Prefetch::Nothing };
            // SAFETY: rows and columns have the same length, and `out` has room (the caller); the rows lie in `w`
            // (`rows_of_thread`).
            unsafe { rows_times_tile(isa, w, rows.clone(), row_bytes, &tile, &to, prefetch) };
        }
    };
    #[cfg(target_arch = "x86_64")]
    let left = match amx::takes(isa, w.ty, n) {
        true => {
            let out = |j: usize| out.data.wrapping_add(j * out.column_floats);
            // SAFETY: as below.
            unsafe { amx::product(w, mine.clone(), &amx::Columns::all(activations), out, std::ptr::null()) };
            mine.end..mine.end
        }
        false => mine.clone(),
    };
    #[cfg(not(target_arch = "x86_64"))]
    let left = mine.clone();
    for first in left.step_by(panel.next_multiple_of(group)) {
        let last = (first + panel).min(mine.end);
        #[cfg(target_arch = "x86_64")]
        let first = match w.joined.is_null() && joined::for_columns(isa, w.ty, n) {
            true => {
                let whole = first..first + (last - first) / WIDE * WIDE;
                let of_panel = |joined| all_columns(&Matrix { joined, ..*w }, whole.clone(), true);
                // SAFETY: the rows lie in the weight (the caller); `for_columns` says yes.
                unsafe { joined::with_joined(w.ty, w.data, whole.clone(), activations.shape.n_blocks(), of_panel) };
                whole.end
            }
            false => first,
        };
        all_columns(w, first..last, false);
    }
    // SAFETY: every thread has quantised its columns: a node before this one did, which ended with a barrier.
    if w.ty.leaves_minus_128() && unsafe { activations.any_has_minus_128() } {
        for j in 0..n {
            // SAFETY: as for `rows_times_tile` above; the column was quantised.
            unsafe { redo_by_ggml(w, activations, j, out.data.wrapping_add(j * out.column_floats), mine.clone()) };
        }
    }
}

/// What to prefetch.
#[derive(Clone, Copy)]
pub(crate) enum Prefetch {
    /// The bytes that come next.
    Next,
    /// The bytes that come next and, after the last of this range, these.
    Then(*const u8),
    /// Nothing: the weights are in the cache.
    Nothing,
}

/// The weight rows `range` times the columns of `tile`; results of column `j` go to `out[j]`, each to the place of its row.
///
/// # Safety
/// `isa` is available; the rows `range` lie in the weight, whose rows are as long as the columns, which are in the format of
/// its type; each of `out` has room for a result of every row; nobody else writes those of these rows. Of joined rows the range is
/// whole groups of eight.
pub(crate) unsafe fn rows_times_tile(
    isa: Isa,
    w: &Matrix,
    range: Range<usize>,
    row_bytes: usize,
    tile: &ColumnTile,
    out: &[*mut f32; MAX_COLUMNS],
    prefetch: Prefetch,
) {
    let part = Part { w, range, row_bytes, tile, out, prefetch };
    // SAFETY: the tile contract, handed on with the caller's; an available instruction set has the features that its kernels
    // are compiled for.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni if w.ty.is_quantised() => {
                let dots = match (isa == Isa::AvxVnni, !w.joined.is_null()) {
                    (false, false) => crate::avx2::dots::<false, false>,
                    (false, true) => crate::avx2::dots::<false, true>,
                    (true, false) => crate::avx2::dots::<true, false>,
                    (true, true) => crate::avx2::dots::<true, true>,
                };
                let far = w.ty.format() == ActivationFormat::Q8K;
                let distance = if far { FAR_DISTANCE } else { PREFETCH_DISTANCE };
                part.in_groups::<WIDE>(distance, |group| dots(w.ty, group, tile))
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx if w.ty.is_quantised() => {
                let dots = if w.joined.is_null() { crate::avx512::dots::<false> } else { crate::avx512::dots::<true> };
                part.in_groups::<WIDEST>(FAR_DISTANCE, |group| dots(w.ty, group, tile))
            }
            _ => part.in_groups::<GROUP>(PREFETCH_DISTANCE, |group| dots(isa, w.ty, group, tile)),
        }
    }
}

/// Some rows of a weight, the columns of a tile, and where their products go.
struct Part<'a> {
    w: &'a Matrix,
    range: Range<usize>,
    row_bytes: usize,
    tile: &'a ColumnTile,
    out: &'a [*mut f32; MAX_COLUMNS],
    prefetch: Prefetch,
}

impl Part<'_> {
    /// By `dots`, which takes so many rows at a time and asks for what is at least `distance` bytes ahead.
    ///
    /// # Safety
    /// That of [`rows_times_tile`]; `dots` takes groups of the weight's rows.
    #[inline(always)]
    unsafe fn in_groups<const ROWS: usize>(self, distance: usize, dots: impl Fn(&RowGroup<ROWS>) -> Dots<ROWS>) {
        let Self { w, range, row_bytes, tile, out, prefetch } = self;
        // Whole groups ahead, so that each byte is asked for once, in the order in which it is used.
        let distance = ROWS * distance.div_ceil(ROWS * row_bytes);
        let at = |r: usize| w.read().wrapping_add(r * row_bytes);
        for r in range.clone().step_by(ROWS) {
            let rows = rows_from(w, &range, r, row_bytes);
            let next = r + distance;
            let ahead = match prefetch {
                Prefetch::Next => at(next),
                Prefetch::Then(_) if next < range.end => at(next),
                Prefetch::Then(other) => other.wrapping_add((next - range.end) * row_bytes),
                Prefetch::Nothing => rows[0],
            };
            // The tile contract: `rows` are rows of the weight, `tile` was made by `Activations`, and both have the same
            // number of blocks (the caller).
            let n_rows = ROWS.min(range.end - r);
            for (dots, out) in dots(&RowGroup { rows, ahead })[..tile.n].iter().zip(out) {
                let to = out.wrapping_add(r);
                // SAFETY: `r` and the `n_rows` from it on are in `range`, for which there is room and no other writer (the
                // caller); `dots` is a copy.
                unsafe {
                    if n_rows == ROWS {
                        to.cast::<[f32; ROWS]>().write_unaligned(*dots);
                    } else {
                        std::ptr::copy_nonoverlapping(dots.as_ptr(), to, n_rows);
                    }
                }
            }
        }
    }
}

/// Four weight rows of this type times the columns of `y`.
///
/// # Safety
/// The tile contract:
/// - `isa` is available;
/// - each of `group.rows` begins `y.n_blocks` blocks of `ty` that can be read (`group.ahead` is never read);
/// - each of `y.columns` begins a column of `y.n_blocks` blocks in the format of `ty`, laid out by `Activations`;
/// - `y.n` is 1 to [`MAX_COLUMNS`].
unsafe fn dots(isa: Isa, ty: WeightType, group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; an available instruction set has the features that its kernels are compiled for.
    unsafe {
        match isa {
            Isa::Scalar => scalar::dots(isa, ty, group, y),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Amx => crate::floats::dots(isa, ty, group, y),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm if y.n > 1 && !y.pairs.is_null() && ty.is_quantised() => crate::i8mm::dots(ty, group, y),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::I8mm => crate::neon::dots(ty, group, y),
        }
    }
}

type VecDot = unsafe extern "C" fn(c_int, *mut f32, usize, *const c_void, usize, *const c_void, usize, c_int);

/// ggml's product of one row with one column.
pub(crate) fn vec_dot(ty: WeightType) -> VecDot {
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(ty.raw()) };
    // SAFETY: an entry of ggml's static table.
    unsafe { &*traits }.vec_dot.expect("types of weights have a dot product")
}

/// The rows `range` times column `j` by ggml, if the column has a quant of -128. Allocates: such columns hold NaN,
/// infinities or next to nothing.
///
/// # Safety
/// As [`rows_times_tile`], with room at `out`; the column was quantised for `Q8_0`.
pub(crate) unsafe fn redo_by_ggml(w: &Matrix, x: &Activations, j: usize, out: *mut f32, range: Range<usize>) {
    // SAFETY: column `j` was quantised (the caller).
    if !unsafe { x.has_minus_128(j) } {
        return;
    }
    let (vec_dot, k) = (vec_dot(w.ty), x.shape.k);
    // SAFETY: as above.
    let column = unsafe { x.as_ggml(j) };
    for r in range {
        let row = w.data.wrapping_add(r * w.ty.row_bytes(k));
        // SAFETY: row and column have `k` values; there is room for the result, and no other writer (the caller).
        unsafe { vec_dot(k as c_int, out.wrapping_add(r), 0, row.cast(), 0, column.as_ptr().cast(), 0, 1) };
    }
}
