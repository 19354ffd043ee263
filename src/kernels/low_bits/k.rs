//! `Q2K` and `Q3K`: pairs of bits, four values a byte, 32 bytes for 128 values.

use super::layout::{Head, Layout, Register, bytes, thirty_two_bytes};
use crate::weight_type::WeightType;

/// A scale and a minimum of four bits each for 16 values.
pub(crate) struct Q2K;

impl<R: Register> Layout<R> for Q2K {
    const TYPE: WeightType = WeightType::Q2K;
    const BIAS: u8 = 0;
    const MOST: usize = 3;
    const MINS: bool = true;
    const PASSES: usize = 2;
    type More = ();
    type Packed = [R; 8];

    #[inline(always)]
    unsafe fn head(blocks: &R::Blocks) -> Head<R, ()> {
        // SAFETY: 16 bytes of scales come first, both factors last (the caller).
        unsafe {
            let mut scales = R::sixteen_bytes(blocks, 0);
            let mut mins = scales;
            let nibble = R::every(bytes(15));
            for (scales, mins) in scales.iter_mut().zip(&mut mins) {
                (*scales, *mins) = (scales.and(nibble), mins.right(4).and(nibble));
            }
            Head { d: R::half(blocks, 80), scales, mins: Some((R::half(blocks, 82), mins)), more: () }
        }
    }

    #[inline(always)]
    unsafe fn packed(blocks: &R::Blocks, pass: usize) -> [R; 8] {
        // SAFETY: 64 bytes of values (the caller).
        unsafe { thirty_two_bytes(blocks, 16 + 32 * pass) }
    }

    #[inline(always)]
    unsafe fn weights((): &(), packed: &[R; 8], s: usize) -> [R; 8] {
        let mut w = *packed;
        for w in &mut w {
            // SAFETY: the caller's.
            *w = unsafe { w.right(s % 4 * 2).and(R::every(bytes(3))) };
        }
        w
    }
}

/// A scale of six bits, less 32, for 16 values, which have a third bit elsewhere, less 4.
pub(crate) struct Q3K;

impl<R: Register> Layout<R> for Q3K {
    const TYPE: WeightType = WeightType::Q3K;
    const BIAS: u8 = 4;
    const MOST: usize = 7;
    const PASSES: usize = 2;
    /// Third bits: bit `s` of byte `i` is that of value `i` of 32.
    type More = [R; 8];
    type Packed = [R; 8];

    #[inline(always)]
    unsafe fn head(blocks: &R::Blocks) -> Head<R, [R; 8]> {
        // SAFETY: third bits come first; scales are at 96, the factor behind them (the caller).
        unsafe {
            let [a, b, c] = [R::word(blocks, 96), R::word(blocks, 100), R::word(blocks, 104)];
            let (nibble, pair) = (R::every(bytes(15)), R::every(bytes(0x30)));
            let scale = |low: R, high: R| low.and(nibble).or(high.and(pair)).sub_bytes(R::every(bytes(32)));
            let scales =
                [scale(a, c.left(4)), scale(b, c.left(2)), scale(a.right(4), c), scale(b.right(4), c.right(2))];
            let d = R::half(blocks, 108);
            Head { d, scales, mins: None, more: thirty_two_bytes(blocks, 0) }
        }
    }

    #[inline(always)]
    unsafe fn packed(blocks: &R::Blocks, pass: usize) -> [R; 8] {
        // SAFETY: 64 bytes of values behind the third bits (the caller).
        unsafe { thirty_two_bytes(blocks, 32 + 32 * pass) }
    }

    #[inline(always)]
    unsafe fn weights(third: &[R; 8], packed: &[R; 8], s: usize) -> [R; 8] {
        let mut w = *packed;
        for (w, &third) in w.iter_mut().zip(third) {
            // SAFETY: the caller's.
            *w = unsafe {
                let third = third.right(s).and(R::every(bytes(1))).left(2);
                w.right(s % 4 * 2).and(R::every(bytes(3))).or(third)
            };
        }
        w
    }
}
