//! Q4_K and Q5_K: a block is eight times 32 values.
//!
//! Nibbles (with their fifth bits) times bytes are added in pairs of 16 bits as long as they fit, which for nibbles is all 32
//! values; times the scale of the 32 they go into 32 bits. Minima are the sums of the column's quants times the minima of the
//! 32, two at a time.

use std::arch::x86_64::*;

use super::both::for_both;
use super::rows::{
    blocks, by_column, everywhere, halves, sixteen_bytes, sum_unsigned, thirty_two_bytes, words as of_all,
};
use crate::activations::{ColumnTile, record};
use crate::prefetch::prefetch_far;
use crate::tile::{Dots, RowGroup, WIDE};
use crate::weight_type::{WeightType, q4k_q5k};

for_both!(kernel, FIVE: bool);

/// Scales, then minima, of every row: bytes of 0 to 3 and of 4 to 7.
///
/// # Safety
/// Blocks begin at `blocks`; the CPU has AVX2.
#[inline(always)]
unsafe fn scales_and_mins<const JOINED: bool>(blocks: &[*const u8; WIDE]) -> [__m256i; 4] {
    // SAFETY: a block begins with 16 bytes: two halves, then the packed scales (the caller).
    unsafe {
        let [_, a, b, c] = match JOINED {
            true => [
                _mm256_setzero_si256(),
                of_all::<true>(blocks, 4),
                of_all::<true>(blocks, 8),
                of_all::<true>(blocks, 12),
            ],
            false => sixteen_bytes::<false>(blocks, 0),
        };
        let six = _mm256_set1_epi8(0x3f);
        let (four, two) = (_mm256_set1_epi8(0x0f), _mm256_set1_epi8(0x30));
        let high = |x: __m256i| _mm256_and_si256(_mm256_srli_epi32::<2>(x), two);
        [
            _mm256_and_si256(a, six),
            _mm256_or_si256(_mm256_and_si256(c, four), high(a)),
            _mm256_and_si256(b, six),
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32::<4>(c), four), high(b)),
        ]
    }
}

/// Byte `a` of every lane as its low 16 bits, byte `b` as its high ones.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn words(x: __m256i, a: usize, b: usize) -> __m256i {
    let pattern = |lane: usize| 0x8000_8000u32 as i32 | ((4 * lane + b) << 16 | (4 * lane + a)) as i32;
    let [p, q, r, s] = [pattern(0), pattern(1), pattern(2), pattern(3)];
    // SAFETY: the caller's.
    unsafe { _mm256_shuffle_epi8(x, _mm256_setr_epi32(p, q, r, s, p, q, r, s)) }
}

/// # Safety
/// The tile contract; `N` is `y.n`; the CPU has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn kernel<const N: usize, const FIVE: bool, const VNNI: bool, const JOINED: bool>(
    group: &RowGroup<WIDE>,
    y: &ColumnTile,
) -> Dots<WIDE> {
    let bytes = const { if FIVE { WeightType::Q5K.block_bytes() } else { WeightType::Q4K.block_bytes() } };
    // SAFETY: the CPU has the features; `l` is below the number of blocks and of records.
    unsafe {
        let zero = _mm256_setzero_si256();
        let (nibble, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
        let mut sums = [_mm256_setzero_ps(); N];
        let mut mins = [_mm256_setzero_ps(); N];
        for l in 0..y.n_blocks {
            let ahead = group.ahead.wrapping_add(l * WIDE * bytes);
            let blocks = blocks::<JOINED>(&group.rows, l, bytes);
            let packed = scales_and_mins::<JOINED>(&blocks);
            let high = if FIVE { thirty_two_bytes::<JOINED>(&blocks, q4k_q5k::HIGH) } else { [zero; 8] };
            let mut whole = [zero; N];
            for pair in 0..4 {
                let both = thirty_two_bytes::<JOINED>(&blocks, bytes - 128 + 32 * pair);
                for s in [2 * pair, 2 * pair + 1] {
                    prefetch_far(ahead.wrapping_add(s * bytes), bytes);
                    let mut w = both;
                    for (w, high) in w.iter_mut().zip(high) {
                        let low = if s % 2 == 1 { _mm256_srli_epi16::<4>(*w) } else { *w };
                        *w = _mm256_and_si256(low, nibble);
                        if FIVE {
                            let up = _mm256_sll_epi16(high, _mm_cvtsi32_si128(4 - s.min(4) as i32));
                            let bit = _mm256_srl_epi16(up, _mm_cvtsi32_si128(s.max(4) as i32 - 4));
                            *w = _mm256_or_si256(*w, _mm256_and_si256(bit, fifth));
                        }
                    }
                    let scale = words(packed[s / 4], s % 4, s % 4);
                    for (whole, column) in whole.iter_mut().zip(y.columns) {
                        let q = column.add(l * record::BYTES + 32 * s);
                        let products = match N {
                            1 => thirty_two::<true, FIVE, VNNI>(&w, q, scale),
                            _ => thirty_two::<false, FIVE, VNNI>(&w, q, scale),
                        };
                        *whole = _mm256_add_epi32(*whole, products);
                    }
                }
            }
            let (d, dmin) = (halves::<JOINED>(&blocks, q4k_q5k::SCALE), halves::<JOINED>(&blocks, q4k_q5k::SCALE + 2));
            let mut both = [zero; 4];
            for (i, both) in both.iter_mut().enumerate() {
                *both = words(packed[2 + i / 2], i % 2 * 2, i % 2 * 2 + 1);
            }
            for j in 0..N {
                let record = y.columns[j].add(l * record::BYTES);
                let mut part = zero;
                for (i, &min) in both.iter().enumerate() {
                    let q = everywhere(record.add(record::SUMS_32 + 4 * i));
                    part = _mm256_add_epi32(part, _mm256_madd_epi16(min, q));
                }
                let dy = _mm256_set1_ps(record.add(record::SCALE).cast::<f32>().read());
                sums[j] = _mm256_fmadd_ps(_mm256_mul_ps(dy, d), _mm256_cvtepi32_ps(whole[j]), sums[j]);
                mins[j] = _mm256_fnmadd_ps(_mm256_mul_ps(dy, dmin), _mm256_cvtepi32_ps(part), mins[j]);
            }
        }
        for j in 0..N {
            sums[j] = _mm256_add_ps(sums[j], mins[j]);
        }
        by_column(&sums)
    }
}

/// 32 weights of every row times those of a column at `q`, times the rows' scales, which are words. `ALONE`: of no other column.
///
/// # Safety
/// 32 bytes can be read; the CPU has AVX2, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn thirty_two<const ALONE: bool, const FIVE: bool, const VNNI: bool>(
    w: &[__m256i; 8],
    q: *const u8,
    scale: __m256i,
) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        // Two sums, since each waits for the product before it.
        let [a, b] = match (VNNI, ALONE) {
            (false, false) => sum_unsigned(w, q),
            _ => {
                let mut sums = [_mm256_setzero_si256(); 2];
                for (i, &w) in w.iter().enumerate() {
                    let (q, sum) = (everywhere(q.add(4 * i)), &mut sums[i / 4]);
                    *sum = match VNNI {
                        true => _mm256_dpbusd_avx_epi32(*sum, w, q),
                        false => _mm256_add_epi16(*sum, _mm256_maddubs_epi16(w, q)),
                    };
                }
                sums
            }
        };
        match (VNNI, FIVE) {
            (true, _) => _mm256_mullo_epi32(_mm256_add_epi32(a, b), _mm256_srli_epi32::<16>(scale)),
            // In words at most 8 * 31 * 127 in each, or 16 * 15 * 127 in both together.
            (false, true) => _mm256_add_epi32(_mm256_madd_epi16(scale, a), _mm256_madd_epi16(scale, b)),
            (false, false) => _mm256_madd_epi16(scale, _mm256_add_epi16(a, b)),
        }
    }
}
