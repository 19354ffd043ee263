//! Q8_0, and Q4_0, IQ4_NL, Q5_0 and MXFP4, whose nibbles are spread to bytes first.
//!
//! With y = u - 128 (u unsigned, as VNNI wants it) x * y is x * u - 128 * x. The second term is the same for all columns: it
//! starts every sum. Floats go through the same operations as in ggml's `vec_dot`: product of the scales, one fused
//! multiply-add for each block into eight lanes, then the same tree.

use std::arch::x86_64::*;

use super::registers::{by_rows, float, half, pair, scales, sum_lanes_of_four, twice};
use crate::activations::ColumnTile;
use crate::dispatch::by_columns;
use crate::isa::Isa;
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::{mxfp4, quants};

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots<const QUANTS: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `N` is `y.n`.
    unsafe { by_columns!(kernel, (group, y), y, QUANTS) }
}

/// 16 bytes of nibbles of each of four weight rows, less 8, or what they choose, or with the fifth bits before them less 16,
/// as 32 bytes; two rows in a register.
///
/// # Safety
/// 16 bytes can be read at each, and for `FIVES` the four before them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn spread<const QUANTS: usize>(rows: [*const u8; 4]) -> [__m512i; 2] {
    // SAFETY: 16 bytes can be read at each (the caller).
    let [a, b, c, d] = rows.map(|p| unsafe { _mm_loadu_si128(p.cast()) });
    let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
    let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
    let packed = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    let nibble = _mm512_set1_epi8(15);
    let low = _mm512_and_si512(packed, nibble);
    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), nibble);
    let first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    let second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    // SAFETY: an array of 16 bytes.
    let values = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(quants::values(QUANTS).as_ptr().cast()) });
    let (two, two_more) = if QUANTS == quants::FIVES {
        // SAFETY: four bytes before each (the caller).
        let [a, b, c, d] = rows.map(|p| u64::from(unsafe { p.sub(4).cast::<u32>().read_unaligned() }));
        (a | b << 32, c | d << 32)
    } else {
        (0, 0)
    };
    [(first, two), (second, two_more)].map(|(i, fifth)| {
        let nibbles = _mm512_permutex2var_epi64(low, i, high);
        match QUANTS {
            quants::CHOICES | quants::POWERS => _mm512_shuffle_epi8(values, nibbles),
            quants::FIVES => _mm512_mask_sub_epi8(nibbles, !fifth, nibbles, _mm512_set1_epi8(16)),
            _ => _mm512_sub_epi8(nibbles, _mm512_set1_epi8(8)),
        }
    })
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn kernel<const N: usize, const QUANTS: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let bytes = const { quants::block_bytes(QUANTS) };
    let zero = _mm512_setzero_si512();
    let bias = _mm512_set1_epi8(Isa::Avx512.bias() as i8);
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    let [a, b, c, d] = group.rows;
    let columns: [*const u8; N] = std::array::from_fn(|j| y.columns[j]);
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * bytes), GROUP * bytes / 64 * 64);
        // SAFETY: `l` is below the number of blocks of all four rows; a block begins with its scale.
        let ([a, b, c, d], dx) = unsafe {
            let blocks = [a, b, c, d].map(|row| row.add(l * bytes));
            let dx = if QUANTS == quants::POWERS {
                let [a, b, c, d] = blocks.map(|block| mxfp4::scale(*block));
                by_rows(_mm_setr_ps(a, b, c, d))
            } else {
                scales(blocks.map(|block| half(block)))
            };
            (blocks.map(|block| block.add(quants::start(QUANTS))), dx)
        };
        // SAFETY: 32 quants each.
        let w =
            unsafe { if QUANTS == quants::BYTES { [pair(a, b), pair(c, d)] } else { spread::<QUANTS>([a, b, c, d]) } };
        let start = w.map(|w| _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, bias, w)));
        for (sum, &column) in sums.iter_mut().zip(&columns) {
            // SAFETY: block `l` has 32 quants and a scale.
            let (u, dy) = unsafe { (twice(column.add(l * 32)), float(column.add(y.scales + l * 4))) };
            for h in 0..2 {
                let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start[h], u, w[h]));
                sum[h] = _mm512_fmadd_ps(_mm512_mul_ps(dx[h], dy), dot, sum[h]);
            }
        }
    }
    let mut dots = Dots::default();
    for (dots, sum) in dots.iter_mut().zip(&sums) {
        *dots = sum_lanes_of_four(sum);
    }
    dots
}
