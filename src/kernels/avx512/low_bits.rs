//! Types of few bits ([`crate::low_bits`]): sixteen rows times up to eight columns, 32 values after the other.
//!
//! Values times bytes are added in 32 bits and multiplied with the scale of the 16. What the bias of values adds comes off in the end:
//! the sums of the column's quants times the scales, as do minima.

use std::arch::x86_64::*;

use super::q6k::{pairs_of_scales, sum_of_16s};
use super::rows::{add_products, blocks, by_column, by_lane, float, halves, signed_byte_of_lane, sixteen_bytes, words};
use crate::activations::{ColumnTile, MAX_COLUMNS, record};
use crate::low_bits::{Layout, Register, by_layout};
use crate::prefetch::prefetch_far;
use crate::tile::{Dots, RowGroup, WIDEST};
use crate::weight_type::WeightType;

/// Of a type of few bits.
///
/// # Safety
/// The tile contract, for this instruction set; rows are not joined.
pub(super) unsafe fn by_type(ty: WeightType, group: &RowGroup<WIDEST>, y: &ColumnTile) -> Dots<WIDEST> {
    // SAFETY: the contract of this function.
    unsafe { by_layout!(ty, kernel, group, y) }
}

/// # Safety
/// That of [`by_type`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn kernel<L: Layout<__m512i>>(group: &RowGroup<WIDEST>, y: &ColumnTile) -> Dots<WIDEST> {
    let bytes = const { L::TYPE.block_bytes() };
    let columns = &y.columns[..y.n];
    // SAFETY: `l` is below the number of blocks and of records.
    unsafe {
        let zero = _mm512_setzero_si512();
        let mut sums = [_mm512_setzero_ps(); MAX_COLUMNS];
        let mut minima = sums;
        for l in 0..y.n_blocks {
            let ahead = group.ahead.wrapping_add(l * WIDEST * bytes);
            let blocks = blocks::<false>(&group.rows, l, bytes);
            let head = L::head(&blocks);
            let mut whole = [zero; MAX_COLUMNS];
            for pass in 0..L::PASSES {
                let packed = L::packed(&blocks, pass);
                for part in 0..8 / L::PASSES {
                    let s = pass * (8 / L::PASSES) + part;
                    prefetch_far(ahead.wrapping_add(s * WIDEST * bytes / 8), WIDEST * bytes / 8);
                    let w = L::weights(&head.more, &packed, s);
                    let two = head.scales[s / 2].right(s % 2 * 16);
                    let scale = [signed_byte_of_lane(two, 0), signed_byte_of_lane(two, 1)];
                    for (whole, column) in whole.iter_mut().zip(columns) {
                        let q = column.add(l * record::BYTES + 32 * s);
                        for (half, &scale) in scale.iter().enumerate() {
                            let part = add_products(zero, &w[4 * half..4 * half + 4], q.add(16 * half));
                            *whole = _mm512_add_epi32(*whole, _mm512_mullo_epi32(part, scale));
                        }
                    }
                }
            }
            let scales = pairs_of_scales(&head.scales);
            for (j, column) in columns.iter().enumerate() {
                let record = column.add(l * record::BYTES);
                let mut whole = whole[j];
                if L::BIAS > 0 {
                    let more = sum_of_16s(&scales, record).left(L::BIAS.trailing_zeros() as usize);
                    whole = _mm512_sub_epi32(whole, more);
                }
                let d = _mm512_mul_ps(float(record.add(record::SCALE)), head.d);
                sums[j] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(whole), sums[j]);
            }
            if let Some((dmin, mins)) = &head.mins {
                let mins = pairs_of_scales(mins);
                for (minima, column) in minima.iter_mut().zip(columns) {
                    let record = column.add(l * record::BYTES);
                    let d = _mm512_mul_ps(float(record.add(record::SCALE)), *dmin);
                    *minima = _mm512_fnmadd_ps(d, _mm512_cvtepi32_ps(sum_of_16s(&mins, record)), *minima);
                }
            }
        }
        if L::MINS {
            for (sum, minima) in sums.iter_mut().zip(minima) {
                *sum = _mm512_add_ps(*sum, minima);
            }
        }
        by_column(&sums)
    }
}

impl Register for __m512i {
    type Blocks = [*const u8; WIDEST];
    type Floats = __m512;

    #[inline(always)]
    unsafe fn sixteen_bytes(blocks: &Self::Blocks, at: usize) -> [Self; 4] {
        // SAFETY: the caller's.
        unsafe { sixteen_bytes::<false>(blocks, at) }
    }

    #[inline(always)]
    unsafe fn word(blocks: &Self::Blocks, at: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { words::<false>(blocks, at) }
    }

    #[inline(always)]
    unsafe fn half(blocks: &Self::Blocks, at: usize) -> __m512 {
        // SAFETY: the caller's.
        unsafe { halves::<false>(blocks, at) }
    }

    #[inline(always)]
    unsafe fn low_half(self) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(self)) }
    }

    #[inline(always)]
    unsafe fn times(x: __m512, factor: f32) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_mul_ps(x, _mm512_set1_ps(factor)) }
    }

    #[inline(always)]
    unsafe fn every(word: u32) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_set1_epi32(word as i32) }
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_and_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_or_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_xor_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn add_bytes(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_add_epi8(self, other) }
    }

    #[inline(always)]
    unsafe fn sub_bytes(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_sub_epi8(self, other) }
    }

    #[inline(always)]
    unsafe fn left(self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_sll_epi32(self, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    unsafe fn right(self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_srl_epi32(self, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    unsafe fn look_up(self, table: &[u8; 16]) -> Self {
        // SAFETY: 16 bytes; the rest is the caller's.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), self) }
    }

    #[inline(always)]
    unsafe fn byte(self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_shuffle_epi8(self, by_lane(0x0101_0101 * n as i32, 0x0404_0404)) }
    }

    #[inline(always)]
    unsafe fn negated(self, signs: Self, bit: Self) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let minus = _mm512_test_epi8_mask(signs, bit);
            _mm512_mask_sub_epi8(self, minus, _mm512_setzero_si512(), self)
        }
    }

    #[inline(always)]
    unsafe fn spread(self, high: bool) -> Self {
        let first = if high { 2 } else { 0 };
        let two = 0x8000_8000u32 as i32 | (first + 1) << 16 | first;
        // SAFETY: the caller's.
        unsafe { _mm512_shuffle_epi8(self, by_lane(two, 0x0004_0004)) }
    }

    #[inline(always)]
    unsafe fn four_by_byte(grid: &[u32], choices: &Self, n: usize) -> Self {
        let [low, high] = halves_of(choices);
        // SAFETY: the caller's.
        unsafe { joined(__m256i::four_by_byte(grid, low, n), __m256i::four_by_byte(grid, high, n)) }
    }

    #[inline(always)]
    unsafe fn four_by_half(grid: &[u32], choices: &Self, n: usize) -> Self {
        let [low, high] = halves_of(choices);
        // SAFETY: the caller's.
        unsafe { joined(__m256i::four_by_half(grid, low, n), __m256i::four_by_half(grid, high, n)) }
    }

    #[inline(always)]
    unsafe fn eight_by_byte(grid: &[u64], choices: &Self, n: usize) -> [Self; 2] {
        let [low, high] = halves_of(choices);
        // SAFETY: the caller's.
        unsafe {
            let ([a, b], [c, d]) = (__m256i::eight_by_byte(grid, low, n), __m256i::eight_by_byte(grid, high, n));
            [joined(a, c), joined(b, d)]
        }
    }

    #[inline(always)]
    unsafe fn eight_by_half(grid: &[u64], choices: &Self, n: usize) -> [Self; 2] {
        let [low, high] = halves_of(choices);
        // SAFETY: the caller's.
        unsafe {
            let ([a, b], [c, d]) = (__m256i::eight_by_half(grid, low, n), __m256i::eight_by_half(grid, high, n));
            [joined(a, c), joined(b, d)]
        }
    }
}

/// A register of two halves.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
unsafe fn joined(low: __m256i, high: __m256i) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high) }
}

/// Either half of a register in memory.
#[inline(always)]
fn halves_of(x: &__m512i) -> [&__m256i; 2] {
    let low = std::ptr::from_ref(x).cast::<__m256i>();
    // SAFETY: a register is two halves, one behind the other, as aligned.
    unsafe { [&*low, &*low.add(1)] }
}
