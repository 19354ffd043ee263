//! Q8_0, Q4_0 and IQ4_NL: two weight rows times up to four columns at a time; further columns find the weights in the cache.
//!
//! The same operations as ggml's `vec_dot` of Q8_0 and Q4_0: |x| times y with the sign of x, as the instruction wants one side unsigned.

use std::arch::x86_64::*;

use super::registers::{half, load};
use crate::activations::{BIAS, ColumnTile, float};
use crate::dispatch::by_four_columns;
use crate::lanes::sum_lanes;
use crate::prefetch::prefetch;
use crate::tile::{Dots, RowGroup};
use crate::weight_type::{iq4nl, quants};

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots<const QUANTS: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `j + N` is at most `y.n`, and `r` below `GROUP`.
    unsafe { by_four_columns!(2, kernel, group, y, QUANTS) }
}

/// 16 bytes of nibbles as 32 bytes: less 8, or what they choose.
///
/// # Safety
/// 16 bytes can be read at `p`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn spread<const QUANTS: usize>(p: *const u8) -> __m256i {
    // SAFETY: 16 bytes can be read at `p` (the caller).
    let packed = unsafe { _mm_loadu_si128(p.cast()) };
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(packed), _mm_srli_epi16::<4>(packed));
    let nibbles = _mm256_and_si256(both, _mm256_set1_epi8(15));
    if QUANTS == quants::CHOICES {
        // SAFETY: an array of 16 bytes.
        let values = unsafe { _mm_loadu_si128(iq4nl::VALUES.as_ptr().cast()) };
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), nibbles)
    } else {
        _mm256_sub_epi8(nibbles, _mm256_set1_epi8(8))
    }
}

/// Weight rows `r` and `r + 1` times columns `j` to `j + N`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn kernel<const N: usize, const QUANTS: usize>(
    group: &RowGroup,
    y: &ColumnTile,
    r: usize,
    j: usize,
    dots: &mut Dots,
) {
    let bytes = const { quants::block_bytes(QUANTS) };
    let ones = _mm256_set1_epi16(1);
    let bias = _mm256_set1_epi8(BIAS as i8);
    let mut sums = [[_mm256_setzero_ps(); 2]; N];
    let weights = [group.rows[r], group.rows[r + 1]];
    let columns: [*const u8; N] = std::array::from_fn(|i| y.columns[j + i]);
    let ahead = group.ahead.wrapping_add(r * y.n_blocks * bytes);
    for l in 0..y.n_blocks {
        if j == 0 {
            prefetch(ahead.wrapping_add(l * 2 * bytes), 64);
        }
        // SAFETY: `l` is below the number of blocks of both rows; 32 quants each.
        let (dx, w) = unsafe {
            let blocks = weights.map(|row| row.add(l * bytes));
            (
                blocks.map(|block| half(block)),
                blocks.map(
                    |block| if QUANTS == quants::BYTES { load(block.add(2)) } else { spread::<QUANTS>(block.add(2)) },
                ),
            )
        };
        let size = w.map(|w| _mm256_sign_epi8(w, w));
        for (sum, &column) in sums.iter_mut().zip(&columns) {
            // SAFETY: block `l` has 32 quants and a scale.
            let (q, dy) = unsafe { (load(column.add(l * 32)), float(column.add(y.scales + l * 4))) };
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
            dots[r + h][j + i] = sum_lanes(sum[h]);
        }
    }
}
