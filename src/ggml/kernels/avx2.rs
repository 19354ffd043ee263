//! Q8_0 with AVX2: two weight rows times up to four rows at a time; further rows find the weights in the cache.
//!
//! The same operations as ggml's `vec_dot`: |x| times y with the sign of x, as the instruction wants one side unsigned.

// Loads and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::arch::x86_64::*;

use super::avx512::tree;
use super::rows::{BIAS, BLOCK, Columns, WeightBlock};
use super::{Dots, GROUP, Group};

/// # Safety
/// As `Path::dots`; the CPU has the features below.
pub(super) unsafe fn dots(group: &Group, y: &Columns) -> Dots {
    let mut dots = Dots::default();
    for r in (0..GROUP).step_by(2) {
        for j in (0..y.n).step_by(4) {
            // SAFETY: the caller's promise; `j + N` is at most `y.n`.
            unsafe {
                match y.n - j {
                    1 => rows::<1>(group, y, r, j, &mut dots),
                    2 => rows::<2>(group, y, r, j, &mut dots),
                    3 => rows::<3>(group, y, r, j, &mut dots),
                    _ => rows::<4>(group, y, r, j, &mut dots),
                }
            }
        }
    }
    dots
}

/// Weight rows `r` and `r + 1` times rows `j` to `j + N`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<const N: usize>(group: &Group, y: &Columns, r: usize, j: usize, dots: &mut Dots) {
    let ones = _mm256_set1_epi16(1);
    let bias = _mm256_set1_epi8(BIAS as i8);
    let mut sums = [[_mm256_setzero_ps(); 2]; N];
    let [a, b] = [group.rows[r], group.rows[r + 1]];
    let mut ahead = group.ahead.wrapping_add(r * y.n_blocks * size_of::<WeightBlock>());
    for l in 0..y.n_blocks {
        if j == 0 {
            // Addresses past the weight are harmless: a prefetch never faults.
            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            ahead = ahead.wrapping_add(2 * size_of::<WeightBlock>());
        }
        // SAFETY: `l` is below the number of blocks of both rows.
        let blocks = unsafe { [&*a.add(l), &*b.add(l)] };
        // SAFETY: 32 quants each.
        let w = blocks.map(|block| unsafe { _mm256_loadu_si256(block.quants.as_ptr().cast()) });
        let size = w.map(|w| _mm256_sign_epi8(w, w));
        let dx = blocks.map(|block| _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(block.scale)))));
        for (i, sum) in sums.iter_mut().enumerate() {
            let at = l * y.n + j + i;
            // SAFETY: block `l` has 32 quants and a scale for each of `y.n` rows.
            let (q, dy) = unsafe { (_mm256_loadu_si256(y.quants.add(at * BLOCK).cast()), *y.scales.add(at)) };
            let q = _mm256_xor_si256(q, bias);
            for h in 0..2 {
                let pairs = _mm256_maddubs_epi16(size[h], _mm256_sign_epi8(q, w[h]));
                let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(ones, pairs));
                sum[h] = _mm256_fmadd_ps(_mm256_set1_ps(dx[h] * dy), dot, sum[h]);
            }
        }
    }
    for (i, sum) in sums.iter().enumerate() {
        for h in 0..2 {
            dots[r + h][j + i] = tree(sum[h]);
        }
    }
}
