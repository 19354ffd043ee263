//! Q6_K: a block is sixteen times 16 values.
//!
//! Unsigned weights times bytes are added in pairs of 16 bits, two products at a time; times the scale of the 16 they go into
//! 32 bits. The offset of 32 comes off in the end: the sums of the column's quants times the scales, two at a time.

use std::arch::x86_64::*;

use super::both::for_both;
use super::rows::{blocks, by_column, everywhere, halves, sixteen_bytes, sum_scaled, thirty_two_bytes};
use crate::activations::{ColumnTile, record};
use crate::prefetch::prefetch_far;
use crate::tile::{Dots, RowGroup, WIDE};
use crate::weight_type::q6k;

const BYTES: usize = 210;

for_both!(kernel);

/// Byte `a` of every lane as its low 16 bits, byte `b` as its high ones, with their signs.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn words(x: __m256i, a: usize, b: usize) -> __m256i {
    let pattern = |lane: usize| 0x0080_0080 | ((4 * lane + b) << 24 | (4 * lane + a) << 8) as i32;
    let [p, q, r, s] = [pattern(0), pattern(1), pattern(2), pattern(3)];
    // SAFETY: the caller's.
    unsafe { _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(x, _mm256_setr_epi32(p, q, r, s, p, q, r, s))) }
}

/// The scales of either 16 of the 32 values number `s`, as words of every row; `scales` has those of four times 16 in a register.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn scales_of_32(scales: &[__m256i; 4], s: usize) -> [__m256i; 2] {
    // SAFETY: the caller's.
    unsafe {
        let two = _mm256_srl_epi32(scales[s / 2], _mm_cvtsi32_si128(s as i32 % 2 * 16));
        [words(two, 0, 0), words(two, 1, 1)]
    }
}

/// The scales of 16 values each, two in the words of a lane.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn pairs_of_scales(scales: &[__m256i; 4]) -> [__m256i; 8] {
    let mut pairs = [scales[0]; 8];
    for (i, pair) in pairs.iter_mut().enumerate() {
        // SAFETY: the caller's.
        *pair = unsafe { words(scales[i / 2], i % 2 * 2, i % 2 * 2 + 1) };
    }
    pairs
}

/// The sums of 16 quants of a column's record times what stands beside them in `scales`, two at a time.
///
/// # Safety
/// The record can be read; the CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn sum_of_16s(scales: &[__m256i; 8], record: *const u8) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = _mm256_setzero_si256();
        for (i, &scale) in scales.iter().enumerate() {
            let q = everywhere(record.add(record::SUMS_16 + 4 * i));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(scale, q));
        }
        sum
    }
}

/// # Safety
/// The tile contract; `N` is `y.n`; the CPU has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn kernel<const N: usize, const VNNI: bool, const JOINED: bool>(
    group: &RowGroup<WIDE>,
    y: &ColumnTile,
) -> Dots<WIDE> {
    // SAFETY: the CPU has the features; `l` is below the number of blocks and of records.
    unsafe {
        let zero = _mm256_setzero_si256();
        let (nibble, pair) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
        let mut sums = [_mm256_setzero_ps(); N];
        for l in 0..y.n_blocks {
            let ahead = group.ahead.wrapping_add(l * WIDE * BYTES);
            let blocks = blocks::<JOINED>(&group.rows, l, BYTES);
            let scales = sixteen_bytes::<JOINED>(&blocks, q6k::SCALES);
            let mut whole = [zero; N];
            for h in 0..2 {
                let high = thirty_two_bytes::<JOINED>(&blocks, q6k::HIGH + 32 * h);
                for odd in 0..2 {
                    let low = thirty_two_bytes::<JOINED>(&blocks, 64 * h + 32 * odd);
                    for quarter in [odd, odd + 2] {
                        prefetch_far(ahead.wrapping_add((4 * h + 2 * odd + quarter / 2) * BYTES), BYTES);
                        let mut w = low;
                        for (w, high) in w.iter_mut().zip(high) {
                            let low = if quarter < 2 { *w } else { _mm256_srli_epi16::<4>(*w) };
                            let high = match quarter {
                                0 => _mm256_slli_epi16::<4>(high),
                                1 => _mm256_slli_epi16::<2>(high),
                                2 => high,
                                _ => _mm256_srli_epi16::<2>(high),
                            };
                            *w = _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_and_si256(high, pair));
                        }
                        let s = 4 * h + quarter;
                        let at = s % 2 * 2;
                        let scale = [words(scales[s / 2], at, at), words(scales[s / 2], at + 1, at + 1)];
                        for (whole, column) in whole.iter_mut().zip(y.columns) {
                            let q = column.add(l * record::BYTES + 32 * s);
                            let products = match N {
                                2..=4 => thirty_two::<true, VNNI>(&w, q, scale),
                                _ => thirty_two::<false, VNNI>(&w, q, scale),
                            };
                            *whole = _mm256_add_epi32(*whole, products);
                        }
                    }
                }
            }
            let d = halves::<JOINED>(&blocks, q6k::SCALE);
            let pairs = pairs_of_scales(&scales);
            for j in 0..N {
                let record = y.columns[j].add(l * record::BYTES);
                let offset = sum_of_16s(&pairs, record);
                let whole = _mm256_sub_epi32(whole[j], _mm256_slli_epi32::<5>(offset));
                let dy = _mm256_set1_ps(record.add(record::SCALE).cast::<f32>().read());
                sums[j] = _mm256_fmadd_ps(_mm256_mul_ps(dy, d), _mm256_cvtepi32_ps(whole), sums[j]);
            }
        }
        by_column(&sums)
    }
}

/// 32 weights of every row times those of a column at `q`, times the rows' scales of either 16, which are words. `TOGETHER`: its
/// instructions stay together, which is faster where sums of all columns have registers, and where there is something to reuse.
///
/// # Safety
/// 32 bytes can be read; the CPU has AVX2, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn thirty_two<const TOGETHER: bool, const VNNI: bool>(
    w: &[__m256i; 8],
    q: *const u8,
    scale: [__m256i; 2],
) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        if !VNNI && TOGETHER {
            return sum_scaled(w, q, scale);
        }
        let mut sum = _mm256_setzero_si256();
        for (half, &scale) in scale.iter().enumerate() {
            let (w, q) = (&w[4 * half..4 * half + 4], q.add(16 * half));
            if VNNI {
                let mut part = _mm256_setzero_si256();
                for (i, &w) in w.iter().enumerate() {
                    part = _mm256_dpbusd_avx_epi32(part, w, everywhere(q.add(4 * i)));
                }
                sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(part, _mm256_srai_epi32::<16>(scale)));
                continue;
            }
            for i in [0, 2] {
                // At most 4 * 63 * 127 in a lane.
                let part = _mm256_add_epi16(
                    _mm256_maddubs_epi16(w[i], everywhere(q.add(4 * i))),
                    _mm256_maddubs_epi16(w[i + 1], everywhere(q.add(4 * i + 4))),
                );
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(scale, part));
            }
        }
        sum
    }
}
