//! Q8_0.
//!
//! With y = u - 128 (u unsigned, as VNNI wants it) x * y is x * u - 128 * x. The second term is the same for all rows: it
//! starts every sum. Floats go through the same operations as in ggml's `vec_dot`: product of the scales, one fused
//! multiply-add for each block into eight lanes, then the same tree.

use std::arch::x86_64::*;

use super::super::rows::{BIAS, Columns};
use super::super::x86::{by_rows, prefetch};
use super::super::{Dots, GROUP, Group};
use super::{float, half, pair, scales, trees, twice};

const BYTES: usize = 34;

/// # Safety
/// As `Path::dots`; the CPU has the features below.
pub(super) unsafe fn dots(group: &Group, y: &Columns) -> Dots {
    // SAFETY: the caller's promise.
    unsafe { by_rows!(rows, group, y) }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn rows<const N: usize>(group: &Group, y: &Columns) -> Dots {
    let zero = _mm512_setzero_si512();
    let bias = _mm512_set1_epi8(BIAS as i8);
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    let [a, b, c, d] = group.rows;
    let columns: [*const u8; N] = std::array::from_fn(|j| y.rows[j]);
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * BYTES), GROUP * BYTES - 8);
        // SAFETY: `l` is below the number of blocks of all four rows.
        let ([a, b, c, d], halves) = unsafe {
            let blocks = [a, b, c, d].map(|row| row.add(l * BYTES));
            (blocks.map(|block| block.add(2)), blocks.map(|block| half(block)))
        };
        // SAFETY: 32 quants each.
        let w = unsafe { [pair(a, b), pair(c, d)] };
        let start = w.map(|w| _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, bias, w)));
        let dx = scales(halves);
        for (sum, &column) in sums.iter_mut().zip(&columns) {
            // SAFETY: block `l` has 32 quants and a scale.
            let (u, dy) = unsafe { (twice(column.add(l * 32)), float(column.add(y.scales + l * 4))) };
            for h in 0..2 {
                let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start[h], u, w[h]));
                sum[h] = _mm512_fmadd_ps(_mm512_mul_ps(dx[h], dy), dot, sum[h]);
            }
        }
    }
    let mut dots = Dots::default();
    for (j, sum) in sums.iter().enumerate() {
        for (r, dot) in trees(sum).into_iter().enumerate() {
            dots[r][j] = dot;
        }
    }
    dots
}
