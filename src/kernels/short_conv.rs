//! The short causal convolution of recurrent layers over a few or many tokens: the inputs before them come straight from the
//! state, and every snapshot goes straight to its place. ggml joins both in a copy first, and needs an op for each snapshot.
//! The bits of a token depend neither on how many come with it nor on the number of threads.

// Loads, stores and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::ffi::{c_int, c_void};
use std::ops::Range;

use ggml_sys as sys;

use super::Path;
use super::f32x16::{Lanes, on_lanes};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

/// Inputs that make an output: the token's own and those of the three before it.
const TAPS: usize = 4;
const PAST: usize = TAPS - 1;

/// Channels that are computed together.
const WIDTH: usize = 16;

/// One sequence. Strides are in floats.
struct Sequence {
    /// `[n_channels]` for each token.
    rows: *const f32,
    row_stride: usize,
    n_rows: usize,
    /// `[TAPS, n_channels]`, the last on the token itself.
    weights: *const f32,
    /// `[PAST, n_channels]`, the oldest first.
    past: *const f32,
    /// `[n_channels]` for each token.
    out: *mut f32,
    out_stride: usize,
    /// The newest snapshot, `[PAST, n_channels]`, and the way to the next older one.
    into: *mut f32,
    plane: usize,
    n_snapshots: usize,
}

/// Channels `part`, whole multiples of [`WIDTH`].
///
/// # Safety
/// All pointers are good for their sizes, `part` lies within the channels, the CPU has what `V` needs.
#[inline(always)]
unsafe fn channels<V: Lanes>(s: &Sequence, part: Range<usize>) {
    for first in part.step_by(WIDTH) {
        // SAFETY: `n` numbers for each channel.
        let column = |from: *const f32, n: usize, i: usize| unsafe {
            let values: [f32; WIDTH] = std::array::from_fn(|c| *from.add((first + c) * n + i));
            V::load(values.as_ptr())
        };
        let w: [V; TAPS] = std::array::from_fn(|i| column(s.weights, TAPS, i));
        let mut x: [V; PAST] = std::array::from_fn(|i| column(s.past, PAST, i));
        for t in 0..s.n_rows {
            // SAFETY: a row has all channels.
            let now = unsafe { V::load(s.rows.add(t * s.row_stride + first)) };
            let sum = now.mul_add(w[3], x[2].mul_add(w[2], x[1].mul_add(w[1], x[0].mul(w[0]))));
            // SAFETY: likewise.
            unsafe { sum.store(s.out.add(t * s.out_stride + first)) };
            x = [x[1], x[2], now];
            let back = s.n_rows - 1 - t;
            if back < s.n_snapshots {
                for (i, x) in x.iter().enumerate() {
                    let mut values = [0.0; WIDTH];
                    // SAFETY: sixteen floats.
                    unsafe { x.store(values.as_mut_ptr()) };
                    for (c, value) in values.into_iter().enumerate() {
                        // SAFETY: a snapshot has `PAST` numbers for each channel.
                        unsafe { *s.into.add(back * s.plane + (first + c) * PAST + i) = value };
                    }
                }
            }
        }
    }
}

on_lanes!(on_path, channels, (s: &Sequence, part: Range<usize>));

/// The share of thread `ith` of `nth` in the node `dst`.
///
/// # Safety
/// Called for a node that `Graph::short_conv` made, by each of `nth` threads; the path is available.
unsafe fn share(path: Path, dst: &sys::ggml_tensor, ith: usize, nth: usize) {
    // SAFETY: the node has four operands.
    let [rows, past, w, into] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    let [n_channels, n_rows, n_seqs, _] = rows.ne.map(|n| n as usize);
    let floats = |bytes: usize| bytes / size_of::<f32>();
    let n = n_channels / WIDTH;
    let part = WIDTH * (n * ith / nth)..WIDTH * (n * (ith + 1) / nth);
    for seq in 0..n_seqs {
        let sequence = Sequence {
            rows: rows.data.cast::<f32>().wrapping_add(seq * floats(rows.nb[2])),
            row_stride: floats(rows.nb[1]),
            n_rows,
            weights: w.data.cast(),
            past: past.data.cast::<f32>().wrapping_add(seq * floats(past.nb[2])),
            out: dst.data.cast::<f32>().wrapping_add(seq * floats(dst.nb[2])),
            out_stride: floats(dst.nb[1]),
            into: into.data.cast::<f32>().wrapping_add(seq * floats(into.nb[1])),
            plane: floats(into.nb[2]),
            n_snapshots: into.ne[2] as usize,
        };
        // SAFETY: shapes were checked when the node was made; channels are this thread's.
        unsafe { on_path(path, &sequence, part.clone()) }
    }
}

/// # Safety
/// As [`share`].
unsafe extern "C" fn short_conv(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let Some(path) = Path::chosen() else { return };
    // SAFETY: the node is alive; the caller's promise.
    unsafe { share(path, &*dst, ith as usize, nth as usize) }
}

impl<'g> Graph<'g> {
    /// [`Graph::ssm_conv`] over `past: [3, n_channels, n_seqs]`, time fastest, and `rows: [n_channels, n_tokens, n_seqs]` after
    /// it; `w: [4, n_channels]`. The last three inputs as they were after the last tokens go to `into: [3 * n_channels,
    /// n_seqs, n_snapshots]`, a window on a state, newest first; no weight. Gives `[n_channels, n_tokens, n_seqs]`. `past` may lie in
    /// the same buffer, and each sequence's in the place of a snapshot of itself, but of no other. `None` where there is no
    /// kernel for these operands.
    pub fn short_conv(
        &self,
        rows: Tensor<'g>,
        past: Tensor<'g>,
        w: Tensor<'g>,
        into: Tensor<'g>,
    ) -> Option<Tensor<'g>> {
        let [n_channels, n_tokens, n_seqs, one] = rows.ne();
        let past_ne = [PAST as i64, n_channels, n_seqs, 1];
        let fits = one == 1
            && n_channels % WIDTH as i64 == 0
            && past.ne() == past_ne
            && w.ne() == [TAPS as i64, n_channels, 1, 1]
            && into.ne()[..2] == [past_ne[0] * n_channels, n_seqs]
            // Fewer would leave planes as they are, which nobody expects.
            && (1..=n_tokens).contains(&into.ne()[2])
            && into.ne()[3] == 1;
        let all = [rows, past, w, into];
        let in_rows = |t: Tensor<'g>| t.dtype() == Dtype::F32 && t.nb()[0] == 4;
        let served = fits
            && all.into_iter().all(in_rows)
            && past.nb()[1] == 4 * PAST
            && w.nb()[1] == 4 * TAPS
            && into.lies_on_host()
            && Path::chosen().is_some()
            && self.check_writable("short_conv", "into", into);
        served.then(|| self.custom("short_conv", Dtype::F32, [n_channels, n_tokens, n_seqs, 1], &all, short_conv))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_gives_the_bits_of_a_plain_sum_and_the_last_inputs() {
        let n_channels = 32;
        let value = |i: usize| ((i * 7919 % 1013) as f32 - 500.0) / 311.0;
        let (w, past): (Vec<f32>, Vec<f32>) =
            ((0..n_channels * TAPS).map(value).collect(), (5..5 + n_channels * PAST).map(value).collect());
        for path in Path::available() {
            for (n_rows, n_snapshots) in [(1, 1), (3, 3), (6, 2)] {
                let rows: Vec<f32> = (9..9 + n_rows * n_channels).map(value).collect();
                let (mut out, mut into) = (vec![0.0; n_rows * n_channels], vec![0.0; n_snapshots * PAST * n_channels]);
                let sequence = Sequence {
                    rows: rows.as_ptr(),
                    row_stride: n_channels,
                    n_rows,
                    weights: w.as_ptr(),
                    past: past.as_ptr(),
                    out: out.as_mut_ptr(),
                    out_stride: n_channels,
                    into: into.as_mut_ptr(),
                    plane: PAST * n_channels,
                    n_snapshots,
                };
                // SAFETY: everything has the sizes said above; the path is available.
                unsafe { on_path(path, &sequence, 0..n_channels) };
                for c in 0..n_channels {
                    let mut x: Vec<f32> = past[c * PAST..][..PAST].to_vec();
                    x.extend((0..n_rows).map(|t| rows[t * n_channels + c]));
                    let w = &w[c * TAPS..][..TAPS];
                    for t in 0..n_rows {
                        let x = &x[t..][..TAPS];
                        let sum = x[3].mul_add(w[3], x[2].mul_add(w[2], x[1].mul_add(w[1], x[0] * w[0])));
                        assert_eq!(out[t * n_channels + c].to_bits(), sum.to_bits(), "{path:?}, channel {c}, row {t}");
                    }
                    for back in 0..n_snapshots {
                        let last = &into[(back * n_channels + c) * PAST..][..PAST];
                        assert_eq!(last, &x[n_rows - back..][..PAST], "{path:?}, channel {c}, {back} back");
                    }
                }
            }
        }
    }
}
