//! Q8_0, Q4_0 and IQ4_NL.
//!
//! AVX2 multiplies unsigned with signed bytes: |x| times y with the sign of x. Pairs of products fit 16 bits; nibbles less 8
//! are so small that a whole block does. With VNNI y has a bias b that makes it unsigned: x * y is x * (y + b) - b * x, of
//! which the second term is the same for all columns and starts every sum.

use std::arch::x86_64::*;

use super::both::for_both;
use super::rows::{by_row, everywhere, halves, sixteen_bytes, thirty_two_bytes};
use crate::activations::ColumnTile;
use crate::isa::Isa;
use crate::prefetch::prefetch;
use crate::tile::{Dots, RowGroup, WIDE};
use crate::weight_type::{iq4nl, quants};

for_both!(kernel, QUANTS: usize);

/// Weights `4i` to `4i + 3` of every row in register `i`, as signed bytes, of the blocks that begin at `blocks`.
///
/// # Safety
/// The blocks can be read; the CPU has AVX2.
#[inline(always)]
unsafe fn weights<const QUANTS: usize>(blocks: &[*const u8; WIDE]) -> [__m256i; 8] {
    // SAFETY: a block has 32 bytes behind its scale, or 16 (the caller).
    unsafe {
        if QUANTS == quants::BYTES {
            return thirty_two_bytes(blocks, 2);
        }
        let nibble = _mm256_set1_epi8(15);
        let values = _mm256_broadcastsi128_si256(_mm_loadu_si128(iq4nl::VALUES.as_ptr().cast()));
        let packed = sixteen_bytes(blocks, 2);
        let mut w = [nibble; 8];
        for i in 0..8 {
            let nibbles = if i < 4 { packed[i] } else { _mm256_srli_epi16::<4>(packed[i - 4]) };
            let nibbles = _mm256_and_si256(nibbles, nibble);
            w[i] = match QUANTS {
                quants::CHOICES => _mm256_shuffle_epi8(values, nibbles),
                _ => _mm256_sub_epi8(nibbles, _mm256_set1_epi8(8)),
            };
        }
        w
    }
}

/// # Safety
/// The tile contract; `N` is `y.n`; the CPU has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn kernel<const N: usize, const QUANTS: usize, const VNNI: bool>(
    group: &RowGroup<WIDE>,
    y: &ColumnTile,
) -> Dots<WIDE> {
    let bytes = const { quants::block_bytes(QUANTS) };
    // SAFETY: the CPU has the features; `l` is below the number of blocks, of which each has 32 quants, in a column too, and
    // a scale.
    unsafe {
        let (zero, ones) = (_mm256_setzero_si256(), _mm256_set1_epi16(1));
        let bias = _mm256_set1_epi8(Isa::AvxVnni.bias() as i8);
        let mut sums = [_mm256_setzero_ps(); N];
        for l in 0..y.n_blocks {
            prefetch(group.ahead.wrapping_add(l * WIDE * bytes), WIDE * bytes);
            let mut blocks = group.rows;
            for block in &mut blocks {
                *block = block.add(l * bytes);
            }
            let w = weights::<QUANTS>(&blocks);
            let dx = halves(&blocks, 0);
            let mut whole = [zero; N];
            if VNNI {
                let mut start = zero;
                for w in w {
                    start = _mm256_dpbusd_avx_epi32(start, bias, w);
                }
                whole = [_mm256_sub_epi32(zero, start); N];
            }
            for (i, w) in w.into_iter().enumerate() {
                let size = _mm256_abs_epi8(w);
                for (whole, column) in whole.iter_mut().zip(y.columns) {
                    let q = everywhere(column.add(l * 32 + 4 * i));
                    if VNNI {
                        *whole = _mm256_dpbusd_avx_epi32(*whole, q, w);
                        continue;
                    }
                    let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(q, w));
                    *whole = match QUANTS {
                        // At most 16 * 8 * 127 in a lane.
                        quants::NIBBLES => _mm256_add_epi16(*whole, pairs),
                        _ => _mm256_add_epi32(*whole, _mm256_madd_epi16(ones, pairs)),
                    };
                }
            }
            for j in 0..N {
                let whole =
                    if QUANTS == quants::NIBBLES && !VNNI { _mm256_madd_epi16(ones, whole[j]) } else { whole[j] };
                let dy = _mm256_set1_ps(y.columns[j].add(y.scales + l * 4).cast::<f32>().read_unaligned());
                sums[j] = _mm256_fmadd_ps(_mm256_mul_ps(dx, dy), _mm256_cvtepi32_ps(whole), sums[j]);
            }
        }
        by_row(&sums)
    }
}
