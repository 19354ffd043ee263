//! `IQ2XXS`, `IQ2XS` and `IQ2S`: every eight values are an entry of a grid, with signs beside it.

use super::grids;
use super::layout::{
    Head, Layout, Register, bytes, eight_signs, four_times_seven, scales_above, signed, thirty_two_bytes,
};
use crate::dispatch::each;
use crate::weight_type::WeightType;

/// More than the largest value of a grid.
const BIAS: u8 = 64;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
const MOST: usize = BIAS as usize + 43;
/// Factors are eighths.
const EIGHTH: f32 = 0.125;

/// Of each 32 values four bytes of numbers, and a word with four times seven signs and the scale.
pub(crate) struct Iq2Xxs;

/// Numbers of entries and signs of 32 values.
pub(crate) struct Chosen<R> {
    numbers: [R; 8],
    signs: [R; 8],
}

impl<R: Register> Layout<R> for Iq2Xxs {
    const TYPE: WeightType = WeightType::IQ2XXS;
    const BIAS: u8 = BIAS;
    const MOST: usize = MOST;
    const PASSES: usize = 1;
    type More = Chosen<R>;
    type Packed = ();

    #[inline(always)]
    unsafe fn head(blocks: &R::Blocks) -> Head<R, Chosen<R>> {
        // SAFETY: 64 bytes behind the factor (the caller).
        unsafe {
            let (a, b) = (thirty_two_bytes::<R>(blocks, 2), thirty_two_bytes::<R>(blocks, 34));
            let numbers = [a[0], a[2], a[4], a[6], b[0], b[2], b[4], b[6]];
            let words = [a[1], a[3], a[5], a[7], b[1], b[3], b[5], b[7]];
            let d = R::times(R::half(blocks, 0), EIGHTH);
            let scales = scales_above(&words);
            Head { d, scales, mins: None, more: Chosen { numbers, signs: four_times_seven(&words) } }
        }
    }

    #[inline(always)]
    unsafe fn packed(_: &R::Blocks, _: usize) {}

    #[inline(always)]
    unsafe fn weights(more: &Chosen<R>, (): &(), s: usize) -> [R; 8] {
        let grid = grids::iq2xxs();
        let (numbers, signs) = (&more.numbers[s], more.signs[s]);
        let mut w = [signs; 8];
        each!(l of 4, {
            // SAFETY: the grid has an entry for every byte (the caller).
            unsafe {
                let [low, high] = R::eight_by_byte(grid, numbers, l);
                w[2 * l] = signed(low, signs, l, false, BIAS);
                w[2 * l + 1] = signed(high, signs, l, true, BIAS);
            }
        });
        w
    }
}

/// Scales in the nibbles of eight bytes from `at` on, each of 16 values: the nibble twice and 1 more.
///
/// # Safety
/// As [`Layout`].
#[inline(always)]
unsafe fn scales_at<R: Register>(blocks: &R::Blocks, at: usize) -> [R; 4] {
    // SAFETY: the caller's.
    unsafe {
        let words = [R::word(blocks, at), R::word(blocks, at + 4)];
        let mut scales = [words[0]; 4];
        for (i, scale) in scales.iter_mut().enumerate() {
            let two = words[i / 2].right(i % 2 * 16);
            let two = two.and(R::every(0xff)).or(two.left(8).and(R::every(0xff << 16)));
            let four = two.and(R::every(0x000f_000f)).or(two.left(4).and(R::every(0x0f00_0f00)));
            *scale = four.left(1).or(R::every(bytes(1)));
        }
        scales
    }
}

/// Numbers of entries, two in each lane, and signs, bytes of four times eight values or of two.
pub(crate) struct Halves<R> {
    numbers: [R; 16],
    signs: [R; 16],
}

/// 16 bits for eight values: nine of a number, seven of signs.
pub(crate) struct Iq2Xs;

impl<R: Register> Layout<R> for Iq2Xs {
    const TYPE: WeightType = WeightType::IQ2XS;
    const BIAS: u8 = BIAS;
    const MOST: usize = MOST;
    const PASSES: usize = 1;
    type More = Halves<R>;
    type Packed = ();

    #[inline(always)]
    unsafe fn head(blocks: &R::Blocks) -> Head<R, Halves<R>> {
        // SAFETY: the factor, 64 bytes, 8 of scales (the caller).
        unsafe {
            let scales = scales_at(blocks, 66);
            let mut more = Halves { numbers: [scales[0]; 16], signs: [scales[0]; 16] };
            for pass in 0..4 {
                for (i, both) in R::sixteen_bytes(blocks, 2 + 16 * pass).into_iter().enumerate() {
                    more.numbers[4 * pass + i] = both.and(R::every(0x01ff_01ff));
                    more.signs[4 * pass + i] = eight_signs(both.right(9).and(R::every(0x007f_007f)));
                }
            }
            Head { d: R::times(R::half(blocks, 0), EIGHTH), scales, mins: None, more }
        }
    }

    #[inline(always)]
    unsafe fn packed(_: &R::Blocks, _: usize) {}

    #[inline(always)]
    unsafe fn weights(more: &Halves<R>, (): &(), s: usize) -> [R; 8] {
        let grid = grids::iq2xs();
        let numbers = &more.numbers[2 * s..][..2];
        let signs = [more.signs[2 * s], more.signs[2 * s + 1]];
        let mut w = [signs[0]; 8];
        each!(l of 4, {
            // SAFETY: the grid has an entry for all nine bits (the caller).
            unsafe {
                let [low, high] = R::eight_by_half(grid, &numbers[l / 2], l % 2);
                w[2 * l] = signed(low, signs[l / 2], l % 2 * 2, false, BIAS);
                w[2 * l + 1] = signed(high, signs[l / 2], l % 2 * 2, true, BIAS);
            }
        });
        w
    }
}

/// Bytes of numbers, bytes of signs, upper pairs of bits of numbers.
pub(crate) struct Iq2S;

/// Numbers of entries, two in each lane, and signs of 32 values.
pub(crate) struct Apart<R> {
    numbers: [R; 16],
    signs: [R; 8],
}

impl<R: Register> Layout<R> for Iq2S {
    const TYPE: WeightType = WeightType::IQ2S;
    const BIAS: u8 = BIAS;
    const MOST: usize = MOST;
    const PASSES: usize = 1;
    type More = Apart<R>;
    type Packed = ();

    #[inline(always)]
    unsafe fn head(blocks: &R::Blocks) -> Head<R, Apart<R>> {
        // SAFETY: the factor, 32 bytes of numbers, 32 of signs, 8 of upper bits, 8 of scales (the caller).
        unsafe {
            let above = [R::word(blocks, 66), R::word(blocks, 70)];
            let lower = thirty_two_bytes::<R>(blocks, 2);
            let mut numbers = [above[0]; 16];
            for (i, numbers) in numbers.iter_mut().enumerate() {
                // Bits 0 and 1 become bits 8 and 9, bits 2 and 3 bits 24 and 25.
                let above = above[i / 8].right(i % 8 * 4);
                let above = above.left(8).and(R::every(3 << 8)).or(above.left(22).and(R::every(3 << 24)));
                *numbers = lower[i / 2].spread(i % 2 == 1).or(above);
            }
            let more = Apart { numbers, signs: thirty_two_bytes(blocks, 34) };
            Head { d: R::times(R::half(blocks, 0), EIGHTH), scales: scales_at(blocks, 74), mins: None, more }
        }
    }

    #[inline(always)]
    unsafe fn packed(_: &R::Blocks, _: usize) {}

    #[inline(always)]
    unsafe fn weights(more: &Apart<R>, (): &(), s: usize) -> [R; 8] {
        let grid = grids::iq2s();
        let (numbers, signs) = (&more.numbers[2 * s..][..2], more.signs[s]);
        let mut w = [signs; 8];
        each!(l of 4, {
            // SAFETY: the grid has an entry for all ten bits (the caller).
            unsafe {
                let [low, high] = R::eight_by_half(grid, &numbers[l / 2], l % 2);
                w[2 * l] = signed(low, signs, l, false, BIAS);
                w[2 * l + 1] = signed(high, signs, l, true, BIAS);
            }
        });
        w
    }
}
