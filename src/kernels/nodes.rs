//! What ggml's threads call: quantising rows, and their product with a weight.
//!
//! ggml ends every node with a barrier, so a product sees all rows quantised. A panic would end the process at the
//! `extern "C"` boundary.

use ggml_sys as sys;
use std::ffi::{c_int, c_void};

use super::Path;
use super::activations::{Rows, Shape};
use super::product::{self as share, Matrix, Output};
use super::quantise::{self, Input};
use super::weight_type::{Format, Kind};

/// `src[0]: [k, ..]` F32, rows at even distances, into `dst` as [`Rows`] for `Q8_0`.
///
/// # Safety
/// Called by ggml for a node that `Graph::quantised` made, by each of `nth` threads.
pub(super) unsafe extern "C" fn quantise_32(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { quantise(dst, ith, nth, Format::Q8_0) }
}

/// As [`quantise_32`], for the K types.
///
/// # Safety
/// As [`quantise_32`].
pub(super) unsafe extern "C" fn quantise_256(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { quantise(dst, ith, nth, Format::Q8K) }
}

unsafe fn quantise(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, format: Format) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has one operand.
    let x = unsafe { &*dst.src[0] };
    let shape = Shape { n: n_rows(x), k: x.ne[0] as usize, format };
    // SAFETY: the node was sized for this shape.
    let rows = unsafe { Rows::new(shape, dst.data.cast()) };
    let input = Input { data: x.data.cast(), row_bytes: x.nb[1] };
    let Some(path) = Path::chosen() else { return };
    // SAFETY: the operand has this shape; all threads come here.
    unsafe { quantise::share(&rows, &input, path, ith as usize, nth as usize) }
}

/// The rows that `y` holds: quantised for this shape, or plain.
///
/// # Safety
/// `y` was made for the shape by a quantising node, or has the shape itself.
pub(super) unsafe fn rows(shape: Shape, y: &sys::ggml_tensor) -> Rows {
    match shape.format {
        // SAFETY: the caller's promise.
        Format::F32 => unsafe { Rows::plain(shape, y.data.cast(), y.nb[1]) },
        // SAFETY: the caller's promise.
        Format::Q8_0 | Format::Q8K => unsafe { Rows::new(shape, y.data.cast()) },
    }
}

/// Rows in all dimensions.
pub(super) fn n_rows(x: &sys::ggml_tensor) -> usize {
    x.ne[1..].iter().product::<i64>() as usize
}

/// `src[0]: [k, m]` times `src[1]`, the rows of `src[2]: [k, n]` quantised (floats: those rows), gives `dst: [m, n]` F32.
///
/// # Safety
/// As [`quantise_32`], for a node that `Graph::kernel_product` made.
pub(super) unsafe extern "C" fn product(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has three operands.
    let (w, y) = (unsafe { &*dst.src[0] }, unsafe { &*dst.src[1] });
    let (Some(kind), Some(path)) = (Kind::of(w.type_), Path::chosen()) else { return };
    let shape = Shape { n: dst.ne[1] as usize, k: w.ne[0] as usize, format: kind.format() };
    // SAFETY: `src[1]` was made for this shape, or is the rows.
    let rows = unsafe { rows(shape, y) };
    let matrix = Matrix { kind, data: w.data.cast(), m: w.ne[1] as usize };
    let out = Output { data: dst.data.cast(), row_floats: dst.nb[1] / size_of::<f32>() };
    // SAFETY: operands have these shapes (checked when the node was made).
    unsafe { share::product(path, &matrix, &rows, &out, ith as usize, nth as usize) }
}
