//! `IQ3XXS` and `IQ3S`: every four values are an entry of a grid, with signs beside it; a scale for 32 values.

use super::grids;
use super::layout::{Head, Layout, Register, four_times_seven, odd_scales, scales_above, signed, thirty_two_bytes};
use crate::dispatch::each;
use crate::weight_type::WeightType;

/// Numbers of entries in bytes; of each 32 values a word with four times seven signs and the scale.
pub(crate) struct Iq3Xxs;

/// Numbers of entries, four in each lane, and signs of 32 values.
pub(crate) struct InBytes<R> {
    numbers: [R; 16],
    signs: [R; 8],
}

impl<R: Register> Layout<R> for Iq3Xxs {
    const TYPE: WeightType = WeightType::IQ3XXS;
    const BIAS: u8 = 64;
    const MOST: usize = 64 + 62;
    const PASSES: usize = 1;
    type More = InBytes<R>;
    type Packed = ();

    #[inline(always)]
    unsafe fn head(blocks: &R::Blocks) -> Head<R, InBytes<R>> {
        // SAFETY: the factor, 64 bytes of numbers, 32 of signs and scales (the caller).
        unsafe {
            let words = thirty_two_bytes::<R>(blocks, 66);
            let mut numbers = [words[0]; 16];
            for (pass, numbers) in numbers.chunks_exact_mut(4).enumerate() {
                numbers.copy_from_slice(&R::sixteen_bytes(blocks, 2 + 16 * pass));
            }
            let d = R::times(R::half(blocks, 0), 0.25);
            let scales = scales_above(&words);
            Head { d, scales, mins: None, more: InBytes { numbers, signs: four_times_seven(&words) } }
        }
    }

    #[inline(always)]
    unsafe fn packed(_: &R::Blocks, _: usize) {}

    #[inline(always)]
    unsafe fn weights(more: &InBytes<R>, (): &(), s: usize) -> [R; 8] {
        let grid = grids::iq3xxs();
        let (numbers, signs) = (&more.numbers[2 * s..][..2], more.signs[s]);
        let mut w = [signs; 8];
        each!(c of 8, {
            // SAFETY: the grid has an entry for every byte (the caller).
            w[c] = unsafe {
                let values = R::four_by_byte(grid, &numbers[c / 4], c % 4);
                signed(values, signs, c / 2, c % 2 == 1, 64)
            };
        });
        w
    }
}

/// Numbers of entries in bytes, a ninth bit and signs apart; scales in nibbles.
pub(crate) struct Iq3S;

/// Numbers of entries, two in each lane, and signs of 32 values.
pub(crate) struct Chosen<R> {
    numbers: [[R; 4]; 8],
    signs: [R; 8],
}

impl<R: Register> Layout<R> for Iq3S {
    const TYPE: WeightType = WeightType::IQ3S;
    const BIAS: u8 = 16;
    const MOST: usize = 16 + 15;
    const PASSES: usize = 1;
    type More = Chosen<R>;
    type Packed = ();

    #[inline(always)]
    unsafe fn head(blocks: &R::Blocks) -> Head<R, Chosen<R>> {
        // SAFETY: the factor, 64 bytes of numbers, 8 of ninth bits, 32 of signs, 4 of scales (the caller).
        unsafe {
            let nibbles = R::word(blocks, 106);
            let mut scales = [nibbles; 4];
            for (i, scale) in scales.iter_mut().enumerate() {
                let byte = nibbles.right(8 * i);
                *scale = odd_scales(byte.and(R::every(15)).or(byte.left(12).and(R::every(15 << 16))));
            }
            let ninth = [R::word(blocks, 66), R::word(blocks, 70)];
            let mut numbers = [[nibbles; 4]; 8];
            for (pass, two) in numbers.chunks_exact_mut(2).enumerate() {
                let lower = R::sixteen_bytes(blocks, 2 + 16 * pass);
                for (i, numbers) in two.iter_mut().flatten().enumerate() {
                    // Bits 0 and 1 become bits 8 and 24.
                    let ninth = ninth[pass / 2].right(pass % 2 * 16 + 2 * i);
                    let ninth = ninth.left(8).and(R::every(1 << 8)).or(ninth.left(23).and(R::every(1 << 24)));
                    *numbers = lower[i / 2].spread(i % 2 == 1).or(ninth);
                }
            }
            let more = Chosen { numbers, signs: thirty_two_bytes(blocks, 74) };
            Head { d: R::half(blocks, 0), scales, mins: None, more }
        }
    }

    #[inline(always)]
    unsafe fn packed(_: &R::Blocks, _: usize) {}

    #[inline(always)]
    unsafe fn weights(more: &Chosen<R>, (): &(), s: usize) -> [R; 8] {
        let grid = grids::iq3s();
        let (numbers, signs) = (&more.numbers[s], more.signs[s]);
        let mut w = [signs; 8];
        each!(c of 8, {
            // SAFETY: the grid has an entry for all nine bits (the caller).
            w[c] = unsafe {
                let values = R::four_by_half(grid, &numbers[c / 2], c % 2);
                signed(values, signs, c / 2, c % 2 == 1, 16)
            };
        });
        w
    }
}
