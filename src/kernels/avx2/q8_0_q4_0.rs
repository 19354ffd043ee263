//! Q8_0, Q4_0, IQ4_NL, Q5_0 and MXFP4.
//!
//! AVX2 multiplies unsigned with signed bytes and adds pairs of products in 16 bits. Bytes go as |x| times y with the sign of
//! x; every pair is widened, unless all of a block fit 16 bits, as those of `Q5_0` and `MXFP4` do. Nibbles are unsigned as they are, and so small that a whole block fits 16 bits; what their 8
//! too many add depends on the column alone, and the quantised column has it ready ([`crate::activations::offset`]).
//!
//! With VNNI y has a bias b that makes it unsigned: x * y is x * (y + b) - b * x, of which the second term is the same for all
//! columns and starts every sum.

use std::arch::x86_64::*;

use super::both::for_both;
use super::rows::{by_row, everywhere, halves, sixteen_bytes, thirty_two_bytes, words};
use crate::activations::ColumnTile;
use crate::isa::Isa;
use crate::prefetch::prefetch;
use crate::tile::{Dots, RowGroup, WIDE};
use crate::weight_type::{mxfp4, quants};

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
        let values = _mm256_broadcastsi128_si256(_mm_loadu_si128(quants::values(QUANTS).as_ptr().cast()));
        let packed = sixteen_bytes(blocks, quants::start(QUANTS));
        let fifth = if QUANTS == quants::FIVES { words(blocks, 2) } else { nibble };
        let mut w = [nibble; 8];
        for i in 0..8 {
            let nibbles = if i < 4 { packed[i] } else { _mm256_srli_epi16::<4>(packed[i - 4]) };
            let nibbles = _mm256_and_si256(nibbles, nibble);
            w[i] = match QUANTS {
                quants::CHOICES | quants::POWERS => _mm256_shuffle_epi8(values, nibbles),
                quants::FIVES => {
                    // Byte `i / 2` of a row four times, of which each has a bit of its own.
                    let byte = |lane: i32| 0x0101_0101 * (4 * lane + i as i32 / 2);
                    let [p, q, r, s] = [byte(0), byte(1), byte(2), byte(3)];
                    let all = _mm256_shuffle_epi8(fifth, _mm256_setr_epi32(p, q, r, s, p, q, r, s));
                    let bit = _mm256_set1_epi32(if i % 2 == 0 { 0x0804_0201 } else { 0x8040_2010u32 as i32 });
                    let set = _mm256_cmpeq_epi8(_mm256_and_si256(all, bit), bit);
                    _mm256_sub_epi8(nibbles, _mm256_andnot_si256(set, _mm256_set1_epi8(16)))
                }
                _ => _mm256_sub_epi8(nibbles, _mm256_set1_epi8(8)),
            };
        }
        w
    }
}

/// The scales of blocks of `MXFP4`.
///
/// # Safety
/// The blocks can be read; the CPU has AVX.
#[inline(always)]
unsafe fn powers(blocks: &[*const u8; WIDE]) -> __m256 {
    let mut scales = [0.0; WIDE];
    for (scale, &block) in scales.iter_mut().zip(blocks) {
        // SAFETY: a block begins with its scale (the caller).
        *scale = mxfp4::scale(unsafe { *block });
    }
    // SAFETY: eight floats.
    unsafe { _mm256_loadu_ps(scales.as_ptr()) }
}

/// Block `l` of all columns times the nibbles `packed` less 8 with the scales `dx`, added to `sums`.
///
/// # Safety
/// The columns of `y` have a block `l`; the CPU has AVX2 and FMA.
#[inline(always)]
unsafe fn add_nibbles<const N: usize>(
    packed: &[__m256i; 4],
    dx: __m256,
    (y, l): (&ColumnTile, usize),
    sums: &mut [__m256; N],
) {
    // SAFETY: the caller's.
    unsafe {
        let nibble = _mm256_set1_epi8(15);
        // With the offset a lane is at most 16 * 8 * 127 in the end; on the way there it may wrap.
        let mut whole = [_mm256_setzero_si256(); N];
        for (j, whole) in whole.iter_mut().enumerate() {
            *whole = everywhere(y.columns[j].add(y.offsets + l * 4));
        }
        for i in 0..8 {
            let w = if i < 4 { packed[i] } else { _mm256_srli_epi16::<4>(packed[i - 4]) };
            let w = _mm256_and_si256(w, nibble);
            for (j, whole) in whole.iter_mut().enumerate() {
                let q = everywhere(y.columns[j].add(l * 32 + 4 * i));
                *whole = _mm256_add_epi16(*whole, _mm256_maddubs_epi16(w, q));
            }
        }
        for (j, &whole) in whole.iter().enumerate() {
            let whole = _mm256_madd_epi16(_mm256_set1_epi16(1), whole);
            sums[j] = add_scaled(whole, dx, (y, l, j), sums[j]);
        }
    }
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
unsafe fn kernel<const N: usize, const QUANTS: usize, const VNNI: bool>(
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
            let mut blocks = group.rows;
            for block in &mut blocks {
                *block = block.add(l * bytes);
            }
            let dx = if QUANTS == quants::POWERS { powers(&blocks) } else { halves(&blocks, 0) };
            if VNNI || QUANTS != quants::NIBBLES {
                let whole = whole_bytes::<N, QUANTS, VNNI>(&blocks, y, l);
                for j in 0..N {
                    sums[j] = add_scaled(whole[j], dx, (y, l, j), sums[j]);
                }
            } else {
                add_nibbles(&sixteen_bytes(&blocks, 2), dx, (y, l), &mut sums);
            }
        }
        by_row(&sums)
    }
}

/// The integers of block `l` of all columns times the weights at `blocks` as signed bytes.
///
/// # Safety
/// The blocks can be read; the columns of `y` have a block `l`; the CPU has AVX2, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn whole_bytes<const N: usize, const QUANTS: usize, const VNNI: bool>(
    blocks: &[*const u8; WIDE],
    y: &ColumnTile,
    l: usize,
) -> [__m256i; N] {
    // SAFETY: the caller's.
    unsafe {
        let (zero, ones) = (_mm256_setzero_si256(), _mm256_set1_epi16(1));
        let bias = _mm256_set1_epi8(Isa::AvxVnni.bias() as i8);
        // At most 16 * 16 * 127 in a lane.
        let narrow = !VNNI && (QUANTS == quants::FIVES || QUANTS == quants::POWERS);
        let w = weights::<QUANTS>(blocks);
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
                *whole = match VNNI {
                    true => _mm256_dpbusd_avx_epi32(*whole, q, w),
                    false => {
                        let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(q, w));
                        if narrow {
                            _mm256_add_epi16(*whole, pairs)
                        } else {
                            _mm256_add_epi32(*whole, _mm256_madd_epi16(ones, pairs))
                        }
                    }
                };
            }
        }
        if narrow { whole.map(|whole| _mm256_madd_epi16(ones, whole)) } else { whole }
    }
}
