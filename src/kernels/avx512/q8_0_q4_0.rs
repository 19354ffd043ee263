//! Q8_0, Q4_0, IQ4_NL, Q5_0, Q4_1, Q5_1 and MXFP4.
//!
//! Weights become unsigned by 8 or a multiple of it more. What that adds depends on the column alone, and the quantised column
//! has it ready for 8 ([`crate::activations::offset`]): every sum starts with what takes it off.

use std::arch::x86_64::*;

use super::rows::{
    add_products, blocks, by_column, by_lane, everywhere, float, halves, single_bytes, sixteen_bytes, thirty_two_bytes,
    words,
};
use crate::activations::ColumnTile;
use crate::dispatch::by_columns;
use crate::prefetch::prefetch_far;
use crate::tile::{Dots, RowGroup, WIDEST};
use crate::weight_type::quants;

/// # Safety
/// The tile contract, for this instruction set; if `JOINED`, for rows that `joined.rs` joined.
pub(super) unsafe fn dots<const QUANTS: usize, const JOINED: bool>(
    group: &RowGroup<WIDEST>,
    y: &ColumnTile,
) -> Dots<WIDEST> {
    // SAFETY: the tile contract, handed on; `N` is `y.n`.
    unsafe { by_columns!(kernel, (group, y), y, QUANTS, JOINED) }
}

/// How many times 8 weights have more than they stand for; a power of two.
pub(crate) const fn eights(quants: usize) -> usize {
    match quants {
        quants::NIBBLES | quants::NIBBLES_FROM => 1,
        quants::FIVES | quants::FIVES_FROM | quants::POWERS => 2,
        _ => 16,
    }
}

/// 32 weights of every row, four in each register, without signs ([`eights`]).
///
/// # Safety
/// The blocks can be read; the CPU has AVX-512 F and BW.
#[inline(always)]
pub(crate) unsafe fn weights<const QUANTS: usize, const JOINED: bool>(blocks: &[*const u8; WIDEST]) -> [__m512i; 8] {
    let start = const { quants::start(QUANTS) };
    // SAFETY: a block has 32 bytes there, or 16, and fifth bits are in four before them (the caller).
    unsafe {
        let more = _mm512_set1_epi8((8 * const { eights(QUANTS) }) as u8 as i8);
        if QUANTS == quants::BYTES {
            let mut w = thirty_two_bytes::<JOINED>(blocks, start);
            for w in &mut w {
                *w = _mm512_xor_si512(*w, more);
            }
            return w;
        }
        let nibble = _mm512_set1_epi8(15);
        let [a, b, c, d] = sixteen_bytes::<JOINED>(blocks, start);
        let mut w = [a, b, c, d, a, b, c, d];
        for (i, w) in w.iter_mut().enumerate() {
            *w = _mm512_and_si512(if i < 4 { *w } else { _mm512_srli_epi16::<4>(*w) }, nibble);
        }
        match QUANTS {
            quants::CHOICES | quants::POWERS => {
                let values = _mm_loadu_si128(quants::values(QUANTS).as_ptr().cast());
                let values = _mm512_add_epi8(_mm512_broadcast_i32x4(values), more);
                for w in &mut w {
                    *w = _mm512_shuffle_epi8(values, *w);
                }
            }
            quants::FIVES | quants::FIVES_FROM => {
                let fifth = words::<JOINED>(blocks, start - 4);
                for (i, w) in w.iter_mut().enumerate() {
                    // Byte `i / 2` of a row four times, of which each has a bit of its own.
                    let first = 0x0101_0101 * (i as i32 / 2);
                    let byte = _mm512_shuffle_epi8(fifth, by_lane(first, 0x0404_0404));
                    let bit = _mm512_set1_epi32(if i.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010u32 as i32 });
                    let set = _mm512_test_epi8_mask(byte, bit);
                    *w = _mm512_mask_add_epi8(*w, set, *w, _mm512_set1_epi8(16));
                }
            }
            _ => {}
        }
        w
    }
}

/// The scales of blocks of `MXFP4` ([`crate::weight_type::mxfp4::scale`]).
///
/// # Safety
/// The blocks can be read; the CPU has AVX-512 F and BW.
#[inline(always)]
pub(crate) unsafe fn powers<const JOINED: bool>(blocks: &[*const u8; WIDEST]) -> __m512 {
    // SAFETY: a block begins with its scale (the caller).
    unsafe {
        let exponents = single_bytes::<JOINED>(blocks, 0);
        let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
        let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
        let is_small = _mm512_cmplt_epu32_mask(exponents, _mm512_set1_epi32(2));
        _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small))
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn kernel<const N: usize, const QUANTS: usize, const JOINED: bool>(
    group: &RowGroup<WIDEST>,
    y: &ColumnTile,
) -> Dots<WIDEST> {
    let bytes = const { quants::block_bytes(QUANTS) };
    let doublings = const { eights(QUANTS).trailing_zeros() as i32 };
    // SAFETY: `l` is below the number of blocks, of which each has 32 quants, in a column too, and there an offset and a scale.
    unsafe {
        let columns: [*const u8; N] = std::array::from_fn(|j| y.columns[j]);
        let mut sums = [_mm512_setzero_ps(); N];
        for l in 0..y.n_blocks {
            prefetch_far(group.ahead.wrapping_add(l * WIDEST * bytes), WIDEST * bytes);
            let blocks = blocks::<JOINED>(&group.rows, l, bytes);
            let dx = if QUANTS == quants::POWERS { powers::<JOINED>(&blocks) } else { halves::<JOINED>(&blocks, 0) };
            let w = weights::<QUANTS, JOINED>(&blocks);
            for (sum, column) in sums.iter_mut().zip(&columns) {
                let offset = _mm512_madd_epi16(everywhere(column.add(y.offsets + 4 * l)), _mm512_set1_epi16(1));
                let start = _mm512_sll_epi32(offset, _mm_cvtsi32_si128(doublings));
                let whole = add_products(start, &w, column.add(32 * l));
                let dy = float(column.add(y.scales + 4 * l));
                *sum = _mm512_fmadd_ps(_mm512_mul_ps(dx, dy), _mm512_cvtepi32_ps(whole), *sum);
                if let Some(at) = const { quants::minimum(QUANTS) } {
                    let less = _mm512_set1_ps(const { quants::less(QUANTS) });
                    let min = _mm512_fmadd_ps(dx, less, halves::<JOINED>(&blocks, at));
                    let quants = _mm512_srai_epi32::<3>(_mm512_sub_epi32(_mm512_setzero_si512(), offset));
                    *sum = _mm512_fmadd_ps(_mm512_mul_ps(min, dy), _mm512_cvtepi32_ps(quants), *sum);
                }
            }
        }
        by_column(&sums)
    }
}
