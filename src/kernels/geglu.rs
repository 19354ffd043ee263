//! GELU in its form of a hyperbolic tangent, alone or as the gate of a feed-forward: `gelu(gate) * up` by element.
//!
//! ggml's CPU backend looks GELU up in a table of F16 numbers, which moves the logits of a whole model by 1e-2. Here it is
//! computed in F32, with the same bits in every instruction set, whatever rows stand beside it.
//!
//! Source: Hendrycks and Gimpel 2016; `0.5 * (1 + tanh(u))` is `1 / (1 + exp(-2 u))`.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use ggml_sys as sys;

use crate::f32x16::{F32x16, by_isa};
use crate::isa::Isa;
use crate::nodes::n_columns;

/// Elements that are computed together.
const AT_ONCE: usize = 16;

/// `2 * sqrt(2 / pi)`, and that times the weight of the cube.
const LINEAR: f32 = 1.595_769_2;
const CUBIC: f32 = 0.071_354_814;

/// Rows of floats at even distances. Strides are in floats.
struct Rows {
    gate: (*const f32, usize),
    /// Absent where there is no other factor.
    up: Option<(*const f32, usize)>,
    out: (*mut f32, usize),
    /// Elements of a row.
    n: usize,
}

impl Rows {
    /// Groups of [`AT_ONCE`] elements of a row; the last may have fewer.
    fn groups(&self) -> usize {
        self.n.div_ceil(AT_ONCE)
    }
}

/// `exp(x)` for `x` in [-87, 87], to 2 units in the last place: a power of two times a polynomial on `[-ln(2) / 2, ln(2) / 2]`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding it leaves a whole number in the last bits.
    const SHIFT: f32 = 12_582_912.0;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    // ln(2) in two parts, the first of which has few bits.
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut sum = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = r.mul_add(sum, c);
    }
    let exponent = shifted.to_bits().wrapping_sub(SHIFT.to_bits()).wrapping_add(127) << 23;
    sum * f32::from_bits(exponent)
}

/// `gelu(gate) * up`.
#[inline(always)]
fn geglu(gate: f32, up: f32) -> f32 {
    let u = gate * (gate * gate).mul_add(CUBIC, LINEAR);
    gate / (1.0 + exp((-u).clamp(-87.0, 87.0))) * up
}

/// Groups `part` of all rows, counted on from row to row.
///
/// # Safety
/// All pointers are good for their rows, `part` lies within the groups, the CPU has what `V` needs.
#[inline(always)]
unsafe fn groups<V: F32x16>(rows: &Rows, part: Range<usize>) {
    let of_row = rows.groups();
    for group in part {
        let (row, first) = (group / of_row, group % of_row * AT_ONCE);
        let n = AT_ONCE.min(rows.n - first);
        let at = |(data, stride): (*const f32, usize)| data.wrapping_add(row * stride + first);
        let (gate, out) = (at(rows.gate), rows.out.0.wrapping_add(row * rows.out.1 + first));
        let (mut x, mut y) = ([0.0; AT_ONCE], [1.0; AT_ONCE]);
        // SAFETY: `n` floats follow in the row; the array has as many or more.
        unsafe { std::ptr::copy_nonoverlapping(gate, x.as_mut_ptr(), n) };
        if let Some(up) = rows.up {
            // SAFETY: likewise, in the row of the other factor.
            unsafe { std::ptr::copy_nonoverlapping(at(up), y.as_mut_ptr(), n) };
        }
        for (x, y) in x.iter_mut().zip(&y) {
            *x = geglu(*x, *y);
        }
        // SAFETY: likewise, in the row of the result.
        unsafe { std::ptr::copy_nonoverlapping(x.as_ptr(), out, n) };
    }
}

by_isa!(on_isa, groups, (rows: &Rows, part: Range<usize>));

/// `src[0]: [n, ..]` gates and `src[1]: [n, ..]` other factors, both F32 with rows at even distances, give `dst` of that shape.
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn gated_gelu(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let Some(isa) = Isa::chosen() else { return };
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has two operands.
    let [gate, up] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    let floats = |t: &sys::ggml_tensor| (t.data.cast::<f32>(), t.nb[1] / size_of::<f32>());
    let ((gate, by_gate), (up, by_up)) = (floats(gate), floats(up));
    let rows = Rows { gate: (gate, by_gate), up: Some((up, by_up)), out: floats(dst), n: dst.ne[0] as usize };
    let (all, ith, nth) = (rows.groups() * n_columns(dst), ith as usize, nth as usize);
    // SAFETY: shapes were checked when the node was made; groups are this thread's.
    unsafe { on_isa(isa, &rows, all * ith / nth..all * (ith + 1) / nth) }
}

/// `src[0]: [n, ..]`, F32 with rows at even distances, gives its GELU in `dst` of that shape.
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn gelu(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let Some(isa) = Isa::chosen() else { return };
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has an operand.
    let from = unsafe { &*dst.src[0] };
    let floats = |t: &sys::ggml_tensor| (t.data.cast::<f32>(), t.nb[1] / size_of::<f32>());
    let (gate, by_gate) = floats(from);
    let rows = Rows { gate: (gate, by_gate), up: None, out: floats(dst), n: dst.ne[0] as usize };
    let (all, ith, nth) = (rows.groups() * n_columns(dst), ith as usize, nth as usize);
    // SAFETY: shapes were checked when the node was made; groups are this thread's.
    unsafe { on_isa(isa, &rows, all * ith / nth..all * (ith + 1) / nth) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_gives_the_same_bits_and_they_are_gelu() {
        let (n, n_rows, stride) = (37, 3, 41);
        let gate: Vec<f32> = (0..n_rows * stride).map(|i| (i * 7919 % 1013) as f32 / 46.0 - 11.0).collect();
        let up: Vec<f32> = (0..n_rows * stride).map(|i| (i * 31 % 97) as f32 / 50.0 - 1.0).collect();
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; n_rows * n];
            let rows =
                Rows { gate: (gate.as_ptr(), stride), up: Some((up.as_ptr(), stride)), out: (out.as_mut_ptr(), n), n };
            // In three parts, as three threads would.
            let all = rows.groups() * n_rows;
            for ith in 0..3 {
                // SAFETY: everything has the sizes said above; the instruction set is available.
                unsafe { on_isa(isa, &rows, all * ith / 3..all * (ith + 1) / 3) };
            }
            for (i, &found) in out.iter().enumerate() {
                let at = i / n * stride + i % n;
                assert_eq!(found.to_bits(), geglu(gate[at], up[at]).to_bits(), "{isa:?}, element {i}");
                let x = f64::from(gate[at]);
                let gelu = 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
                let expected = gelu * f64::from(up[at]);
                let error = (f64::from(found) - expected).abs();
                assert!(error <= 1e-6 * expected.abs() + 1e-9, "{isa:?}, gelu({x}): {found}, {expected} expected");
            }
        }
    }

    #[test]
    fn large_gates_pass_or_close_and_nan_stays() {
        assert_eq!(geglu(1e20, 2.0), 2e20);
        assert_eq!(geglu(40.0, 1.0), 40.0);
        assert!(geglu(-40.0, 1.0).abs() < 1e-30);
        assert!(geglu(f32::NAN, 1.0).is_nan() && geglu(1.0, f32::NAN).is_nan());
    }
}
