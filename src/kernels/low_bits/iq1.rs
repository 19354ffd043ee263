//! `IQ1S` and `IQ1M`: every eight values are an entry of a grid of -1, 0 and 1, and an eighth more or less. Values here are eight
//! times that.

use super::grids;
use super::layout::{Head, Layout, Register, bytes, odd_scales, thirty_two_bytes};
use crate::dispatch::each;
use crate::weight_type::WeightType;

/// [`grids::iq1`] has it in its values.
const BIAS: u8 = grids::IQ1_BIAS;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
const MOST: usize = BIAS as usize + 9;
/// Of values that are eight times as large.
const EIGHTH: f32 = 0.125;

/// Numbers of entries, two in each lane, and what stands above them in a block.
pub(crate) struct Chosen<R> {
    numbers: [R; 16],
    /// 16 bits for 32 values, among them whether an eighth is added or taken away.
    above: [R; 4],
}

/// Two values of a grid and 1 more or, where bytes of `two` are 2, 1 less.
///
/// # Safety
/// As [`Register`].
#[inline(always)]
unsafe fn eighths<R: Register>([a, b]: [R; 2], two: R) -> [R; 2] {
    // SAFETY: the caller's.
    unsafe {
        let more = R::every(bytes(1)).sub_bytes(two);
        [a.add_bytes(more), b.add_bytes(more)]
    }
}

/// For 32 values: four times three upper bits, a scale of three bits, and a sign.
pub(crate) struct Iq1S;

impl<R: Register> Layout<R> for Iq1S {
    const TYPE: WeightType = WeightType::IQ1S;
    const BIAS: u8 = BIAS;
    const MOST: usize = MOST;
    const PASSES: usize = 1;
    type More = Chosen<R>;
    type Packed = ();

    #[inline(always)]
    unsafe fn head(blocks: &R::Blocks) -> Head<R, Chosen<R>> {
        // SAFETY: the factor, 32 bytes of numbers, 16 of what stands above (the caller).
        unsafe {
            let above = R::sixteen_bytes(blocks, 34);
            let mut scales = above;
            for scale in &mut scales {
                *scale = odd_scales(scale.right(12).and(R::every(0x0007_0007)));
            }
            let lower = thirty_two_bytes::<R>(blocks, 2);
            let mut numbers = [lower[0]; 16];
            for (i, numbers) in numbers.iter_mut().enumerate() {
                // Bits 0 to 2 become bits 8 to 10, bits 3 to 5 bits 24 to 26.
                let above = above[i / 4].right(i / 2 % 2 * 16 + i % 2 * 6);
                let above = above.left(8).and(R::every(7 << 8)).or(above.left(21).and(R::every(7 << 24)));
                *numbers = lower[i / 2].spread(i % 2 == 1).or(above);
            }
            let d = R::times(R::half(blocks, 0), EIGHTH);
            Head { d, scales, mins: None, more: Chosen { numbers, above } }
        }
    }

    #[inline(always)]
    unsafe fn packed(_: &R::Blocks, _: usize) {}

    #[inline(always)]
    unsafe fn weights(more: &Chosen<R>, (): &(), s: usize) -> [R; 8] {
        let grid = grids::iq1();
        let numbers = &more.numbers[2 * s..][..2];
        // SAFETY: the caller's.
        let two = unsafe { more.above[s / 2].right(s % 2 * 16 + 14).and(R::every(2)).byte(0) };
        let mut w = [two; 8];
        each!(l of 4, {
            // SAFETY: the grid has an entry for all eleven bits (the caller).
            [w[2 * l], w[2 * l + 1]] = unsafe { eighths(R::eight_by_half(grid, &numbers[l / 2], l % 2), two) };
        });
        w
    }
}

/// For eight values three upper bits and a sign; for 16 a scale of three bits. The factor is in the upper bits of the words of scales.
pub(crate) struct Iq1M;

impl<R: Register> Layout<R> for Iq1M {
    const TYPE: WeightType = WeightType::IQ1M;
    const BIAS: u8 = BIAS;
    const MOST: usize = MOST;
    const PASSES: usize = 1;
    type More = Chosen<R>;
    type Packed = ();

    #[inline(always)]
    unsafe fn head(blocks: &R::Blocks) -> Head<R, Chosen<R>> {
        // SAFETY: 32 bytes of numbers, 16 of what stands above, 8 of scales (the caller).
        unsafe {
            let words = [R::word(blocks, 48), R::word(blocks, 52)];
            let mut scales = [words[0]; 4];
            for (i, scale) in scales.iter_mut().enumerate() {
                let bits = words[i / 2].right(i % 2 * 16);
                // Bits 0 to 2, 3 to 5, 6 to 8 and 9 to 11 go into a byte each.
                let (a, b) = (bits.and(R::every(7)), bits.left(5).and(R::every(7 << 8)));
                let (c, d) = (bits.left(10).and(R::every(7 << 16)), bits.left(15).and(R::every(7 << 24)));
                *scale = a.or(b).or(c.or(d)).left(1).or(R::every(bytes(1)));
            }
            let [a, b] = words;
            let low = a.right(12).and(R::every(0x000f)).or(a.right(24).and(R::every(0x00f0)));
            let high = b.right(4).and(R::every(0x0f00)).or(b.right(16).and(R::every(0xf000)));
            let d = R::times(low.or(high).low_half(), EIGHTH);
            let (lower, above) = (thirty_two_bytes::<R>(blocks, 0), R::sixteen_bytes(blocks, 32));
            let mut numbers = [lower[0]; 16];
            for (i, numbers) in numbers.iter_mut().enumerate() {
                // Bits 0 to 2 become bits 8 to 10, bits 4 to 6 bits 24 to 26.
                let above = above[i / 4].right(i % 4 * 8);
                let above = above.left(8).and(R::every(7 << 8)).or(above.left(20).and(R::every(7 << 24)));
                *numbers = lower[i / 2].spread(i % 2 == 1).or(above);
            }
            Head { d, scales, mins: None, more: Chosen { numbers, above } }
        }
    }

    #[inline(always)]
    unsafe fn packed(_: &R::Blocks, _: usize) {}

    #[inline(always)]
    unsafe fn weights(more: &Chosen<R>, (): &(), s: usize) -> [R; 8] {
        let grid = grids::iq1();
        let numbers = &more.numbers[2 * s..][..2];
        // SAFETY: the caller's.
        let above = unsafe { more.above[s / 2].right(s % 2 * 16) };
        let mut w = [above; 8];
        each!(l of 4, {
            // SAFETY: the grid has an entry for all eleven bits (the caller).
            [w[2 * l], w[2 * l + 1]] = unsafe {
                let two = above.right(4 * l + 2).and(R::every(2)).byte(0);
                eighths(R::eight_by_half(grid, &numbers[l / 2], l % 2), two)
            };
        });
        w
    }
}
