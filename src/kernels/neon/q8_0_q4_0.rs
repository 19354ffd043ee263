//! Q8_0, Q4_0, IQ4_NL, Q5_0, Q4_1, Q5_1 and MXFP4: four weight rows times up to eight columns.
//!
//! One column is multiplied with rows as they lie, and the lanes of four dot products are added to one register. For more, four
//! bytes of each row are brought side by side, and multiplied with four bytes of every column.

use std::arch::aarch64::*;

use super::registers::{dot, dot_32, lower, quants as load, sums_of_four, upper};
use super::rows::{Fifths, blocks, fifth_bits, minima, scales, sixteen_bytes, spread, thirty_two_bytes, weights};
use crate::activations::{ColumnTile, float};
use crate::dispatch::{by_columns, each};
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::quants;

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots<const QUANTS: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `N` is `y.n`.
    unsafe { by_columns!(kernel, (group, y), y, QUANTS) }
}

/// Byte `i` of each row four times, of which each has a bit of its own: of values `8i` on, or `8i + 4` on.
const fn in_lanes(i: u8, bits: [u8; 4]) -> Fifths {
    let [a, b, c, d] = bits;
    let [p, q, r, s] = [i, i + 4, i + 8, i + 12];
    Fifths {
        bytes: [p, p, p, p, q, q, q, q, r, r, r, r, s, s, s, s],
        bits: [a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d],
    }
}

/// Of values `4c` to `4c + 3` of each row, for each `c`.
const FIFTHS: [Fifths; 8] = {
    const LOW: [u8; 4] = [1, 2, 4, 8];
    const HIGH: [u8; 4] = [16, 32, 64, 128];
    [
        in_lanes(0, LOW),
        in_lanes(0, HIGH),
        in_lanes(1, LOW),
        in_lanes(1, HIGH),
        in_lanes(2, LOW),
        in_lanes(2, HIGH),
        in_lanes(3, LOW),
        in_lanes(3, HIGH),
    ]
};

/// Byte `r` of each row's fifth bits eight times, then byte `r + 1`: of values `8r` to `8r + 15` of a row, the fifth bits of
/// row `i` being bytes `4i` to `4i + 3`.
const fn of_row(i: u8, half: u8) -> Fifths {
    let (a, b) = (4 * i + 2 * half, 4 * i + 2 * half + 1);
    Fifths {
        bytes: [a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b],
        bits: [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128],
    }
}

/// Of the first and the last 16 values of each row.
const FIFTHS_OF_ROWS: [[Fifths; 2]; GROUP] = [
    [of_row(0, 0), of_row(0, 1)],
    [of_row(1, 0), of_row(1, 1)],
    [of_row(2, 0), of_row(2, 1)],
    [of_row(3, 0), of_row(3, 1)],
];

/// Four dot products of 32 weights with those of a column.
///
/// # Safety
/// The blocks can be read; the CPU has the features.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn one_column<const QUANTS: usize>(blocks: &[*const u8; GROUP], q: [int8x16_t; 2]) -> int32x4_t {
    let mut dots = [vdupq_n_s32(0); GROUP];
    // SAFETY: a block has 32 bytes behind its scale, or 16 (the caller).
    unsafe {
        let fifth = fifth_bits::<QUANTS>(blocks);
        for r in 0..GROUP {
            let at = blocks[r].add(quants::start(QUANTS));
            let w = if QUANTS == quants::BYTES {
                load(at)
            } else {
                let packed = vld1q_u8(at);
                let [low, high] = &FIFTHS_OF_ROWS[r];
                [weights::<QUANTS>(lower(packed), fifth, low), weights::<QUANTS>(upper(packed), fifth, high)]
            };
            dots[r] = dot(dot(dots[r], w[0], q[0]), w[1], q[1]);
        }
    }
    sums_of_four(dots)
}

/// 32 weights of each row, four of each in a lane.
///
/// # Safety
/// The blocks can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn side_by_side<const QUANTS: usize>(blocks: &[*const u8; GROUP]) -> [int8x16_t; 8] {
    let mut w = [vdupq_n_s8(0); 8];
    // SAFETY: a block has 32 bytes behind its scale, or 16 (the caller).
    unsafe {
        if QUANTS == quants::BYTES {
            let bytes = thirty_two_bytes(blocks, quants::start(QUANTS));
            for (w, bytes) in w.iter_mut().zip(bytes) {
                *w = vreinterpretq_s8_u8(bytes);
            }
        } else {
            let fifth = fifth_bits::<QUANTS>(blocks);
            let nibbles = spread(sixteen_bytes(blocks, quants::start(QUANTS)));
            for c in 0..8 {
                w[c] = weights::<QUANTS>(nibbles[c], fifth, &FIFTHS[c]);
            }
        }
    }
    w
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn kernel<const N: usize, const QUANTS: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let bytes = const { quants::block_bytes(QUANTS) };
    let mut sums = [vdupq_n_f32(0.0); N];
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * bytes), GROUP * bytes);
        let blocks = blocks(&group.rows, l, bytes);
        // SAFETY: `l` is below the number of blocks, of which each has 32 quants, in a column too, and a scale.
        unsafe {
            let dx = scales::<QUANTS>(&blocks);
            let min = minima::<QUANTS>(&blocks, dx);
            let w = if N > 1 { side_by_side::<QUANTS>(&blocks) } else { [vdupq_n_s8(0); 8] };
            each!(j of N, {
                let column = y.columns[j];
                let (q, dy) = (load(column.add(l * 32)), float(column.add(y.scales + l * 4)));
                let whole = if N > 1 { dot_32(vdupq_n_s32(0), &w, q) } else { one_column::<QUANTS>(&blocks, q) };
                sums[j] = vfmaq_f32(sums[j], vcvtq_f32_s32(whole), vmulq_n_f32(dx, dy));
                if let Some(min) = min {
                    let quants = vaddvq_s32(dot(dot(vdupq_n_s32(0), q[0], vdupq_n_s8(1)), q[1], vdupq_n_s8(1)));
                    sums[j] = vfmaq_n_f32(sums[j], vmulq_n_f32(min, dy), quants as f32);
                }
            });
        }
    }
    let mut dots = Dots::default();
    for (dots, sum) in dots.iter_mut().zip(sums) {
        // SAFETY: room for four floats.
        unsafe { vst1q_f32(dots.as_mut_ptr(), sum) };
    }
    dots
}
