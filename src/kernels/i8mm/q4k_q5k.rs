//! Q4_K and Q5_K: a block is eight times 32 values. As in `neon/q4k_q5k.rs`, by pairs.

use std::arch::aarch64::*;

use super::by_pairs;
use super::pairs::{
    PAIRS, add_32, add_scaled, by_column, bytes_of_sums, floats, multiply, thirty_two_bytes, twice, twice_f32,
};
use crate::activations::{ColumnTile, record};
use crate::dispatch::each;
use crate::neon::q4k_q5k::{block_bytes, weights};
use crate::neon::rows::{Head, blocks};
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::q4k_q5k;

/// # Safety
/// The tile contract; `y` has pairs; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots<const FIVE: bool>(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `P` is the number of pairs.
    unsafe { by_pairs!(kernel, group, y, FIVE) }
}

/// The eight minima of both rows of each pair.
#[inline]
#[target_feature(enable = "neon")]
fn minima_of_pairs(mins: [int8x16_t; 2]) -> [int8x16_t; PAIRS] {
    let (a, b) = (vreinterpretq_s32_s8(mins[0]), vreinterpretq_s32_s8(mins[1]));
    [vreinterpretq_s8_s32(vzip1q_s32(a, b)), vreinterpretq_s8_s32(vzip2q_s32(a, b))]
}

#[inline]
#[target_feature(enable = "neon,i8mm")]
unsafe fn kernel<const P: usize, const FIVE: bool>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let bytes = const { block_bytes(FIVE) };
    let (mut sums, mut mins) = ([[vdupq_n_f32(0.0); PAIRS]; P], [[vdupq_n_f32(0.0); PAIRS]; P]);
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * bytes), GROUP * bytes);
        let blocks = blocks(&group.rows, l, bytes);
        // SAFETY: `l` is below the number of blocks and of records; there are `P` pairs.
        unsafe {
            let head = Head::read(&blocks);
            let mut whole = [[vdupq_n_s32(0); PAIRS]; P];
            each!(p of PAIRS, {
                // One pair of rows after the other: registers hold no more.
                let mut sums = [vdupq_n_s32(0); P];
                let high = if FIVE { thirty_two_bytes(&blocks, p, q4k_q5k::HIGH) } else { [vdupq_n_u8(0); 4] };
                macro_rules! part {
                    ($s:literal, $packed:expr) => {{
                        let mut w = [vdupq_n_s8(0); 4];
                        for i in 0..4 {
                            w[i] = weights::<FIVE, $s>($packed[i], high[i]);
                        }
                        let scale = twice(head.scale($s))[p];
                        each!(i of P, {
                            let q = y.pairs.add(i * y.pair_bytes + l * 512);
                            sums[i] = add_32::<{ 64 * $s }>(sums[i], scale, &w, q);
                        }, 0, 1, 2, 3);
                    }};
                }
                macro_rules! two_parts {
                    ($low:literal, $high:literal) => {{
                        let packed = thirty_two_bytes(&blocks, p, bytes - 128 + 16 * $low);
                        part!($low, packed);
                        part!($high, packed);
                    }};
                }
                two_parts!(0, 1);
                two_parts!(2, 3);
                two_parts!(4, 5);
                two_parts!(6, 7);
                for (whole, sum) in whole.iter_mut().zip(sums) {
                    whole[p] = sum;
                }
            }, 0, 1);
            let (d, dmin, bytes_of_mins) = (twice_f32(head.d), twice_f32(head.dmin), minima_of_pairs(head.mins));
            each!(i of P, {
                let [a, b] = [y.columns[2 * i], y.columns[2 * i + 1]].map(|column| column.wrapping_add(l * record::BYTES));
                let dy = floats(a.add(record::SCALE), b.add(record::SCALE));
                let [high, low] = bytes_of_sums(a.add(record::SUMS_32), b.add(record::SUMS_32));
                for p in 0..PAIRS {
                    sums[i][p] = add_scaled(sums[i][p], whole[i][p], vmulq_f32(d[p], dy));
                    let min = vshlq_n_s32::<6>(multiply(vdupq_n_s32(0), bytes_of_mins[p], high));
                    let min = vcvtq_f32_s32(multiply(min, bytes_of_mins[p], low));
                    mins[i][p] = vfmsq_f32(mins[i][p], min, vmulq_f32(dmin[p], dy));
                }
            }, 0, 1, 2, 3);
        }
    }
    for (sums, mins) in sums.iter_mut().zip(mins) {
        for (sum, min) in sums.iter_mut().zip(mins) {
            *sum = vaddq_f32(*sum, min);
        }
    }
    by_column(&sums)
}
