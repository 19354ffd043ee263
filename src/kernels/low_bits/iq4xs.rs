//! `IQ4XS`: nibbles that choose among [`iq4nl::VALUES`], 16 bytes for 32 values, with a scale of six bits, less 32.

use super::layout::{Head, Layout, Register, bytes};
use crate::weight_type::{WeightType, iq4nl};

/// See above.
pub(crate) struct Iq4Xs;

/// What nibbles stand for, without a sign.
const VALUES: [u8; 16] = {
    let mut values = [0; 16];
    let mut i = 0;
    while i < 16 {
        values[i] = iq4nl::VALUES[i] as u8 ^ 0x80;
        i += 1;
    }
    values
};

impl<R: Register> Layout<R> for Iq4Xs {
    const TYPE: WeightType = WeightType::IQ4XS;
    const BIAS: u8 = 128;
    const MOST: usize = 241;
    const PASSES: usize = 8;
    type More = ();
    type Packed = [R; 4];

    #[inline(always)]
    unsafe fn head(blocks: &R::Blocks) -> Head<R, ()> {
        // SAFETY: the factor, upper pairs of bits in two bytes, and nibbles in four (the caller).
        unsafe {
            let both = R::word(blocks, 0);
            let (high, low) = (both.right(16), R::word(blocks, 4));
            let mut scales = [low; 4];
            for (i, scales) in scales.iter_mut().enumerate() {
                let (low, high) = (low.right(8 * i), high.right(4 * i));
                let low = low.and(R::every(15)).or(low.left(12).and(R::every(15 << 16)));
                let high = high.left(4).and(R::every(0x30)).or(high.left(18).and(R::every(0x30 << 16)));
                let six = low.or(high);
                *scales = six.or(six.left(8)).sub_bytes(R::every(bytes(32)));
            }
            let d = both.low_half();
            Head { d, scales, mins: None, more: () }
        }
    }

    #[inline(always)]
    unsafe fn packed(blocks: &R::Blocks, pass: usize) -> [R; 4] {
        // SAFETY: 128 bytes of nibbles (the caller).
        unsafe { R::sixteen_bytes(blocks, 8 + 16 * pass) }
    }

    #[inline(always)]
    unsafe fn weights((): &(), packed: &[R; 4], _: usize) -> [R; 8] {
        let [a, b, c, d] = *packed;
        let mut w = [a, b, c, d, a, b, c, d];
        for (i, w) in w.iter_mut().enumerate() {
            // SAFETY: the caller's.
            *w = unsafe { w.right(i / 4 * 4).and(R::every(bytes(15))).look_up(&VALUES) };
        }
        w
    }
}
