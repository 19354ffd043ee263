//! Q6_K: four weight rows times up to eight columns. A block is eight times 32 values of six bits, less 32.
//!
//! As `q4k_q5k.rs`, of unsigned values and with a scale for each 16. What the 32 amount to is the sums of the columns' quants
//! times the scales: every sum starts with it.

use std::arch::aarch64::*;

use super::registers::{add_16, bytes_of_sums, dot, dot_lane, lower, sums_of_four, upper};
use super::rows::{blocks, halves, signed_byte, sixteen_bytes, thirty_two_bytes};
use crate::activations::{ColumnTile, float, record};
use crate::dispatch::{by_columns, each};
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::q6k;

pub(crate) const BYTES: usize = 210;

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `N` is `y.n`.
    unsafe {
        match y.n {
            1 => one_column(group, y),
            _ => by_columns!(kernel, (group, y), y),
        }
    }
}

/// Values of part `I` of a half block: nibbles, and above them bits `2 I` and `2 I + 1` of `high`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn weights<const I: i32>(packed: uint8x16_t, high: uint8x16_t) -> int8x16_t {
    let low = if I < 2 { lower(packed) } else { upper(packed) };
    // The two bits at their place among those of the value.
    let high = match I {
        0 => vshlq_n_u8::<4>(high),
        1 => vshlq_n_u8::<2>(high),
        2 => high,
        _ => vshrq_n_u8::<2>(high),
    };
    vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(high, vdupq_n_u8(0x30))))
}

/// What 32 more in each value adds, negative: scales times sums of the quants of a column.
///
/// # Safety
/// `record` begins one; the CPU has the features.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn offset(scales: &[uint8x16_t; 4], record: *const u8) -> int32x4_t {
    // SAFETY: parts of the record (the caller).
    let [a, b] =
        unsafe { [bytes_of_sums(record.add(record::SUMS_16)), bytes_of_sums(record.add(record::SUMS_16 + 16))] };
    let mut sum = vdupq_n_s32(0);
    for (i, bytes) in [vcombine_s8(a[0], b[0]), vcombine_s8(a[1], b[1])].into_iter().enumerate() {
        if i == 1 {
            sum = vshlq_n_s32::<6>(sum);
        }
        sum = dot_lane::<0>(sum, vreinterpretq_s8_u8(scales[0]), bytes);
        sum = dot_lane::<1>(sum, vreinterpretq_s8_u8(scales[1]), bytes);
        sum = dot_lane::<2>(sum, vreinterpretq_s8_u8(scales[2]), bytes);
        sum = dot_lane::<3>(sum, vreinterpretq_s8_u8(scales[3]), bytes);
    }
    vmulq_n_s32(sum, -32)
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn one_column(group: &RowGroup, y: &ColumnTile) -> Dots {
    let mut sum = vdupq_n_f32(0.0);
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * BYTES), GROUP * BYTES);
        let blocks = blocks(&group.rows, l, BYTES);
        let record = y.columns[0].wrapping_add(l * record::BYTES);
        // SAFETY: `l` is below the number of blocks and of records.
        unsafe {
            let scales = sixteen_bytes(&blocks, q6k::SCALES);
            let mut whole = offset(&scales, record);
            // Half `$h`, bytes `16 $p` to `16 $p + 15` of every 32.
            macro_rules! sixteenths {
                ($h:literal, $p:literal, $($i:literal: $odd:literal),*) => {{
                    let mut dots = [[vdupq_n_s32(0); GROUP]; 4];
                    let at = 128 * $h + 16 * $p;
                    for r in 0..GROUP {
                        let high = vld1q_u8(blocks[r].add(q6k::HIGH + 32 * $h + 16 * $p));
                        let low = blocks[r].add(64 * $h + 16 * $p);
                        let packed = [vld1q_u8(low), vld1q_u8(low.add(32))];
                        $(
                            let q = vld1q_s8(record.add(at + 32 * $i).cast());
                            dots[$i][r] = dot(dots[$i][r], weights::<$i>(packed[$odd], high), q);
                        )*
                    }
                    $(
                        let scale = signed_byte(&scales, 8 * $h + 2 * $i + $p);
                        whole = vmlaq_s32(whole, sums_of_four(dots[$i]), scale);
                    )*
                }};
            }
            sixteenths!(0, 0, 0: 0, 1: 1, 2: 0, 3: 1);
            sixteenths!(0, 1, 0: 0, 1: 1, 2: 0, 3: 1);
            sixteenths!(1, 0, 0: 0, 1: 1, 2: 0, 3: 1);
            sixteenths!(1, 1, 0: 0, 1: 1, 2: 0, 3: 1);
            let d = vmulq_n_f32(halves(&blocks, q6k::SCALE), float(record.add(record::SCALE)));
            sum = vfmaq_f32(sum, vcvtq_f32_s32(whole), d);
        }
    }
    let mut dots = Dots::default();
    // SAFETY: room for four floats.
    unsafe { vst1q_f32(dots[0].as_mut_ptr(), sum) };
    dots
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn kernel<const N: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let mut sums = [vdupq_n_f32(0.0); N];
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * BYTES), GROUP * BYTES);
        let blocks = blocks(&group.rows, l, BYTES);
        // SAFETY: `l` is below the number of blocks and of records.
        unsafe {
            let scales = sixteen_bytes(&blocks, q6k::SCALES);
            let mut whole = [vdupq_n_s32(0); N];
            each!(j of N, { whole[j] = offset(&scales, y.columns[j].add(l * record::BYTES)) });
            // The values number `$i` of 32 of half `$h`.
            macro_rules! part {
                ($h:literal, $i:literal, $packed:expr, $high:expr) => {{
                    let mut w = [vdupq_n_s8(0); 8];
                    for c in 0..8 {
                        w[c] = weights::<$i>($packed[c], $high[c]);
                    }
                    let scale = [signed_byte(&scales, 8 * $h + 2 * $i), signed_byte(&scales, 8 * $h + 2 * $i + 1)];
                    each!(j of N, {
                        let q = y.columns[j].add(l * record::BYTES);
                        whole[j] = add_16::<{ 128 * $h + 32 * $i }>(whole[j], scale[0], &w[..4], q);
                        whole[j] = add_16::<{ 128 * $h + 32 * $i + 16 }>(whole[j], scale[1], &w[4..], q);
                    });
                }};
            }
            macro_rules! half {
                ($h:literal) => {{
                    let high = thirty_two_bytes(&blocks, q6k::HIGH + 32 * $h);
                    let even = thirty_two_bytes(&blocks, 64 * $h);
                    part!($h, 0, even, high);
                    part!($h, 2, even, high);
                    let odd = thirty_two_bytes(&blocks, 64 * $h + 32);
                    part!($h, 1, odd, high);
                    part!($h, 3, odd, high);
                }};
            }
            half!(0);
            half!(1);
            let d = halves(&blocks, q6k::SCALE);
            each!(j of N, {
                let dy = float(y.columns[j].add(l * record::BYTES + record::SCALE));
                sums[j] = vfmaq_f32(sums[j], vcvtq_f32_s32(whole[j]), vmulq_n_f32(d, dy));
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
