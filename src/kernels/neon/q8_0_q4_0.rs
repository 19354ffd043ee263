//! Q8_0, Q4_0, IQ4_NL, Q5_0 and MXFP4: two weight rows times up to four columns at a time.

use std::arch::aarch64::*;

use super::registers::{dot, half, quants as load};
use crate::activations::{ColumnTile, float};
use crate::dispatch::by_four_columns;
use crate::lanes::sum_lanes;
use crate::prefetch::prefetch;
use crate::tile::{Dots, RowGroup};
use crate::weight_type::{mxfp4, quants};

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots<const QUANTS: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `j + N` is at most `y.n`, and `r` below `GROUP`.
    unsafe { by_four_columns!(2, kernel, group, y, QUANTS) }
}

/// 16 bytes of nibbles as 32 bytes: less 8, or what they choose, or with the fifth bits before them less 16.
///
/// # Safety
/// 16 bytes can be read at `p`, and for `FIVES` the four before them.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn spread<const QUANTS: usize>(p: *const u8) -> [int8x16_t; 2] {
    // SAFETY: 16 bytes can be read at `p` (the caller).
    let packed = unsafe { vld1q_u8(p) };
    let (low, high) = (vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8::<4>(packed));
    if QUANTS == quants::CHOICES || QUANTS == quants::POWERS {
        // SAFETY: an array of 16 bytes.
        let values = unsafe { vld1q_s8(quants::values(QUANTS).as_ptr()) };
        [vqtbl1q_s8(values, low), vqtbl1q_s8(values, high)]
    } else if QUANTS == quants::FIVES {
        // SAFETY: four bytes before (the caller).
        let fifth = unsafe { p.sub(4).cast::<u32>().read_unaligned() };
        let fifth = vreinterpretq_u8_u32(vdupq_n_u32(fifth));
        let (byte, bit) = ([0u8, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [1u8, 2, 4, 8, 16, 32, 64, 128]);
        // SAFETY: arrays of 16 and 8 bytes.
        let (byte, bit) = unsafe { (vld1q_u8(byte.as_ptr()), vld1_u8(bit.as_ptr())) };
        let bit = vcombine_u8(bit, bit);
        // Ones in the bytes of values whose fifth bit is set.
        let set = vtstq_u8(vqtbl1q_u8(fifth, byte), bit);
        let set_more = vtstq_u8(vqtbl1q_u8(fifth, vaddq_u8(byte, vdupq_n_u8(2))), bit);
        let sixteen = vdupq_n_u8(16);
        let (low, high) = (vsubq_u8(low, vbicq_u8(sixteen, set)), vsubq_u8(high, vbicq_u8(sixteen, set_more)));
        [vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high)]
    } else {
        let eight = vdupq_n_s8(8);
        [vsubq_s8(vreinterpretq_s8_u8(low), eight), vsubq_s8(vreinterpretq_s8_u8(high), eight)]
    }
}

/// Weight rows `r` and `r + 1` times columns `j` to `j + N`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn kernel<const N: usize, const QUANTS: usize>(
    group: &RowGroup,
    y: &ColumnTile,
    r: usize,
    j: usize,
    dots: &mut Dots,
) {
    let bytes = const { quants::block_bytes(QUANTS) };
    let mut sums = [[[vdupq_n_f32(0.0); 2]; 2]; N];
    let weights = [group.rows[r], group.rows[r + 1]];
    let columns: [*const u8; N] = std::array::from_fn(|i| y.columns[j + i]);
    let ahead = group.ahead.wrapping_add(r * y.n_blocks * bytes);
    for l in 0..y.n_blocks {
        if j == 0 {
            prefetch(ahead.wrapping_add(l * 2 * bytes), 64);
        }
        let (mut dx, mut w) = ([0.0; 2], [[vdupq_n_s8(0); 2]; 2]);
        for h in 0..2 {
            // SAFETY: `l` is below the number of blocks of both rows; 32 quants each.
            unsafe {
                let block = weights[h].add(l * bytes);
                dx[h] = if QUANTS == quants::POWERS { mxfp4::scale(*block) } else { half(block) };
                let at = block.add(quants::start(QUANTS));
                w[h] = if QUANTS == quants::BYTES { load(at) } else { spread::<QUANTS>(at) };
            }
        }
        for (sum, &column) in sums.iter_mut().zip(&columns) {
            // SAFETY: block `l` has 32 quants and a scale.
            let (q, dy) = unsafe { (load(column.add(l * 32)), float(column.add(y.scales + l * 4))) };
            for h in 0..2 {
                for p in 0..2 {
                    let dot = vcvtq_f32_s32(dot(w[h][p], q[p]));
                    sum[h][p] = vfmaq_n_f32(sum[h][p], dot, dx[h] * dy);
                }
            }
        }
    }
    for (i, sum) in sums.iter().enumerate() {
        for h in 0..2 {
            dots[j + i][r + h] = sum_lanes(sum[h]);
        }
    }
}
