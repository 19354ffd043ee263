//! The short causal convolution of recurrent layers over a few or many tokens: the inputs before them come straight from the
//! state, and every snapshot goes straight to its place. ggml joins both in a copy first, and needs an op for each snapshot.
//! The bits of a token depend neither on how many come with it nor on the number of threads.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use ggml_sys as sys;

use crate::f32x16::{F32x16, by_isa};
use crate::isa::Isa;
use crate::which::Which;

/// The parameter that tells [`short_conv`] from other nodes with functions, as [`crate::DELTA_RULE`] does.
pub const SHORT_CONV: i32 = 0x636f_6e76;

/// Inputs that make an output: the token's own and those of [`PAST`] before it.
pub const TAPS: usize = 4;
/// Inputs that a sequence keeps from before the first token.
pub const PAST: usize = TAPS - 1;

/// Channels that are computed together.
pub const CHANNELS_AT_ONCE: usize = 16;

/// One sequence. Strides are in floats.
struct Sequence {
    /// `[n_channels]` for each token.
    inputs: *const f32,
    input_stride: usize,
    n_tokens: usize,
    /// `[TAPS, n_channels]`, the last on the token itself.
    weights: *const f32,
    /// `[PAST, n_channels]`, the oldest first.
    past: *const f32,
    /// `[n_channels]` for each token.
    out: *mut f32,
    out_stride: usize,
    /// The newest snapshot, `[PAST, n_channels]`, and the way to the next older one.
    into: *mut f32,
    snapshot_stride: usize,
    n_snapshots: usize,
}

/// Tokens that go through all channels before the next ones: those of one lie a page or more from those of the next, and a processor
/// has few pages at hand.
const TOGETHER: usize = 32;

/// Channels `part`, whole multiples of [`CHANNELS_AT_ONCE`].
///
/// # Safety
/// All pointers are good for their sizes, `part` lies within the channels, the CPU has what `V` needs.
#[inline(always)]
unsafe fn channels<V: F32x16>(s: &Sequence, part: Range<usize>) {
    for begin in (0..s.n_tokens).step_by(TOGETHER) {
        for first in part.clone().step_by(CHANNELS_AT_ONCE) {
            // SAFETY: `n` numbers for each channel.
            let column = |from: *const f32, n: usize, i: usize| unsafe {
                let values: [f32; CHANNELS_AT_ONCE] = std::array::from_fn(|c| *from.add((first + c) * n + i));
                V::load(values.as_ptr())
            };
            // SAFETY: a token has all channels.
            let input = |t: usize| unsafe { V::load(s.inputs.add(t * s.input_stride + first)) };
            let w: [V; TAPS] = std::array::from_fn(|i| column(s.weights, TAPS, i));
            let mut x: [V; PAST] = std::array::from_fn(|i| match begin {
                0 => column(s.past, PAST, i),
                _ => input(begin + i - PAST),
            });
            for t in begin..s.n_tokens.min(begin + TOGETHER) {
                let now = input(t);
                let sum = now.mul_add(w[3], x[2].mul_add(w[2], x[1].mul_add(w[1], x[0].mul(w[0]))));
                // SAFETY: likewise, in the outputs.
                unsafe { sum.store(s.out.add(t * s.out_stride + first)) };
                x = [x[1], x[2], now];
                let back = s.n_tokens - 1 - t;
                if back < s.n_snapshots {
                    for (i, x) in x.iter().enumerate() {
                        let mut values = [0.0; CHANNELS_AT_ONCE];
                        // SAFETY: sixteen floats.
                        unsafe { x.store(values.as_mut_ptr()) };
                        for (c, value) in values.into_iter().enumerate() {
                            // SAFETY: a snapshot has `PAST` numbers for each channel.
                            unsafe { *s.into.add(back * s.snapshot_stride + (first + c) * PAST + i) = value };
                        }
                    }
                }
            }
        }
    }
}

by_isa!(on_isa, channels, (s: &Sequence, part: Range<usize>));

/// What thread `ith` of `nth` computes of the node `dst`.
///
/// # Safety
/// As [`short_conv`]; `isa` is available.
unsafe fn on_thread(isa: Isa, dst: &sys::ggml_tensor, ith: usize, nth: usize) {
    // SAFETY: the node has four operands.
    let [inputs, past, w, into] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    // SAFETY: the fifth operand is null or has a number for each sequence.
    let which = unsafe { Which::of(dst.src[4]) };
    let [n_channels, n_tokens, n_seqs, _] = inputs.ne.map(|n| n as usize);
    let floats = |bytes: usize| bytes / size_of::<f32>();
    let n = n_channels / CHANNELS_AT_ONCE;
    let part = CHANNELS_AT_ONCE * (n * ith / nth)..CHANNELS_AT_ONCE * (n * (ith + 1) / nth);
    for seq in 0..n_seqs {
        let sequence = Sequence {
            inputs: inputs.data.cast::<f32>().wrapping_add(seq * floats(inputs.nb[2])),
            input_stride: floats(inputs.nb[1]),
            n_tokens,
            weights: w.data.cast(),
            past: past.data.cast::<f32>().wrapping_add(which.state(seq) * floats(past.nb[2])),
            out: dst.data.cast::<f32>().wrapping_add(seq * floats(dst.nb[2])),
            out_stride: floats(dst.nb[1]),
            into: into.data.cast::<f32>().wrapping_add(seq * floats(into.nb[1])),
            snapshot_stride: floats(into.nb[2]),
            n_snapshots: into.ne[2] as usize,
        };
        // SAFETY: shapes were checked when the node was made; channels are this thread's.
        unsafe { on_isa(isa, &sequence, part.clone()) }
    }
}

/// `src[0]: [n_channels, n_tokens, n_seqs]` inputs, `src[1]: [PAST, n_channels, n_seqs]` those before them, `src[2]: [TAPS,
/// n_channels]` weights, all F32, give `dst: [n_channels, n_tokens, n_seqs]`; the last [`PAST`] inputs as they were after
/// the last tokens go to `src[3]: [PAST * n_channels, n_seqs, n_snapshots]`, newest first. With `src[4]: i32 [n_seqs]` there
/// may be more of those before them, and these are the numbers of those that the sequences have.
///
/// # Safety
/// The node contract; `n_channels` is a multiple of [`CHANNELS_AT_ONCE`], there are 1 to `n_tokens` snapshots, and `src[3]`
/// may be written.
pub unsafe extern "C" fn short_conv(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let Some(isa) = Isa::chosen() else { return };
    // SAFETY: the node contract, handed on: the node is alive.
    unsafe { on_thread(isa, &*dst, ith as usize, nth as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_gives_the_bits_of_a_plain_sum_and_the_last_inputs() {
        let n_channels = 32;
        let value = |i: usize| ((i * 7919 % 1013) as f32 - 500.0) / 311.0;
        let (w, past): (Vec<f32>, Vec<f32>) =
            ((0..n_channels * TAPS).map(value).collect(), (5..5 + n_channels * PAST).map(value).collect());
        for isa in Isa::available() {
            for (n_tokens, n_snapshots) in [(1, 1), (3, 3), (6, 2), (34, 5), (70, 1)] {
                let inputs: Vec<f32> = (9..9 + n_tokens * n_channels).map(value).collect();
                let (mut out, mut into) =
                    (vec![0.0; n_tokens * n_channels], vec![0.0; n_snapshots * PAST * n_channels]);
                let sequence = Sequence {
                    inputs: inputs.as_ptr(),
                    input_stride: n_channels,
                    n_tokens,
                    weights: w.as_ptr(),
                    past: past.as_ptr(),
                    out: out.as_mut_ptr(),
                    out_stride: n_channels,
                    into: into.as_mut_ptr(),
                    snapshot_stride: PAST * n_channels,
                    n_snapshots,
                };
                // SAFETY: everything has the sizes said above; the instruction set is available.
                unsafe { on_isa(isa, &sequence, 0..n_channels) };
                for c in 0..n_channels {
                    let mut x: Vec<f32> = past[c * PAST..][..PAST].to_vec();
                    x.extend((0..n_tokens).map(|t| inputs[t * n_channels + c]));
                    let w = &w[c * TAPS..][..TAPS];
                    for t in 0..n_tokens {
                        let x = &x[t..][..TAPS];
                        let sum = x[3].mul_add(w[3], x[2].mul_add(w[2], x[1].mul_add(w[1], x[0] * w[0])));
                        assert_eq!(out[t * n_channels + c].to_bits(), sum.to_bits(), "{isa:?}, channel {c}, token {t}");
                    }
                    for back in 0..n_snapshots {
                        let last = &into[(back * n_channels + c) * PAST..][..PAST];
                        assert_eq!(last, &x[n_tokens - back..][..PAST], "{isa:?}, channel {c}, {back} back");
                    }
                }
            }
        }
    }
}
