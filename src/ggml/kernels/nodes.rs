//! What ggml's threads call: quantising rows, and their product with a weight. Splits the work; kernels do it.
//!
//! Nothing here allocates. ggml ends every node with a barrier, so a product sees all rows quantised. A panic would end
//! the process at the `extern "C"` boundary.

use ggml_sys as sys;
use std::ffi::{c_int, c_void};

use super::rows::{BLOCK, MAX_ROWS, Rows, Shape, WeightBlock};
use super::{AHEAD, GROUP, Group, Path};

/// ggml's own functions for Q8_0.
struct Traits {
    from_float: unsafe extern "C" fn(*const f32, *mut c_void, i64),
    vec_dot: unsafe extern "C" fn(c_int, *mut f32, usize, *const c_void, usize, *const c_void, usize, c_int),
}

fn traits() -> Traits {
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(sys::GGML_TYPE_Q8_0) };
    // SAFETY: an entry of ggml's static table.
    let traits = unsafe { &*traits };
    Traits {
        from_float: traits.from_float.expect("Q8_0 is a type of activations"),
        vec_dot: traits.vec_dot.expect("Q8_0 has a dot product"),
    }
}

/// `src[0]: [k, n]` F32, rows of any distance, into `dst` as [`Rows`].
///
/// # Safety
/// Called by ggml for a node that `Graph::kernel_product` made, by each of `nth` threads.
pub(super) unsafe extern "C" fn quantise(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has one operand.
    let x = unsafe { &*dst.src[0] };
    let shape = Shape { n: x.ne[1] as usize, n_blocks: x.ne[0] as usize / BLOCK };
    // SAFETY: the node was sized for this shape; ggml aligns its memory.
    let rows = unsafe { Rows::new(shape, dst.data.cast()) };
    let input = Input { data: x.data.cast(), row_bytes: x.nb[1] };
    // SAFETY: the operand has this shape; all threads come here.
    unsafe { quantise_share(&rows, &input, ith as usize, nth as usize) }
}

/// Rows of F32.
pub(super) struct Input {
    pub(super) data: *const u8,
    pub(super) row_bytes: usize,
}

/// The share of thread `ith` of `nth`.
///
/// # Safety
/// `input` has the shape of `rows`; each thread comes once.
pub(super) unsafe fn quantise_share(rows: &Rows, input: &Input, ith: usize, nth: usize) {
    let (n, n_blocks) = (rows.shape.n, rows.shape.n_blocks);
    let from_float = traits().from_float;
    let (mut at, end) = (n * n_blocks * ith / nth, n * n_blocks * (ith + 1) / nth);
    let mut odd = 0u8;
    while at < end {
        let (j, l) = (at / n_blocks, at % n_blocks);
        let here = (n_blocks - l).min(end - at);
        let x = input.data.wrapping_add(j * input.row_bytes + l * BLOCK * size_of::<f32>());
        // SAFETY: `here` blocks lie within row `j` on both sides; this thread alone has them.
        unsafe { from_float(x.cast(), rows.block(j, l).cast(), (here * BLOCK) as i64) };
        for l in l..l + here {
            // SAFETY: just quantised.
            odd |= u8::from(unsafe { rows.spread(j, l) }) << j;
        }
        at += here;
    }
    // SAFETY: once for each thread.
    unsafe { rows.note_odd(ith, nth, odd) }
}

/// `src[0]: [k, m]` Q8_0 times `src[1]`, the rows of `src[2]: [k, n]` quantised, gives `dst: [m, n]` F32.
///
/// # Safety
/// As [`quantise`].
pub(super) unsafe extern "C" fn product(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has three operands.
    let (w, y) = (unsafe { &*dst.src[0] }, unsafe { &*dst.src[1] });
    let shape = Shape { n: dst.ne[1] as usize, n_blocks: w.ne[0] as usize / BLOCK };
    // SAFETY: `src[1]` was made for this shape by `quantise`.
    let rows = unsafe { Rows::new(shape, y.data.cast()) };
    let matrix = Matrix { data: w.data.cast(), m: w.ne[1] as usize };
    let out = Output { data: dst.data.cast(), row_floats: dst.nb[1] / size_of::<f32>() };
    let Some(path) = Path::chosen() else { return };
    // SAFETY: operands have these shapes (checked when the node was made).
    unsafe { product_share(path, &matrix, &rows, &out, ith as usize, nth as usize) }
}

/// A weight whose rows lie one after the other.
pub(super) struct Matrix {
    pub(super) data: *const WeightBlock,
    pub(super) m: usize,
}

/// Where results go: row `j` of `m` values starts at `j * row_floats`.
pub(super) struct Output {
    pub(super) data: *mut f32,
    pub(super) row_floats: usize,
}

/// The share of thread `ith` of `nth`: groups of weight rows.
///
/// # Safety
/// `path` is available; `rows` are quantised and as long as those of `w`; `out` has room; threads come with different `ith`.
pub(super) unsafe fn product_share(path: Path, w: &Matrix, rows: &Rows, out: &Output, ith: usize, nth: usize) {
    let Shape { n, n_blocks } = rows.shape;
    debug_assert!((1..=MAX_ROWS).contains(&n));
    let n_groups = w.m.div_ceil(GROUP);
    let (first, last) = (GROUP * (n_groups * ith / nth), (GROUP * (n_groups * (ith + 1) / nth)).min(w.m));
    let columns = rows.columns();
    let group_bytes = GROUP * n_blocks * size_of::<WeightBlock>();
    // Whole groups ahead, so that each byte is asked for once, in the order in which it is used.
    let ahead = group_bytes * AHEAD.div_ceil(group_bytes);
    for r in (first..last).step_by(GROUP) {
        // Past the last row it is taken again, and its results are dropped.
        let row = |i: usize| w.data.wrapping_add((r + i).min(last - 1) * n_blocks);
        let group = Group { rows: std::array::from_fn(row), ahead: row(0).cast::<u8>().wrapping_add(ahead) };
        // SAFETY: the rows lie in the weight and have `n_blocks` blocks, as the columns have.
        let dots = unsafe { path.dots(&group, &columns) };
        for (i, dots) in dots.iter().take(last - r).enumerate() {
            for (j, &dot) in dots[..n].iter().enumerate() {
                // SAFETY: `r + i < m`, `j < n`; this thread alone has these rows.
                unsafe { *out.data.wrapping_add(j * out.row_floats + r + i) = dot };
            }
        }
    }
    // SAFETY: `quantise` has run.
    let odd = unsafe { rows.odd() };
    for j in (0..n).filter(|j| odd >> j & 1 == 1) {
        let vec_dot = traits().vec_dot;
        for r in first..last {
            let (to, x) = (out.data.wrapping_add(j * out.row_floats + r), w.data.wrapping_add(r * n_blocks));
            // SAFETY: both rows have `n_blocks` blocks; `to` is this thread's.
            unsafe { vec_dot((n_blocks * BLOCK) as c_int, to, 0, x.cast(), 0, rows.block(j, 0).cast(), 0, 1) };
        }
    }
}
