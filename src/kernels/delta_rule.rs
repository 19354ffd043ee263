//! The gated delta rule over a few or many tokens, with every snapshot written where it is to lie.
//!
//! A row of a head's state (one value, all keys) depends on no other row: it is loaded once, goes through all tokens in
//! registers, and each wanted snapshot of it is stored straight into the planes. ggml's op copies the state in, each
//! snapshot out, and needs another op to bring them to their places. The bits of a token depend neither on how many come
//! with it nor on the number of threads.

// Loads, stores and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::ffi::{c_int, c_void};
use std::ops::Range;

use ggml_sys as sys;

use super::Path;
use super::f32x16::{self as lanes, Lanes, on_lanes};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};
use crate::ops::DeltaRule;

/// Rows that go through the tokens together, so that one's sums are made while the other's wait.
const TOGETHER: usize = 2;

/// Bytes of a sequence's state in one layer from which it will have left the caches before it is read again: other layers
/// have as much, and the weights come between.
const LARGE: usize = 256 << 10;

/// What a token does to one head.
#[derive(Clone, Copy, Default)]
struct Token {
    decay: f32,
    beta: f32,
    /// Its key times its query.
    key_query: f32,
}

/// One head of one sequence. Strides are in floats.
struct Head<'a> {
    tokens: &'a mut [Token],
    /// `[s]` for each token.
    q: Rows,
    k: Rows,
    v: Rows,
    /// Outputs, `[s]` for each token.
    out: *mut f32,
    out_stride: usize,
    /// The state before the first token, `[s, s]`.
    from: *const f32,
    /// The newest snapshot.
    into: *mut f32,
    /// From one snapshot to the next older one.
    plane: usize,
    n_snapshots: usize,
    /// Snapshots go past the caches.
    streams: bool,
}

/// A row for each token.
#[derive(Clone, Copy)]
struct Rows {
    data: *const f32,
    stride: usize,
}

impl Rows {
    /// Those of head `h` of sequence `seq`.
    fn of(t: &sys::ggml_tensor, h: usize, seq: usize) -> Self {
        let data = t.data.cast::<u8>().wrapping_add(h * t.nb[1] + seq * t.nb[3]);
        Self { data: data.cast_const().cast(), stride: t.nb[2] / size_of::<f32>() }
    }

    fn row(self, token: usize) -> *const f32 {
        self.data.wrapping_add(token * self.stride)
    }
}

/// Rows `rows` of the head's state, `s = 16 * N`, an even number of them.
///
/// # Safety
/// All pointers are good for their sizes, `rows` are below `s`, the CPU has what `V` needs.
#[inline(always)]
unsafe fn rows<V: Lanes, const N: usize>(head: &mut Head<'_>, rows: Range<usize>) {
    let s = 16 * N;
    let scale = 1.0 / (s as f32).sqrt();
    for (t, token) in head.tokens.iter_mut().enumerate() {
        let mut sums = [V::zero(); 2];
        for i in 0..N {
            // SAFETY: `s` floats each.
            let (k, q) = unsafe { (V::load(head.k.row(t).add(16 * i)), V::load(head.q.row(t).add(16 * i))) };
            sums[i % 2] = k.mul_add(q, sums[i % 2]);
        }
        token.key_query = sums[0].add(sums[1]).sum();
    }
    let n_tokens = head.tokens.len();
    for j in rows.step_by(TOGETHER) {
        let mut m = [[V::zero(); N]; TOGETHER];
        for (r, m) in m.iter_mut().enumerate() {
            for (i, m) in m.iter_mut().enumerate() {
                // SAFETY: a row has `s` floats.
                *m = unsafe { V::load(head.from.add((j + r) * s + 16 * i)) };
            }
        }
        for (t, token) in head.tokens.iter().enumerate() {
            let (k, q) = (head.k.row(t), head.q.row(t));
            let mut of_k = [[V::zero(); 2]; TOGETHER];
            let mut of_q = [[V::zero(); 2]; TOGETHER];
            for i in 0..N {
                // SAFETY: `s` floats each.
                let (k, q) = unsafe { (V::load(k.add(16 * i)), V::load(q.add(16 * i))) };
                for r in 0..TOGETHER {
                    of_k[r][i % 2] = m[r][i].mul_add(k, of_k[r][i % 2]);
                    of_q[r][i % 2] = m[r][i].mul_add(q, of_q[r][i % 2]);
                }
            }
            let decay = V::all(token.decay);
            for (r, m) in m.iter_mut().enumerate() {
                let (of_k, of_q) = (of_k[r][0].add(of_k[r][1]).sum(), of_q[r][0].add(of_q[r][1]).sum());
                // SAFETY: `s` values of the token.
                let v = unsafe { *head.v.row(t).add(j + r) };
                let update = (v - token.decay * of_k) * token.beta;
                // The new state times the query, without another sum over the row.
                let o = token.decay * of_q + update * token.key_query;
                // SAFETY: `s` outputs of the token.
                unsafe { *head.out.add(t * head.out_stride + j + r) = o * scale };
                let update = V::all(update);
                for (i, m) in m.iter_mut().enumerate() {
                    // SAFETY: `s` floats.
                    let k = unsafe { V::load(k.add(16 * i)) };
                    *m = k.mul_add(update, m.mul(decay));
                }
            }
            let back = n_tokens - 1 - t;
            if back < head.n_snapshots {
                let into = head.into.wrapping_add(back * head.plane + j * s);
                for (i, m) in m.as_flattened().iter().enumerate() {
                    // SAFETY: a snapshot has `s` rows of `s` floats.
                    unsafe { if head.streams { m.stream(into.add(16 * i)) } else { m.store(into.add(16 * i)) } };
                }
            }
        }
    }
}

on_lanes!(on_path, rows<const N>, (head: &mut Head<'_>, part: Range<usize>));

/// The share of thread `ith` of `nth` in the node `dst`.
///
/// # Safety
/// Called for a node that `Graph::delta_rule` made, by each of `nth` threads; the path is available.
unsafe fn share(path: Path, dst: &sys::ggml_tensor, ith: usize, nth: usize) {
    // SAFETY: the node has seven operands.
    let [q, k, v, g, beta, state, into] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    let [s, n_heads, n_tokens, n_seqs] = v.ne.map(|n| n as usize);
    let mut tokens = vec![Token::default(); n_tokens];
    let n = n_seqs * n_heads * s / TOGETHER;
    // Whole 64 bytes from an even start.
    let streams = into.nb[1] >= LARGE && [into.data as usize, into.nb[1], into.nb[2]].iter().all(|n| n % 64 == 0);
    let mut row = TOGETHER * (n * ith / nth);
    let end = TOGETHER * (n * (ith + 1) / nth);
    while row < end {
        let (seq, h, first) = (row / s / n_heads, row / s % n_heads, row % s);
        let last = s.min(first + end - row);
        row += last - first;
        let gate = |t: &sys::ggml_tensor, token: usize| {
            let at = h * t.nb[1] + token * t.nb[2] + seq * t.nb[3];
            // SAFETY: a number for each head, token and sequence.
            unsafe { *t.data.cast::<u8>().add(at).cast::<f32>() }
        };
        for (i, token) in tokens.iter_mut().enumerate() {
            (token.decay, token.beta) = (gate(g, i).exp(), gate(beta, i));
        }
        let of_keys = h % q.ne[1] as usize;
        let at = h * s * s;
        let mut head = Head {
            tokens: &mut tokens,
            q: Rows::of(q, of_keys, seq),
            k: Rows::of(k, of_keys, seq),
            v: Rows::of(v, h, seq),
            out: dst.data.cast::<f32>().wrapping_add((seq * n_tokens * n_heads + h) * s),
            out_stride: n_heads * s,
            from: state.data.cast::<f32>().wrapping_add(at + seq * state.nb[3] / size_of::<f32>()),
            into: into.data.cast::<f32>().wrapping_add(at + seq * into.nb[1] / size_of::<f32>()),
            plane: into.nb[2] / size_of::<f32>(),
            n_snapshots: into.ne[2] as usize,
            streams,
        };
        // SAFETY: shapes were checked when the node was made; rows are this thread's.
        unsafe {
            match s {
                16 => on_path::<1>(path, &mut head, first..last),
                32 => on_path::<2>(path, &mut head, first..last),
                64 => on_path::<4>(path, &mut head, first..last),
                _ => on_path::<8>(path, &mut head, first..last),
            }
        }
    }
    if streams {
        lanes::fence();
    }
}

/// # Safety
/// As [`share`].
unsafe extern "C" fn delta_rule(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let Some(path) = Path::chosen() else { return };
    // SAFETY: the node is alive; the caller's promise.
    unsafe { share(path, &*dst, ith as usize, nth as usize) }
}

impl<'g> Graph<'g> {
    /// [`Graph::gated_delta_net`] whose snapshots go to `into: [s * s * n_heads, n_seqs, n_snapshots]`, a window on a state,
    /// newest first and no weight; gives the outputs `[s * n_heads, n_tokens * n_seqs]`. `state` may lie in the same buffer, and each of
    /// its rows in the place of a snapshot of itself, but of no other. `None` where there is no kernel for these operands.
    pub fn delta_rule(&self, x: &DeltaRule<'g>, into: Tensor<'g>) -> Option<Tensor<'g>> {
        let [s, n_heads, n_tokens, n_seqs] = x.v.ne();
        let all = [x.q, x.k, x.v, x.g, x.beta, x.state, into];
        let fits = x.fits()
            && into.ne()[..2] == [s * s * n_heads, n_seqs]
            // Fewer would leave planes as they are, which nobody expects.
            && (1..=n_tokens).contains(&into.ne()[2])
            && into.ne()[3] == 1;
        let in_rows = |t: Tensor<'g>| t.dtype() == Dtype::F32 && t.nb()[0] == 4;
        let whole = |t: Tensor<'g>, n: i64| t.nb()[1] == 4 * s as usize && t.nb()[2] == 4 * n as usize;
        let served = matches!(s, 16 | 32 | 64 | 128)
            && fits
            && all.into_iter().all(in_rows)
            && whole(x.state, s * s)
            && into.lies_on_host()
            && Path::chosen().is_some()
            && self.check_writable("delta_rule", "into", into);
        served.then(|| self.custom("delta_rule", Dtype::F32, [s * n_heads, n_tokens * n_seqs, 1, 1], &all, delta_rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outputs and snapshots of one head of `16 * N`, by one path.
    fn computed<const N: usize>(path: Path, n_tokens: usize, n_snapshots: usize) -> Vec<u32> {
        let s = 16 * N;
        let mut seed = 7u32;
        let mut noise = |n: usize| -> Vec<f32> {
            let mut next = || {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 8) as f32 / 8_388_608.0 - 1.0
            };
            (0..n).map(|_| next()).collect()
        };
        let (q, k, v, from) = (noise(s * n_tokens), noise(s * n_tokens), noise(s * n_tokens), noise(s * s));
        let gates = noise(2 * n_tokens);
        let token = |g: &[f32]| Token { decay: (g[0] - 1.0).exp(), beta: g[1].abs(), key_query: 0.0 };
        let mut tokens: Vec<Token> = gates.chunks(2).map(token).collect();
        let (mut out, mut into) = (vec![0.0; s * n_tokens], vec![0.0; s * s * n_snapshots]);
        let of = |x: &[f32]| Rows { data: x.as_ptr(), stride: s };
        let mut head = Head {
            tokens: &mut tokens,
            q: of(&q),
            k: of(&k),
            v: of(&v),
            out: out.as_mut_ptr(),
            out_stride: s,
            from: from.as_ptr(),
            into: into.as_mut_ptr(),
            plane: s * s,
            n_snapshots,
            streams: false,
        };
        // SAFETY: everything has the sizes said above; the path is available.
        unsafe { on_path::<N>(path, &mut head, 0..s) };
        out.iter().chain(&into).map(|x| x.to_bits()).collect()
    }

    #[test]
    fn every_path_gives_the_same_bits() {
        for path in Path::available() {
            for (n_tokens, n_snapshots) in [(1, 1), (5, 5), (7, 2), (40, 1)] {
                assert_eq!(
                    computed::<1>(path, n_tokens, n_snapshots),
                    computed::<1>(Path::Scalar, n_tokens, n_snapshots)
                );
                assert_eq!(
                    computed::<8>(path, n_tokens, n_snapshots),
                    computed::<8>(Path::Scalar, n_tokens, n_snapshots)
                );
            }
        }
    }
}
