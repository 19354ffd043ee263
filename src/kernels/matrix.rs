//! Products of small matrices of floats that lie in the cache, as attention is made of.
//! Owns the loop over rows and groups of lanes. A row of the product has the same bits in every instruction set, whatever rows
//! stand beside it. Knows nothing of what the matrices are.

use crate::f32x16::F32x16;

/// Floats of a group of lanes.
pub(crate) const LANES: usize = 16;

/// A matrix in memory: where it begins, and floats from row to row.
#[derive(Clone, Copy)]
pub(crate) struct At<P> {
    pub(crate) data: P,
    pub(crate) stride: usize,
}

/// `c += a * b` for `R` rows of `a` and `c` and `N` groups of lanes of `b` and `c`.
///
/// # Safety
/// `a` has `R` rows of `k` floats, `b` `k` rows and `c` `R` rows of `N` groups; the CPU has what `V` needs.
#[inline(always)]
unsafe fn block<V: F32x16, const R: usize, const N: usize>(
    a: At<*const f32>,
    b: At<*const f32>,
    c: At<*mut f32>,
    k: usize,
) {
    let mut sums = [[V::zero(); N]; R];
    for t in 0..k {
        // Not in a closure, which is not compiled for the instruction set.
        let mut row = [V::zero(); N];
        for (s, lanes) in row.iter_mut().enumerate() {
            // SAFETY: row `t` of `b` (the caller).
            *lanes = unsafe { V::load(b.data.add(t * b.stride + s * LANES)) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: column `t` of `a` (the caller).
            let x = V::all(unsafe { *a.data.add(r * a.stride + t) });
            for (sum, &y) in sums.iter_mut().zip(&row) {
                *sum = x.mul_add(y, *sum);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (s, sum) in sums.into_iter().enumerate() {
            let to = c.data.wrapping_add(r * c.stride + s * LANES);
            // SAFETY: rows and groups of `c` (the caller).
            unsafe { V::load(to).add(sum).store(to) };
        }
    }
}

/// `c += a * b`: `n_rows` rows of `k` floats times `k` rows of `n` floats, a multiple of [`LANES`]. `R` rows are in registers
/// together, and fewer of those that are left. `b` should be in the cache.
///
/// # Safety
/// The matrices have these sizes; the CPU has what `V` needs.
#[inline(always)]
pub(crate) unsafe fn add_product<V: F32x16, const R: usize>(
    a: At<*const f32>,
    b: At<*const f32>,
    c: At<*mut f32>,
    [n_rows, k, n]: [usize; 3],
) {
    // Sums fill the registers: of one group where a group takes several.
    let wide = if V::N_REGISTERS == 1 { 2 } else { 1 };
    let mut first = 0;
    while first < n {
        let groups = wide.min((n - first) / LANES);
        let mut row = 0;
        while row < n_rows {
            let a = At { data: a.data.wrapping_add(row * a.stride), ..a };
            let b = At { data: b.data.wrapping_add(first), ..b };
            let c = At { data: c.data.wrapping_add(row * c.stride + first), ..c };
            let left = n_rows - row;
            let rows = [R, 4, 2, 1].into_iter().find(|&rows| rows <= left).unwrap_or(1);
            // SAFETY: rows and groups within the matrices.
            unsafe {
                match (groups, rows) {
                    (2, _) if rows == R => block::<V, R, 2>(a, b, c, k),
                    (2, 4) => block::<V, 4, 2>(a, b, c, k),
                    (2, 2) => block::<V, 2, 2>(a, b, c, k),
                    (2, _) => block::<V, 1, 2>(a, b, c, k),
                    _ if rows == R => block::<V, R, 1>(a, b, c, k),
                    (_, 4) => block::<V, 4, 1>(a, b, c, k),
                    (_, 2) => block::<V, 2, 1>(a, b, c, k),
                    _ => block::<V, 1, 1>(a, b, c, k),
                }
            }
            row += rows;
        }
        first += groups * LANES;
    }
}
