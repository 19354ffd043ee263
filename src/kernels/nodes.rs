//! What ggml's threads call: quantising columns, and their product with a weight.
//!
//! ggml ends every node with a barrier, so a product sees all columns quantised. A panic would end the process at the
//! `extern "C"` boundary.

use ggml_sys as sys;
use std::ffi::{c_int, c_void};

use crate::activations::{Activations, Shape};
use crate::isa::Isa;
use crate::joined::reads;
use crate::product::{self, Output};
use crate::quantise::{self, Input};
use crate::weight_rows::Matrix;
use crate::weight_type::{ActivationFormat, WeightType};

/// What ggml's threads call for a custom node: the node, which thread, of how many, nothing.
pub type NodeFn = unsafe extern "C" fn(*mut sys::ggml_tensor, c_int, c_int, *mut c_void);

/// `src[0]: [k, ..]` F32, columns at even distances, into `dst` as activations in blocks of 32.
///
/// # Safety
/// The node contract; `dst` has [`Shape::n_bytes`] bytes for these columns.
pub unsafe extern "C" fn quantise_for_q8_0(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node contract, handed on.
    unsafe { quantise(dst, ith, nth, ActivationFormat::Q8_0) }
}

/// As [`quantise_for_q8_0`], for the K types.
///
/// # Safety
/// As [`quantise_for_q8_0`].
pub unsafe extern "C" fn quantise_for_k_types(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node contract, handed on.
    unsafe { quantise(dst, ith, nth, ActivationFormat::Q8K) }
}

unsafe fn quantise(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, format: ActivationFormat) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has one operand.
    let x = unsafe { &*dst.src[0] };
    let shape = Shape { n: n_columns(x), k: x.ne[0] as usize, format };
    let Some(isa) = Isa::chosen() else { return };
    // SAFETY: the node was sized for this shape.
    let activations = unsafe { Activations::new(shape, isa, dst.data.cast()) };
    let input = Input { data: x.data.cast(), column_bytes: x.nb[1] };
    // SAFETY: the operand has this shape; all threads come here.
    unsafe { quantise::on_thread(&activations, &input, isa, ith as usize, nth as usize) }
}

/// The columns that `y` holds: quantised for this shape, or plain.
///
/// # Safety
/// `y` was made for the shape by a quantising node, with the same `isa`, or has the shape itself.
pub(crate) unsafe fn activations(shape: Shape, isa: Isa, y: &sys::ggml_tensor) -> Activations {
    match shape.format {
        // SAFETY: `y` has `n` columns of `k` floats (the caller).
        ActivationFormat::F32 => unsafe { Activations::plain(shape, y.data.cast(), y.nb[1]) },
        // SAFETY: a quantising node sized `y` for the shape (the caller).
        ActivationFormat::Q8_0 | ActivationFormat::Q8K => unsafe { Activations::new(shape, isa, y.data.cast()) },
    }
}

/// Where the joined rows of an operand lie; null where there is none, or no kernel for it.
///
/// # Safety
/// `operand` is null, or a tensor that is alive.
pub(crate) unsafe fn joined(isa: Isa, ty: WeightType, operand: *const sys::ggml_tensor) -> *const u8 {
    // SAFETY: null, or alive (the caller).
    let data = unsafe { operand.as_ref() }.map_or(std::ptr::null(), |t| t.data.cast_const().cast());
    if reads(isa, ty) { data } else { std::ptr::null() }
}

/// Columns in all dimensions.
pub(crate) fn n_columns(x: &sys::ggml_tensor) -> usize {
    x.ne[1..].iter().product::<i64>() as usize
}

/// `src[0]: [k, m]` times `src[1]`, the columns of `src[2]: [k, n]` quantised (floats: those columns), gives `dst: [m, n]`
/// F32. `src[3]`, if there is one, is `src[0]` with its rows joined ([`crate::join_rows`]).
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn product(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has three operands.
    let (w, y) = (unsafe { &*dst.src[0] }, unsafe { &*dst.src[1] });
    let (Some(ty), Some(isa)) = (WeightType::of(w.type_), Isa::chosen()) else { return };
    let shape = Shape { n: dst.ne[1] as usize, k: w.ne[0] as usize, format: ty.format() };
    // SAFETY: `src[1]` was made for this shape, or is the columns.
    let activations = unsafe { activations(shape, isa, y) };
    // SAFETY: null, or one more operand.
    let joined = unsafe { joined(isa, ty, dst.src[3]) };
    let matrix = Matrix { ty, data: w.data.cast(), joined, n_rows: w.ne[1] as usize };
    let out = Output { data: dst.data.cast(), column_floats: dst.nb[1] / size_of::<f32>() };
    // SAFETY: operands have these shapes (checked when the node was made).
    unsafe { product::on_thread(isa, &matrix, &activations, &out, ith as usize, nth as usize) }
}
