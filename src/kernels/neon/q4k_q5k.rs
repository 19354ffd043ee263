//! Q4_K and Q5_K: four weight rows times up to eight columns. A block is eight times 32 values.
//!
//! As `q8_0_q4_0.rs`; the dot product of 32 values times the scale of the 32 is added to a lane of 32 bits for each row, exactly.
//! Minima are the sums of the column's quants times the minima of the 32: the sums as two bytes each, so that dot products of
//! bytes add them up.

use std::arch::aarch64::*;

use super::registers::{add_32, bytes_of_sums, dot, dot_lane, lower, quants, sums_of_four, upper};
use super::rows::{Head, blocks, thirty_two_bytes};
use crate::activations::{ColumnTile, float, record};
use crate::dispatch::{by_columns, each};
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::{WeightType, q4k_q5k};

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots<const FIVE: bool>(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `N` is `y.n`.
    unsafe {
        match y.n {
            1 => one_column::<FIVE>(group, y),
            _ => by_columns!(kernel, (group, y), y, FIVE),
        }
    }
}

/// `low` of part `s`, with its fifth bits, which are bits `s` of `high`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn weights<const FIVE: bool, const S: i32>(packed: uint8x16_t, high: uint8x16_t) -> int8x16_t {
    let low = if S % 2 == 0 { packed } else { upper(packed) };
    vreinterpretq_s8_u8(if FIVE {
        // The others are shifted out, and those of the nibble written over the rest.
        let bit = vandq_u8(vshlq_u8(high, vdupq_n_s8(-(S as i8))), vdupq_n_u8(1));
        vsliq_n_u8::<4>(low, bit)
    } else if S % 2 == 0 {
        lower(low)
    } else {
        low
    })
}

/// Minima times sums of the quants of a column.
///
/// # Safety
/// `record` begins one; the CPU has the features.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn minima(mins: [int8x16_t; 2], record: *const u8) -> int32x4_t {
    // SAFETY: part of the record (the caller).
    let [high, low] = unsafe { bytes_of_sums(record.add(record::SUMS_32)) };
    let (high, low) = (vcombine_s8(high, high), vcombine_s8(low, low));
    let sum = dot_lane::<1>(dot_lane::<0>(vdupq_n_s32(0), mins[0], high), mins[1], high);
    dot_lane::<1>(dot_lane::<0>(vshlq_n_s32::<6>(sum), mins[0], low), mins[1], low)
}

/// Bytes of a block, of `Q5K` if `five`.
pub(crate) const fn block_bytes(five: bool) -> usize {
    if five { WeightType::Q5K.block_bytes() } else { WeightType::Q4K.block_bytes() }
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn one_column<const FIVE: bool>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let bytes = const { block_bytes(FIVE) };
    let (mut sum, mut min) = (vdupq_n_f32(0.0), vdupq_n_f32(0.0));
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * bytes), GROUP * bytes);
        let blocks = blocks(&group.rows, l, bytes);
        let record = y.columns[0].wrapping_add(l * record::BYTES);
        // SAFETY: `l` is below the number of blocks and of records.
        unsafe {
            let head = Head::read(&blocks);
            let mut whole = vdupq_n_s32(0);
            let mut high = [[vdupq_n_u8(0); 2]; GROUP];
            if FIVE {
                for (high, block) in high.iter_mut().zip(blocks) {
                    *high = [vld1q_u8(block.add(q4k_q5k::HIGH)), vld1q_u8(block.add(q4k_q5k::HIGH + 16))];
                }
            }
            macro_rules! two_parts {
                ($low:literal, $high:literal) => {{
                    let q = [quants(record.add(32 * $low)), quants(record.add(32 * $high))];
                    let mut dots = [[vdupq_n_s32(0); GROUP]; 2];
                    for r in 0..GROUP {
                        for p in 0..2 {
                            let packed = vld1q_u8(blocks[r].add(bytes - 128 + 16 * $low + 16 * p));
                            let w = weights::<FIVE, $low>(packed, high[r][p]);
                            dots[0][r] = dot(dots[0][r], w, q[0][p]);
                            let w = weights::<FIVE, $high>(packed, high[r][p]);
                            dots[1][r] = dot(dots[1][r], w, q[1][p]);
                        }
                    }
                    whole = vmlaq_s32(whole, sums_of_four(dots[0]), head.scale($low));
                    whole = vmlaq_s32(whole, sums_of_four(dots[1]), head.scale($high));
                }};
            }
            two_parts!(0, 1);
            two_parts!(2, 3);
            two_parts!(4, 5);
            two_parts!(6, 7);
            let dy = float(record.add(record::SCALE));
            sum = vfmaq_f32(sum, vcvtq_f32_s32(whole), vmulq_n_f32(head.d, dy));
            min = vfmsq_f32(min, vcvtq_f32_s32(minima(head.mins, record)), vmulq_n_f32(head.dmin, dy));
        }
    }
    let mut dots = Dots::default();
    // SAFETY: room for four floats.
    unsafe { vst1q_f32(dots[0].as_mut_ptr(), vaddq_f32(sum, min)) };
    dots
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn kernel<const N: usize, const FIVE: bool>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let bytes = const { block_bytes(FIVE) };
    let (mut sums, mut mins) = ([vdupq_n_f32(0.0); N], [vdupq_n_f32(0.0); N]);
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * bytes), GROUP * bytes);
        let blocks = blocks(&group.rows, l, bytes);
        // SAFETY: `l` is below the number of blocks and of records.
        unsafe {
            let head = Head::read(&blocks);
            let mut whole = [vdupq_n_s32(0); N];
            let high = if FIVE { thirty_two_bytes(&blocks, q4k_q5k::HIGH) } else { [vdupq_n_u8(0); 8] };
            macro_rules! part {
                ($s:literal, $packed:expr) => {{
                    let mut w = [vdupq_n_s8(0); 8];
                    for c in 0..8 {
                        w[c] = weights::<FIVE, $s>($packed[c], high[c]);
                    }
                    let scale = head.scale($s);
                    each!(j of N, {
                        let q = y.columns[j].add(l * record::BYTES);
                        whole[j] = add_32::<{ 32 * $s }>(whole[j], scale, &w, q);
                    });
                }};
            }
            macro_rules! two_parts {
                ($low:literal, $high:literal) => {{
                    let packed = thirty_two_bytes(&blocks, bytes - 128 + 16 * $low);
                    part!($low, packed);
                    part!($high, packed);
                }};
            }
            two_parts!(0, 1);
            two_parts!(2, 3);
            two_parts!(4, 5);
            two_parts!(6, 7);
            each!(j of N, {
                let record = y.columns[j].add(l * record::BYTES);
                let dy = float(record.add(record::SCALE));
                sums[j] = vfmaq_f32(sums[j], vcvtq_f32_s32(whole[j]), vmulq_n_f32(head.d, dy));
                let min = vcvtq_f32_s32(minima(head.mins, record));
                mins[j] = vfmsq_f32(mins[j], min, vmulq_n_f32(head.dmin, dy));
            });
        }
    }
    let mut dots = Dots::default();
    for (dots, (sum, min)) in dots.iter_mut().zip(sums.into_iter().zip(mins)) {
        // SAFETY: room for four floats.
        unsafe { vst1q_f32(dots.as_mut_ptr(), vaddq_f32(sum, min)) };
    }
    dots
}
