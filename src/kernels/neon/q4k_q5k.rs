//! Q4_K and Q5_K: one weight row times up to four columns at a time.
//!
//! A block is eight times 32 values. Dot products of four values each, times the scale of the 32, go into eight lanes of 32
//! bits, all exact. Minima are the sums of the columns' quants times the minima of the 32, in four lanes.

use std::arch::aarch64::*;

use super::registers::{dot, half, load, quants, upper};
use crate::activations::{ColumnTile, float, record};
use crate::dispatch::by_four_columns;
use crate::lanes::{sum_lanes, sum_pairs};
use crate::prefetch::prefetch;
use crate::tile::{Dots, RowGroup};
use crate::weight_type::{WeightType, q4k_q5k};

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots<const FIVE: bool>(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `j + N` is at most `y.n`, and `r` below `GROUP`.
    unsafe { by_four_columns!(1, kernel, group, y, FIVE) }
}

/// Eight bytes as numbers of 16 bits.
#[inline]
#[target_feature(enable = "neon")]
fn words(low: u32, high: u32) -> uint16x8_t {
    vmovl_u8(vcreate_u8(u64::from(low) | u64::from(high) << 32))
}

/// Weight row `r` times columns `j` to `j + N`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn kernel<const N: usize, const FIVE: bool>(
    group: &RowGroup,
    y: &ColumnTile,
    r: usize,
    j: usize,
    dots: &mut Dots,
) {
    let bytes = const { if FIVE { WeightType::Q5K.block_bytes() } else { WeightType::Q4K.block_bytes() } };
    let (w, ahead) = (group.rows[r], group.ahead.wrapping_add(r * y.n_blocks * bytes));
    let mut sums = [[vdupq_n_f32(0.0); 2]; N];
    let mut mins = [vdupq_n_f32(0.0); N];
    let columns: [*const u8; N] = std::array::from_fn(|i| y.columns[j + i]);
    for l in 0..y.n_blocks {
        if j == 0 {
            prefetch(ahead.wrapping_add(l * bytes), bytes);
        }
        // SAFETY: `l` is below the number of blocks; these are parts of one.
        let (block, d, dmin, packed) = unsafe {
            let block = w.add(l * bytes);
            let (d, dmin) = (half(block.add(q4k_q5k::SCALE)), half(block.add(q4k_q5k::SCALE + 2)));
            (block, d, dmin, block.add(q4k_q5k::SCALES).cast::<[u32; 3]>().read_unaligned())
        };
        let [s0, s1, m0, m1] = q4k_q5k::unpack(packed);
        let scales = vreinterpretq_s16_u16(words(s0, s1));
        let scales = [vmovl_s16(vget_low_s16(scales)), vmovl_high_s16(scales)];
        let min = vreinterpretq_s16_u16(words(m0, m1));
        // SAFETY: 32 bytes.
        let mut high = if FIVE { unsafe { load(block.add(q4k_q5k::HIGH)) } } else { [vdupq_n_u8(0); 2] };
        let mut whole = [[vdupq_n_s32(0); 2]; N];
        // The values number `s` of 32, in the low halves of bytes, times all columns.
        macro_rules! part {
            ($s:literal, $nibbles:expr) => {{
                let mut w = $nibbles;
                for p in 0..2 {
                    w[p] = if FIVE {
                        let bit = vandq_u8(high[p], vdupq_n_u8(1));
                        high[p] = vshrq_n_u8::<1>(high[p]);
                        vsliq_n_u8::<4>(w[p], bit)
                    } else {
                        vandq_u8(w[p], vdupq_n_u8(15))
                    };
                }
                for (whole, &column) in whole.iter_mut().zip(&columns) {
                    // SAFETY: the record has 256 quants.
                    let q = unsafe { quants(column.add(l * record::BYTES + 32 * $s)) };
                    for p in 0..2 {
                        let dot = dot(vreinterpretq_s8_u8(w[p]), q[p]);
                        whole[p] = vmlaq_laneq_s32::<{ $s % 4 }>(whole[p], dot, scales[$s / 4]);
                    }
                }
            }};
        }
        macro_rules! two_parts {
            ($low:literal, $high:literal) => {{
                // SAFETY: 32 bytes.
                let packed = unsafe { load(block.add(bytes - 128 + 16 * $low)) };
                part!($low, packed);
                part!($high, upper(packed));
            }};
        }
        two_parts!(0, 1);
        two_parts!(2, 3);
        two_parts!(4, 5);
        two_parts!(6, 7);
        for i in 0..N {
            let record = columns[i].wrapping_add(l * record::BYTES);
            // SAFETY: parts of the record.
            let (dy, q) = unsafe { (float(record.add(record::SCALE)), vld1q_s16(record.add(record::SUMS_32).cast())) };
            for p in 0..2 {
                sums[i][p] = vfmaq_n_f32(sums[i][p], vcvtq_f32_s32(whole[i][p]), dy * d);
            }
            let low = vmull_s16(vget_low_s16(min), vget_low_s16(q));
            let mut part = vpaddq_s32(low, vmull_high_s16(min, q));
            if FIVE {
                part = vdupq_n_s32(vaddvq_s32(part));
            }
            mins[i] = vfmaq_n_f32(mins[i], vcvtq_f32_s32(part), -dy * dmin);
        }
    }
    for i in 0..N {
        let mins = if FIVE { vgetq_lane_f32::<0>(mins[i]) } else { sum_pairs(mins[i]) };
        dots[j + i][r] = sum_lanes(sums[i]) + mins;
    }
}
