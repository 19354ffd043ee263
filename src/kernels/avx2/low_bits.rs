//! Types of few bits ([`crate::low_bits`]): eight rows times up to eight columns, 32 values after the other.
//!
//! Values times bytes are added in 16 bits as far as they fit, then times their scale in 32 bits. What the bias of values adds comes
//! off in the end: the sums of the column's quants times the scales, as do minima. Nibbles that choose have up to eight bits: they go
//! as |x| times y with the sign of x.

use std::arch::asm;
use std::arch::x86_64::*;

use super::q6k::{pairs_of_scales, scales_of_32, sum_of_16s};
use super::rows::{blocks, by_column, everywhere, halves, sixteen_bytes, sum_scaled, words};
use crate::activations::{ColumnTile, MAX_COLUMNS, record};
use crate::low_bits::{Layout, Register, by_layout};
use crate::prefetch::prefetch_far;
use crate::tile::{Dots, RowGroup, WIDE};
use crate::weight_type::WeightType;

/// Of a type of few bits.
///
/// # Safety
/// The tile contract, for AVX2, or AVX-VNNI if `VNNI`; rows are not joined.
pub(super) unsafe fn by_type<const VNNI: bool>(ty: WeightType, group: &RowGroup<WIDE>, y: &ColumnTile) -> Dots<WIDE> {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn plain<L: Layout<__m256i>>(group: &RowGroup<WIDE>, y: &ColumnTile) -> Dots<WIDE> {
        // SAFETY: the contract of the outer function.
        unsafe { kernel::<L, false>(group, y) }
    }
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn vnni<L: Layout<__m256i>>(group: &RowGroup<WIDE>, y: &ColumnTile) -> Dots<WIDE> {
        // SAFETY: the contract of the outer function.
        unsafe { kernel::<L, true>(group, y) }
    }
    // SAFETY: the contract of this function.
    unsafe { if VNNI { by_layout!(ty, vnni, group, y) } else { by_layout!(ty, plain, group, y) } }
}

/// # Safety
/// The tile contract; the CPU has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn kernel<L: Layout<__m256i>, const VNNI: bool>(group: &RowGroup<WIDE>, y: &ColumnTile) -> Dots<WIDE> {
    let bytes = const { L::TYPE.block_bytes() };
    // With a bias, two products of a value of eight bits are too much for 16 bits.
    let with_bias = const { VNNI || 2 * L::MOST * 127 <= i16::MAX as usize };
    let columns = &y.columns[..y.n];
    // SAFETY: the CPU has the features; `l` is below the number of blocks and of records.
    unsafe {
        let zero = _mm256_setzero_si256();
        let mut sums = [_mm256_setzero_ps(); MAX_COLUMNS];
        let mut minima = sums;
        for l in 0..y.n_blocks {
            let ahead = group.ahead.wrapping_add(l * WIDE * bytes);
            let blocks = blocks::<false>(&group.rows, l, bytes);
            let head = L::head(&blocks);
            let mut whole = [zero; MAX_COLUMNS];
            for pass in 0..L::PASSES {
                let packed = L::packed(&blocks, pass);
                for part in 0..8 / L::PASSES {
                    let s = pass * (8 / L::PASSES) + part;
                    prefetch_far(ahead.wrapping_add(s * bytes), bytes);
                    let mut w = L::weights(&head.more, &packed, s);
                    let mut size = w;
                    if !with_bias {
                        for (w, size) in w.iter_mut().zip(&mut size) {
                            *w = _mm256_xor_si256(*w, _mm256_set1_epi8(L::BIAS as i8));
                            *size = _mm256_abs_epi8(*w);
                        }
                    }
                    let scale = scales_of_32(&head.scales, s);
                    for (whole, column) in whole.iter_mut().zip(columns) {
                        let q = column.add(l * record::BYTES + 32 * s);
                        let products = match with_bias {
                            true => thirty_two::<L, VNNI>(&w, q, scale),
                            false => with_signs(&w, &size, q, scale),
                        };
                        *whole = _mm256_add_epi32(*whole, products);
                    }
                }
            }
            let scales = pairs_of_scales(&head.scales);
            for (j, column) in columns.iter().enumerate() {
                let record = column.add(l * record::BYTES);
                let dy = _mm256_set1_ps(record.add(record::SCALE).cast::<f32>().read());
                let mut whole = whole[j];
                if L::BIAS > 0 && with_bias {
                    let more = Register::left(sum_of_16s(&scales, record), L::BIAS.trailing_zeros() as usize);
                    whole = _mm256_sub_epi32(whole, more);
                }
                sums[j] = _mm256_fmadd_ps(_mm256_mul_ps(dy, head.d), _mm256_cvtepi32_ps(whole), sums[j]);
            }
            if let Some((dmin, mins)) = &head.mins {
                let mins = pairs_of_scales(mins);
                for (minima, column) in minima.iter_mut().zip(columns) {
                    let record = column.add(l * record::BYTES);
                    let dy = _mm256_set1_ps(record.add(record::SCALE).cast::<f32>().read());
                    let min = _mm256_cvtepi32_ps(sum_of_16s(&mins, record));
                    *minima = _mm256_fnmadd_ps(_mm256_mul_ps(dy, *dmin), min, *minima);
                }
            }
        }
        if L::MINS {
            for (sum, minima) in sums.iter_mut().zip(minima) {
                *sum = _mm256_add_ps(*sum, minima);
            }
        }
        by_column(&sums)
    }
}

/// 32 values of every row times those of a column at `q`, times the rows' scales of either 16, which are words.
///
/// # Safety
/// 32 bytes can be read; the CPU has AVX2, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn thirty_two<L: Layout<__m256i>, const VNNI: bool>(
    w: &[__m256i; 8],
    q: *const u8,
    scale: [__m256i; 2],
) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        if !VNNI && 4 * L::MOST * 127 <= i16::MAX as usize {
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
            for (i, &w) in w.iter().enumerate() {
                let pairs = _mm256_maddubs_epi16(w, everywhere(q.add(4 * i)));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(scale, pairs));
            }
        }
        sum
    }
}

/// As [`thirty_two`], of values with a sign and their sizes.
///
/// # Safety
/// As [`thirty_two`].
#[inline(always)]
unsafe fn with_signs(w: &[__m256i; 8], size: &[__m256i; 8], q: *const u8, scale: [__m256i; 2]) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = _mm256_setzero_si256();
        for (i, (&w, &size)) in w.iter().zip(size).enumerate() {
            let q = _mm256_sign_epi8(everywhere(q.add(4 * i)), w);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(scale[i / 4], _mm256_maddubs_epi16(size, q)));
        }
        sum
    }
}

impl Register for __m256i {
    type Blocks = [*const u8; WIDE];
    type Floats = __m256;

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
    unsafe fn half(blocks: &Self::Blocks, at: usize) -> __m256 {
        // SAFETY: the caller's.
        unsafe { halves::<false>(blocks, at) }
    }

    #[inline(always)]
    unsafe fn low_half(self) -> __m256 {
        // SAFETY: the caller's.
        unsafe {
            let low = _mm256_and_si256(self, _mm256_set1_epi32(0xffff));
            let both = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi32(low, low));
            _mm256_cvtph_ps(_mm256_castsi256_si128(both))
        }
    }

    #[inline(always)]
    unsafe fn times(x: __m256, factor: f32) -> __m256 {
        // SAFETY: the caller's.
        unsafe { _mm256_mul_ps(x, _mm256_set1_ps(factor)) }
    }

    #[inline(always)]
    unsafe fn every(word: u32) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm256_set1_epi32(word as i32) }
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm256_and_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm256_or_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm256_xor_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn add_bytes(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm256_add_epi8(self, other) }
    }

    #[inline(always)]
    unsafe fn sub_bytes(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm256_sub_epi8(self, other) }
    }

    #[inline(always)]
    unsafe fn left(self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm256_sll_epi32(self, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    unsafe fn right(self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm256_srl_epi32(self, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    unsafe fn look_up(self, table: &[u8; 16]) -> Self {
        // SAFETY: 16 bytes; the rest is the caller's.
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), self) }
    }

    #[inline(always)]
    unsafe fn byte(self, n: usize) -> Self {
        let [p, q, r, s] = [0, 1, 2, 3].map(|lane| 0x0101_0101 * (4 * lane + n as i32));
        // SAFETY: the caller's.
        unsafe { _mm256_shuffle_epi8(self, _mm256_setr_epi32(p, q, r, s, p, q, r, s)) }
    }

    #[inline(always)]
    unsafe fn negated(self, signs: Self, bit: Self) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let minus = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bit), bit);
            _mm256_sub_epi8(_mm256_xor_si256(self, minus), minus)
        }
    }

    #[inline(always)]
    unsafe fn spread(self, high: bool) -> Self {
        let two = |lane: i32| {
            let first = 4 * lane + if high { 2 } else { 0 };
            0x8000_8000u32 as i32 | (first + 1) << 16 | first
        };
        let [p, q, r, s] = [two(0), two(1), two(2), two(3)];
        // SAFETY: the caller's.
        unsafe { _mm256_shuffle_epi8(self, _mm256_setr_epi32(p, q, r, s, p, q, r, s)) }
    }

    #[inline(always)]
    unsafe fn four_by_byte(grid: &[u32], choices: &Self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { entries(grid.as_ptr(), of_lanes::<u8>(choices, n)) }
    }

    #[inline(always)]
    unsafe fn four_by_half(grid: &[u32], choices: &Self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { entries(grid.as_ptr(), of_lanes::<u16>(choices, n)) }
    }

    #[inline(always)]
    unsafe fn eight_by_byte(grid: &[u64], choices: &Self, n: usize) -> [Self; 2] {
        // SAFETY: the caller's.
        unsafe { pairs(grid.as_ptr(), of_lanes::<u8>(choices, n)) }
    }

    #[inline(always)]
    unsafe fn eight_by_half(grid: &[u64], choices: &Self, n: usize) -> [Self; 2] {
        // SAFETY: the caller's.
        unsafe { pairs(grid.as_ptr(), of_lanes::<u16>(choices, n)) }
    }
}

/// Part `n` of each lane of a register in memory.
///
/// # Safety
/// A lane has so many parts.
#[inline(always)]
unsafe fn of_lanes<T: Into<usize>>(x: &__m256i, n: usize) -> [usize; 8] {
    let mut parts = [0; 8];
    for (i, part) in parts.iter_mut().enumerate() {
        let at = std::ptr::from_ref(x).cast::<T>();
        // SAFETY: the register has eight lanes. Volatile, or the compiler takes parts out of the register after all.
        *part = unsafe { at.add(4 / size_of::<T>() * i + n).read_volatile() }.into();
    }
    parts
}

/// Words of a table.
///
/// # Safety
/// The table has them; the CPU has AVX2.
#[inline(always)]
unsafe fn entries(table: *const u32, [a, b, c, d, e, f, g, h]: [usize; 8]) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_blend_epi32::<0b1111_0000>(four_words(table, [a, b, c, d]), four_words(table, [e, f, g, h])) }
}

/// Pairs of words of a table: the first of each, and the second.
///
/// # Safety
/// As [`entries`].
#[inline(always)]
unsafe fn pairs(table: *const u64, [a, b, c, d, e, f, g, h]: [usize; 8]) -> [__m256i; 2] {
    // SAFETY: the caller's.
    unsafe {
        let x = _mm256_castsi256_ps(four_pairs(table, [a, b, e, f]));
        let y = _mm256_castsi256_ps(four_pairs(table, [c, d, g, h]));
        [
            _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(x, y)),
            _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(x, y)),
        ]
    }
}

/// Words of a table in lanes 0 to 3, and again in lanes 4 to 7. A load for each: gathering takes three times as long on Zen 4, and
/// inserting one after the other, which the compiler would do, twice as long.
///
/// # Safety
/// The table has them; the CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn four_words(table: *const u32, [a, b, c, d]: [usize; 4]) -> __m256i {
    let x;
    // SAFETY: words of the table are read (the caller), and registers written.
    unsafe {
        asm!(
            "vpbroadcastd {x}, dword ptr [{table} + 4*{a}]",
            "vpbroadcastd {y}, dword ptr [{table} + 4*{b}]",
            "vpblendd {x}, {x}, {y}, 0x22",
            "vpbroadcastd {y}, dword ptr [{table} + 4*{c}]",
            "vpbroadcastd {z}, dword ptr [{table} + 4*{d}]",
            "vpblendd {y}, {y}, {z}, 0x88",
            "vpblendd {x}, {x}, {y}, 0xcc",
            x = out(ymm_reg) x,
            y = out(ymm_reg) _,
            z = out(ymm_reg) _,
            table = in(reg) table,
            a = in(reg) a,
            b = in(reg) b,
            c = in(reg) c,
            d = in(reg) d,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    x
}

/// Pairs of words of a table.
///
/// # Safety
/// As [`four_words`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn four_pairs(table: *const u64, [a, b, c, d]: [usize; 4]) -> __m256i {
    let x;
    // SAFETY: as in `four_words`.
    unsafe {
        asm!(
            "vpbroadcastq {x}, qword ptr [{table} + 8*{a}]",
            "vpbroadcastq {y}, qword ptr [{table} + 8*{b}]",
            "vpblendd {x}, {x}, {y}, 0x0c",
            "vpbroadcastq {y}, qword ptr [{table} + 8*{c}]",
            "vpbroadcastq {z}, qword ptr [{table} + 8*{d}]",
            "vpblendd {y}, {y}, {z}, 0xc0",
            "vpblendd {x}, {x}, {y}, 0xf0",
            x = out(ymm_reg) x,
            y = out(ymm_reg) _,
            z = out(ymm_reg) _,
            table = in(reg) table,
            a = in(reg) a,
            b = in(reg) b,
            c = in(reg) c,
            d = in(reg) d,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    x
}
