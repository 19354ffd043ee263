//! Q8_0, Q4_0, IQ4_NL, Q5_0, Q4_1, Q5_1 and MXFP4.

use std::arch::aarch64::*;

use super::by_pairs;
use super::pairs::{
    PAIRS, add_scaled, by_column, multiply_32, quants as load, sixteen_bytes, thirty_two_bytes, twice_f32,
};
use crate::activations::ColumnTile;
use crate::neon::registers::{lower, upper};
use crate::neon::rows::{Fifths, blocks, fifth_bits, minima, scales, weights};
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::quants;

/// # Safety
/// The tile contract; `y` has pairs; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots<const QUANTS: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `P` is the number of pairs.
    unsafe { by_pairs!(kernel, group, y, QUANTS) }
}

/// Byte `i` of the fifth bits of a pair's first row eight times, then of its second row: of values `8i` to `8i + 7` of both.
const fn of_pair(pair: u8, i: u8) -> Fifths {
    let (a, b) = (8 * pair + i, 8 * pair + 4 + i);
    Fifths {
        bytes: [a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b],
        bits: [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128],
    }
}

/// Of values `8i` to `8i + 7` of each pair, for each `i`.
const FIFTHS: [[Fifths; 4]; PAIRS] = [
    [of_pair(0, 0), of_pair(0, 1), of_pair(0, 2), of_pair(0, 3)],
    [of_pair(1, 0), of_pair(1, 1), of_pair(1, 2), of_pair(1, 3)],
];

/// 32 weights of each row of pair number `pair`, eight of each in a register.
///
/// # Safety
/// The blocks can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn of_rows<const QUANTS: usize>(blocks: &[*const u8; GROUP], fifth: uint8x16_t, pair: usize) -> [int8x16_t; 4] {
    let mut w = [vdupq_n_s8(0); 4];
    let at = quants::start(QUANTS);
    if QUANTS == quants::BYTES {
        // SAFETY: a block has 32 bytes behind its scale (the caller).
        let bytes = unsafe { thirty_two_bytes(blocks, pair, at) };
        for (w, bytes) in w.iter_mut().zip(bytes) {
            *w = vreinterpretq_s8_u8(bytes);
        }
    } else {
        // SAFETY: a block has 16 bytes there (the caller).
        let [a, b] = unsafe { sixteen_bytes(blocks, pair, at) };
        let nibbles = [lower(a), lower(b), upper(a), upper(b)];
        for (i, w) in w.iter_mut().enumerate() {
            *w = weights::<QUANTS>(nibbles[i], fifth, &FIFTHS[pair][i]);
        }
    }
    w
}

#[inline]
#[target_feature(enable = "neon,i8mm")]
unsafe fn kernel<const P: usize, const QUANTS: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let bytes = const { quants::block_bytes(QUANTS) };
    let mut sums = [[vdupq_n_f32(0.0); PAIRS]; P];
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * bytes), GROUP * bytes);
        let blocks = blocks(&group.rows, l, bytes);
        // SAFETY: `l` is below the number of blocks, of which each has 32 quants, in a column too, and a scale; there are `P`
        // pairs.
        unsafe {
            let dx = scales::<QUANTS>(&blocks);
            let min = minima::<QUANTS>(&blocks, dx);
            let (dx, min) = (twice_f32(dx), twice_f32(min.unwrap_or(dx)));
            let fifth = fifth_bits::<QUANTS>(&blocks);
            let w = [of_rows::<QUANTS>(&blocks, fifth, 0), of_rows::<QUANTS>(&blocks, fifth, 1)];
            for (i, sums) in sums.iter_mut().enumerate() {
                let pair = y.pairs.add(i * y.pair_bytes);
                let q = load(pair.add(l * 64));
                let dy = vreinterpretq_f32_f64(vld1q_dup_f64(pair.add(2 * y.scales + l * 8).cast()));
                for (p, sum) in sums.iter_mut().enumerate() {
                    *sum = add_scaled(*sum, multiply_32(vdupq_n_s32(0), &w[p], &q), vmulq_f32(dx[p], dy));
                    if const { quants::minimum(QUANTS).is_some() } {
                        let quants = multiply_32(vdupq_n_s32(0), &[vdupq_n_s8(1); 4], &q);
                        *sum = add_scaled(*sum, quants, vmulq_f32(min[p], dy));
                    }
                }
            }
        }
    }
    by_column(&sums)
}
