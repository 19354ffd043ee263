//! Q6_K: one weight row times up to four columns at a time.
//!
//! A block is eight times 32 values of six bits, less 32. Dot products of four unsigned values each, times the scales of
//! their 16, go into eight lanes of 32 bits, all exact. What the 32 amount to is the sums of the columns' quants times the
//! scales: every sum starts with it.

use std::arch::aarch64::*;

use super::registers::{dot, half, load, quants, upper};
use crate::activations::{ColumnTile, float, record};
use crate::dispatch::by_four_columns;
use crate::lanes::sum_lanes;
use crate::prefetch::prefetch;
use crate::tile::{Dots, RowGroup};
use crate::weight_type::q6k;

const BYTES: usize = 210;

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `j + N` is at most `y.n`, and `r` below `GROUP`.
    unsafe { by_four_columns!(1, kernel, group, y) }
}

/// Weight row `r` times columns `j` to `j + N`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn kernel<const N: usize>(group: &RowGroup, y: &ColumnTile, r: usize, j: usize, dots: &mut Dots) {
    let (w, ahead) = (group.rows[r], group.ahead.wrapping_add(r * y.n_blocks * BYTES));
    let mut sums = [[vdupq_n_f32(0.0); 2]; N];
    let columns: [*const u8; N] = std::array::from_fn(|i| y.columns[j + i]);
    for l in 0..y.n_blocks {
        if j == 0 {
            prefetch(ahead.wrapping_add(l * BYTES), BYTES);
        }
        // SAFETY: `l` is below the number of blocks; these are parts of one.
        let (block, d, sixteen) = unsafe {
            let block = w.add(l * BYTES);
            (block, half(block.add(q6k::SCALE)), vld1q_s8(block.add(q6k::SCALES).cast()))
        };
        let words = [vmovl_s8(vget_low_s8(sixteen)), vmovl_high_s8(sixteen)];
        let mut whole = [[vdupq_n_s32(0); 2]; N];
        for (whole, &column) in whole.iter_mut().zip(&columns) {
            for p in 0..2 {
                // SAFETY: part of the record.
                let q = unsafe { vld1q_s16(column.add(l * record::BYTES + record::SUMS_16 + 16 * p).cast()) };
                let offset = vnegq_s16(vshlq_n_s16::<5>(words[p]));
                let low = vmull_s16(vget_low_s16(offset), vget_low_s16(q));
                whole[p] = vpaddq_s32(low, vmull_high_s16(offset, q));
            }
        }
        for (h, &words) in words.iter().enumerate() {
            // Scales of four times 32 values.
            let scales = [vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)];
            // SAFETY: 32 bytes each.
            let (even, odd, mut high) =
                unsafe { (load(block.add(64 * h)), load(block.add(64 * h + 32)), load(block.add(q6k::HIGH + 32 * h))) };
            // The values number `i` of 32 of this half, low bits in the low halves of bytes, times all columns.
            macro_rules! part {
                ($i:literal, $nibbles:expr) => {{
                    let mut w = $nibbles;
                    for p in 0..2 {
                        w[p] = vsliq_n_u8::<4>(w[p], vandq_u8(high[p], vdupq_n_u8(3)));
                        high[p] = vshrq_n_u8::<2>(high[p]);
                    }
                    for (whole, &column) in whole.iter_mut().zip(&columns) {
                        // SAFETY: the record has 256 quants.
                        let q = unsafe { quants(column.add(l * record::BYTES + 128 * h + 32 * $i)) };
                        let dots = [dot(vreinterpretq_s8_u8(w[0]), q[0]), dot(vreinterpretq_s8_u8(w[1]), q[1])];
                        whole[0] = vmlaq_laneq_s32::<{ 2 * $i % 4 }>(whole[0], dots[0], scales[$i / 2]);
                        whole[1] = vmlaq_laneq_s32::<{ 2 * $i % 4 + 1 }>(whole[1], dots[1], scales[$i / 2]);
                    }
                }};
            }
            part!(0, even);
            part!(1, odd);
            part!(2, upper(even));
            part!(3, upper(odd));
        }
        for (sum, (whole, &column)) in sums.iter_mut().zip(whole.iter().zip(&columns)) {
            // SAFETY: part of the record.
            let dy = unsafe { float(column.add(l * record::BYTES + record::SCALE)) };
            for p in 0..2 {
                sum[p] = vfmaq_n_f32(sum[p], vcvtq_f32_s32(whole[p]), dy * d);
            }
        }
    }
    for (i, sum) in sums.iter().enumerate() {
        dots[j + i][r] = sum_lanes(*sum);
    }
}
