//! Q8_0 with AVX-512 VNNI: four weight rows in two registers, loaded once for all rows.
//!
//! With y = u - 128 (u unsigned, as VNNI wants it) x * y is x * u - 128 * x. The second term is the same for all rows: it
//! starts every sum. Floats go through the same operations as in ggml's `vec_dot`: product of the scales, one fused
//! multiply-add for each block into eight lanes, then the same tree.

// Loads and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::arch::x86_64::*;

use super::rows::{BIAS, BLOCK, Columns, WeightBlock};
use super::{Dots, GROUP, Group};

/// # Safety
/// As `Path::dots`; the CPU has the features below.
pub(super) unsafe fn dots(group: &Group, y: &Columns) -> Dots {
    // SAFETY: the caller's promise; `N` is `y.n`.
    unsafe {
        match y.n {
            1 => rows::<1>(group, y),
            2 => rows::<2>(group, y),
            3 => rows::<3>(group, y),
            4 => rows::<4>(group, y),
            5 => rows::<5>(group, y),
            6 => rows::<6>(group, y),
            7 => rows::<7>(group, y),
            _ => rows::<8>(group, y),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn rows<const N: usize>(group: &Group, y: &Columns) -> Dots {
    let zero = _mm512_setzero_si512();
    let bias = _mm512_set1_epi8(BIAS as i8);
    let first = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    let second = _mm512_set_epi32(3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2);
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    let [a, b, c, d] = group.rows;
    let (mut ahead, mut quants, mut scales) = (group.ahead, y.quants, y.scales);
    for l in 0..y.n_blocks {
        // Addresses past the weight are harmless: a prefetch never faults.
        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64).cast());
        ahead = ahead.wrapping_add(GROUP * size_of::<WeightBlock>());
        // SAFETY: `l` is below the number of blocks of all four rows.
        let (a, b, c, d) = unsafe { (&*a.add(l), &*b.add(l), &*c.add(l), &*d.add(l)) };
        // SAFETY: 32 quants each.
        let w = unsafe { [pair(&a.quants, &b.quants), pair(&c.quants, &d.quants)] };
        let start = w.map(|w| _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, bias, w)));
        let halves =
            u64::from(a.scale) | u64::from(b.scale) << 16 | u64::from(c.scale) << 32 | u64::from(d.scale) << 48;
        let floats = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi64_si128(halves as i64)));
        let dx = [_mm512_permutexvar_ps(first, floats), _mm512_permutexvar_ps(second, floats)];
        for (j, sum) in sums.iter_mut().enumerate() {
            // SAFETY: block `l` has 32 quants and a scale for each of `N` rows.
            let (u, dy) = unsafe { (_mm256_loadu_si256(quants.add(j * BLOCK).cast()), *scales.add(j)) };
            let (u, dy) = (_mm512_broadcast_i64x4(u), _mm512_set1_ps(dy));
            for h in 0..2 {
                let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start[h], u, w[h]));
                sum[h] = _mm512_fmadd_ps(_mm512_mul_ps(dx[h], dy), dot, sum[h]);
            }
        }
        quants = quants.wrapping_add(N * BLOCK);
        scales = scales.wrapping_add(N);
    }
    let mut dots = Dots::default();
    for (j, sum) in sums.iter().enumerate() {
        for h in 0..2 {
            dots[2 * h][j] = tree(_mm512_castps512_ps256(sum[h]));
            dots[2 * h + 1][j] = tree(_mm512_extractf32x8_ps::<1>(sum[h]));
        }
    }
    dots
}

/// Two blocks in one register.
#[target_feature(enable = "avx512f")]
unsafe fn pair(low: &[i8; BLOCK], high: &[i8; BLOCK]) -> __m512i {
    // SAFETY: both have 32 bytes.
    let (low, high) = unsafe { (_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast())) };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Sums eight lanes in ggml's order.
#[target_feature(enable = "avx2")]
pub(super) fn tree(x: __m256) -> f32 {
    let sum = _mm_add_ps(_mm256_extractf128_ps::<1>(x), _mm256_castps256_ps128(x));
    let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
}
