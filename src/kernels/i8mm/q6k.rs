//! Q6_K: a block is sixteen times 16 values. As in `neon/q6k.rs`, by pairs.

use std::arch::aarch64::*;

use super::by_pairs;
use super::pairs::{
    PAIRS, add_16, add_scaled, by_column, bytes_of_sums, floats, multiply, sixteen_bytes, thirty_two_bytes, twice,
    twice_f32,
};
use crate::activations::{ColumnTile, record};
use crate::dispatch::each;
use crate::neon::q6k::{BYTES, weights};
use crate::neon::rows::{blocks, halves, signed_byte, sixteen_bytes as four_rows};
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::q6k;

/// # Safety
/// The tile contract; `y` has pairs; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `P` is the number of pairs.
    unsafe { by_pairs!(kernel, group, y) }
}

#[inline]
#[target_feature(enable = "neon,i8mm")]
unsafe fn kernel<const P: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let mut sums = [[vdupq_n_f32(0.0); PAIRS]; P];
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * BYTES), GROUP * BYTES);
        let blocks = blocks(&group.rows, l, BYTES);
        // SAFETY: `l` is below the number of blocks and of records; there are `P` pairs.
        unsafe {
            let scales = four_rows(&blocks, q6k::SCALES);
            let by_pair = [sixteen_bytes(&blocks, 0, q6k::SCALES), sixteen_bytes(&blocks, 1, q6k::SCALES)];
            let records = |i: usize| {
                [y.columns[2 * i], y.columns[2 * i + 1]].map(|column| column.wrapping_add(l * record::BYTES))
            };
            let mut whole = [[vdupq_n_s32(0); PAIRS]; P];
            // Every sum starts with what 32 more in each value adds, negative.
            for (i, whole) in whole.iter_mut().enumerate() {
                let [a, b] = records(i).map(|record| record.wrapping_add(record::SUMS_16));
                let sums = [bytes_of_sums(a, b), bytes_of_sums(a.add(16), b.add(16))];
                for (p, whole) in whole.iter_mut().enumerate() {
                    let [first, last] = [vreinterpretq_s8_u8(by_pair[p][0]), vreinterpretq_s8_u8(by_pair[p][1])];
                    let high = multiply(multiply(*whole, first, sums[0][0]), last, sums[1][0]);
                    let all = multiply(multiply(vshlq_n_s32::<6>(high), first, sums[0][1]), last, sums[1][1]);
                    *whole = vmulq_n_s32(all, -32);
                }
            }
            each!(p of PAIRS, {
                // One pair of rows after the other: registers hold no more.
                let mut sums = [vdupq_n_s32(0); P];
                for (sum, whole) in sums.iter_mut().zip(&whole) {
                    *sum = whole[p];
                }
                macro_rules! part {
                    // The values number `$i` of 32 of half `$h`.
                    ($h:literal, $i:literal, $packed:expr, $high:expr) => {{
                        let mut w = [vdupq_n_s8(0); 4];
                        for i in 0..4 {
                            w[i] = weights::<$i>($packed[i], $high[i]);
                        }
                        let at = 8 * $h + 2 * $i;
                        let (first, last) = (twice(signed_byte(&scales, at))[p], twice(signed_byte(&scales, at + 1))[p]);
                        each!(i of P, {
                            let q = y.pairs.add(i * y.pair_bytes + l * 512);
                            sums[i] = add_16::<{ 256 * $h + 64 * $i }>(sums[i], first, &w[..2], q);
                            sums[i] = add_16::<{ 256 * $h + 64 * $i + 32 }>(sums[i], last, &w[2..], q);
                        }, 0, 1, 2, 3);
                    }};
                }
                macro_rules! half {
                    ($h:literal) => {{
                        let high = thirty_two_bytes(&blocks, p, q6k::HIGH + 32 * $h);
                        let even = thirty_two_bytes(&blocks, p, 64 * $h);
                        part!($h, 0, even, high);
                        part!($h, 2, even, high);
                        let odd = thirty_two_bytes(&blocks, p, 64 * $h + 32);
                        part!($h, 1, odd, high);
                        part!($h, 3, odd, high);
                    }};
                }
                half!(0);
                half!(1);
                for (whole, sum) in whole.iter_mut().zip(sums) {
                    whole[p] = sum;
                }
            }, 0, 1);
            let d = twice_f32(halves(&blocks, q6k::SCALE));
            each!(i of P, {
                let [a, b] = records(i);
                let dy = floats(a.add(record::SCALE), b.add(record::SCALE));
                for p in 0..PAIRS {
                    sums[i][p] = add_scaled(sums[i][p], whole[i][p], vmulq_f32(d[p], dy));
                }
            }, 0, 1, 2, 3);
        }
    }
    by_column(&sums)
}
