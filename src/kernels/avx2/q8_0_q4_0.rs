//! Q8_0, Q4_0, IQ4_NL, Q5_0, Q4_1, Q5_1 and MXFP4.
//!
//! AVX2 multiplies unsigned with signed bytes and adds pairs of products in 16 bits.
//!
//! - Weights of few bits become unsigned by 8 or 16 more, and are so small that a whole block fits 16 bits. What the 8 or 16
//!   add depends on the column alone, and the quantised column has it ready ([`crate::activations::offset`]).
//! - Bytes go as |x| times y with the sign of x, and every pair is widened.
//!
//! With VNNI y has a bias b that makes it unsigned: x * y is x * (y + b) - b * x, of which the second term is the same for all
//! columns and starts every sum.

use std::arch::x86_64::*;

use super::both::for_both;
use super::rows::{
    add_signed, add_unsigned, blocks, by_column, everywhere, halves, sixteen_bytes, thirty_two_bytes, words,
};
use crate::activations::ColumnTile;
use crate::isa::Isa;
use crate::prefetch::prefetch;
use crate::tile::{Dots, RowGroup, WIDE};
use crate::weight_type::{mxfp4, quants};

for_both!(kernel, QUANTS: usize);

/// A block for each `i` of 0 to 7 (`I` in constants), one behind the other: where the compiler keeps a loop, registers become memory.
macro_rules! eight {
    ($i:ident, $body:block) => {
        eight!($i, $body, 0, 1, 2, 3, 4, 5, 6, 7)
    };
    ($i:ident, $body:block, $($number:literal),*) => {
        $({
            const I: usize = $number;
            let $i = I;
            $body
        })*
    };
}

/// How many times [`crate::activations::offset`], which is of 8, weights without a sign need; none have 0.
const fn offsets(quants: usize) -> usize {
    match quants {
        quants::NIBBLES | quants::NIBBLES_FROM => 1,
        quants::FIVES | quants::FIVES_FROM | quants::POWERS => 2,
        _ => 0,
    }
}

/// The quants of eight blocks, a block in each lane.
struct Packed {
    /// Four bytes of every block; types of few bits have four such.
    bytes: [__m256i; 8],
    /// The fifth bits (`FIVES`, `FIVES_FROM`).
    fifth: __m256i,
    /// What a nibble stands for (`CHOICES`, `POWERS`).
    values: __m256i,
}

impl Packed {
    /// # Safety
    /// The blocks can be read; the CPU has AVX2.
    #[inline(always)]
    unsafe fn read<const QUANTS: usize, const JOINED: bool>(blocks: &[*const u8; WIDE]) -> Self {
        let start = const { quants::start(QUANTS) };
        // SAFETY: a block has 32 bytes there, or 16, and fifth bits are in four before them (the caller).
        unsafe {
            let zero = _mm256_setzero_si256();
            if QUANTS == quants::BYTES {
                return Self { bytes: thirty_two_bytes::<JOINED>(blocks, start), fifth: zero, values: zero };
            }
            let [a, b, c, d] = sixteen_bytes::<JOINED>(blocks, start);
            let has_fifth = matches!(QUANTS, quants::FIVES | quants::FIVES_FROM);
            Self {
                bytes: [a, b, c, d, zero, zero, zero, zero],
                fifth: if has_fifth { words::<JOINED>(blocks, start - 4) } else { zero },
                values: _mm256_broadcastsi128_si256(_mm_loadu_si128(quants::values(QUANTS).as_ptr().cast())),
            }
        }
    }

    /// Weights `4i` to `4i + 3` of every block, with their signs or, if `MORE`, with 8 or 16 more ([`offsets`]).
    ///
    /// # Safety
    /// The CPU has AVX2.
    #[inline(always)]
    unsafe fn weights<const QUANTS: usize, const MORE: bool>(&self, i: usize) -> __m256i {
        if QUANTS == quants::BYTES {
            return self.bytes[i];
        }
        // SAFETY: the caller's.
        unsafe {
            let more = _mm256_set1_epi8(if MORE { 0 } else { 8 * const { offsets(QUANTS) } as i8 });
            let nibbles = if i < 4 { self.bytes[i] } else { _mm256_srli_epi16::<4>(self.bytes[i - 4]) };
            let nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
            match QUANTS {
                quants::CHOICES => _mm256_shuffle_epi8(self.values, nibbles),
                quants::POWERS if MORE => {
                    _mm256_shuffle_epi8(_mm256_add_epi8(self.values, _mm256_set1_epi8(16)), nibbles)
                }
                quants::POWERS => _mm256_shuffle_epi8(self.values, nibbles),
                quants::FIVES | quants::FIVES_FROM => {
                    // Byte `i / 2` of a row four times, of which each has a bit of its own.
                    let byte = |lane: i32| 0x0101_0101 * (4 * lane + i as i32 / 2);
                    let [p, q, r, s] = [byte(0), byte(1), byte(2), byte(3)];
                    let all = _mm256_shuffle_epi8(self.fifth, _mm256_setr_epi32(p, q, r, s, p, q, r, s));
                    let bit = _mm256_set1_epi32(if i.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010u32 as i32 });
                    let set = _mm256_cmpeq_epi8(_mm256_and_si256(all, bit), bit);
                    _mm256_sub_epi8(_mm256_or_si256(nibbles, _mm256_and_si256(set, _mm256_set1_epi8(16))), more)
                }
                _ => _mm256_sub_epi8(nibbles, more),
            }
        }
    }
}

/// The scales of blocks of `MXFP4`.
///
/// # Safety
/// The blocks can be read; the CPU has AVX.
#[inline(always)]
unsafe fn powers<const JOINED: bool>(blocks: &[*const u8; WIDE]) -> __m256 {
    let mut scales = [0.0; WIDE];
    for (r, scale) in scales.iter_mut().enumerate() {
        // SAFETY: a block begins with its scale (the caller).
        *scale = mxfp4::scale(unsafe { if JOINED { *blocks[0].add(r) } else { *blocks[r] } });
    }
    // SAFETY: eight floats.
    unsafe { _mm256_loadu_ps(scales.as_ptr()) }
}

/// The integers `whole` of block `l` and column `j` times both scales, plus `sum`.
///
/// # Safety
/// Column `j` of `y` has a block `l`; the CPU has AVX2 and FMA.
#[inline(always)]
unsafe fn add_scaled(whole: __m256i, dx: __m256, (y, l, j): (&ColumnTile, usize, usize), sum: __m256) -> __m256 {
    // SAFETY: a block has a scale (the caller).
    unsafe {
        let dy = _mm256_set1_ps(y.columns[j].add(y.scales + l * 4).cast::<f32>().read_unaligned());
        _mm256_fmadd_ps(_mm256_mul_ps(dx, dy), _mm256_cvtepi32_ps(whole), sum)
    }
}

/// # Safety
/// The tile contract; `N` is `y.n`; the CPU has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn kernel<const N: usize, const QUANTS: usize, const VNNI: bool, const JOINED: bool>(
    group: &RowGroup<WIDE>,
    y: &ColumnTile,
) -> Dots<WIDE> {
    let bytes = const { quants::block_bytes(QUANTS) };
    // SAFETY: the CPU has the features; `l` is below the number of blocks, of which each has 32 quants, in a column too, and
    // a scale.
    unsafe {
        let mut sums = [_mm256_setzero_ps(); N];
        for l in 0..y.n_blocks {
            prefetch(group.ahead.wrapping_add(l * WIDE * bytes), WIDE * bytes);
            let blocks = blocks::<JOINED>(&group.rows, l, bytes);
            let dx = if QUANTS == quants::POWERS { powers::<JOINED>(&blocks) } else { halves::<JOINED>(&blocks, 0) };
            let x = Packed::read::<QUANTS, JOINED>(&blocks);
            let whole: [__m256i; N] = if VNNI {
                biased::<N, QUANTS>(&x, y, l)
            } else if const { offsets(QUANTS) > 0 } {
                unsigned::<N, QUANTS>(&x, y, l)
            } else {
                signed::<N, QUANTS>(&x, y, l)
            };
            for j in 0..N {
                sums[j] = add_scaled(whole[j], dx, (y, l, j), sums[j]);
                if let Some(at) = const { quants::minimum(QUANTS) } {
                    let less = _mm256_set1_ps(const { quants::less(QUANTS) });
                    let min = _mm256_fmadd_ps(dx, less, halves::<JOINED>(&blocks, at));
                    sums[j] = add_scaled(sum_of_quants::<VNNI>(y, l, j), min, (y, l, j), sums[j]);
                }
            }
        }
        by_column(&sums)
    }
}

/// The sum of the quants of block `l` of column `j`, which have a bias if `VNNI`, in every lane.
///
/// # Safety
/// Column `j` of `y` has a block `l`; the CPU has AVX2, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn sum_of_quants<const VNNI: bool>(y: &ColumnTile, l: usize, j: usize) -> __m256i {
    // SAFETY: a block has 32 quants and, without VNNI, an offset (the caller).
    unsafe {
        if !VNNI {
            let offset = everywhere(y.columns[j].add(y.offsets + l * 4));
            // The offset is the sum of either half of the quants times -8.
            return _mm256_srai_epi32::<3>(_mm256_madd_epi16(offset, _mm256_set1_epi16(-1)));
        }
        let q = _mm256_loadu_si256(y.columns[j].add(l * 32).cast());
        let parts = _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), q, _mm256_set1_epi8(1));
        let parts = _mm256_add_epi32(parts, _mm256_permute2x128_si256::<1>(parts, parts));
        let parts = _mm256_add_epi32(parts, _mm256_shuffle_epi32::<0b01_00_11_10>(parts));
        let sum = _mm256_add_epi32(parts, _mm256_shuffle_epi32::<0b10_11_00_01>(parts));
        _mm256_sub_epi32(sum, _mm256_set1_epi32(32 * i32::from(Isa::AvxVnni.bias())))
    }
}

/// The integers of block `l` of all columns, which have a bias, times the weights `x`.
///
/// # Safety
/// The columns of `y` have a block `l`; the CPU has AVX-VNNI.
#[inline(always)]
unsafe fn biased<const N: usize, const QUANTS: usize>(x: &Packed, y: &ColumnTile, l: usize) -> [__m256i; N] {
    // SAFETY: the caller's.
    unsafe {
        let bias = _mm256_set1_epi8(Isa::AvxVnni.bias() as i8);
        let mut start = _mm256_setzero_si256();
        for i in 0..8 {
            start = _mm256_dpbusd_avx_epi32(start, bias, x.weights::<QUANTS, false>(i));
        }
        let mut whole = [_mm256_sub_epi32(_mm256_setzero_si256(), start); N];
        for i in 0..8 {
            let w = x.weights::<QUANTS, false>(i);
            for (whole, column) in whole.iter_mut().zip(y.columns) {
                *whole = _mm256_dpbusd_avx_epi32(*whole, everywhere(column.add(l * 32 + 4 * i)), w);
            }
        }
        whole
    }
}

/// As [`biased`], of weights of few bits and columns without a bias.
///
/// # Safety
/// The columns of `y` have a block `l`; the CPU has AVX2.
#[inline(always)]
unsafe fn unsigned<const N: usize, const QUANTS: usize>(x: &Packed, y: &ColumnTile, l: usize) -> [__m256i; N] {
    // SAFETY: the caller's.
    unsafe {
        // In the end a lane is at most 16 * 16 * 127; on the way there it may wrap.
        let mut whole = [_mm256_setzero_si256(); N];
        for (whole, column) in whole.iter_mut().zip(y.columns) {
            let offset = everywhere(column.add(y.offsets + l * 4));
            *whole = if const { offsets(QUANTS) == 1 } { offset } else { _mm256_slli_epi16::<1>(offset) };
        }
        eight!(i, {
            let w = x.weights::<QUANTS, true>(i);
            for (whole, column) in whole.iter_mut().zip(y.columns) {
                let column = column.add(l * 32);
                *whole = match N {
                    1 => _mm256_add_epi16(*whole, _mm256_maddubs_epi16(w, everywhere(column.add(4 * i)))),
                    _ => add_unsigned::<{ 4 * I }>(*whole, w, column),
                };
            }
        });
        for whole in &mut whole {
            *whole = _mm256_madd_epi16(_mm256_set1_epi16(1), *whole);
        }
        whole
    }
}

/// As [`biased`], of columns without a bias, which get the signs of the weights.
///
/// # Safety
/// The columns of `y` have a block `l`; the CPU has AVX2.
#[inline(always)]
unsafe fn signed<const N: usize, const QUANTS: usize>(x: &Packed, y: &ColumnTile, l: usize) -> [__m256i; N] {
    // SAFETY: the caller's.
    unsafe {
        let (mut whole, ones) = ([_mm256_setzero_si256(); N], _mm256_set1_epi16(1));
        eight!(i, {
            let w = x.weights::<QUANTS, false>(i);
            let size = _mm256_abs_epi8(w);
            for (whole, column) in whole.iter_mut().zip(y.columns) {
                let column = column.add(l * 32);
                *whole = match N {
                    1 => {
                        let q = _mm256_sign_epi8(everywhere(column.add(4 * i)), w);
                        _mm256_add_epi32(*whole, _mm256_madd_epi16(ones, _mm256_maddubs_epi16(size, q)))
                    }
                    _ => add_signed::<{ 4 * I }>(*whole, (w, size, ones), column),
                };
            }
        });
        whole
    }
}
