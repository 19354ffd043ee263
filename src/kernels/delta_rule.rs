//! The gated delta rule over a few or many tokens, with every snapshot written where it is to lie.
//!
//! A row of a head's state (one value, all keys) depends on no other row: it is loaded once, goes through all tokens in
//! registers, and each wanted snapshot of it is stored straight into the planes. ggml's op copies the state in, each
//! snapshot out, and needs another op to bring them to their places. The bits of a token depend neither on how many come
//! with it nor on the number of threads.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use ggml_sys as sys;

use crate::f32x16::{F32x16, by_isa, fence};
use crate::isa::Isa;
use crate::which::Which;

/// The parameter that tells [`delta_rule`] from other nodes with functions, at [`crate::FIRST_PARAMETER`]: a device that computes
/// it by itself is `vendor/ggml-sys/cuda/states.cu`.
pub const DELTA_RULE: i32 = 0x6465_6c74;

/// Rows of the state that go through the tokens together, so that one's sums are made while the other's wait.
const ROWS_AT_ONCE: usize = 2;

/// Sizes of a head that the kernel serves.
pub const HEAD_SIZES: [i64; 4] = [16, 32, 64, 128];

/// Bytes of a sequence's state in one layer from which it will have left the caches before it is read again: other layers
/// have as much, and the weights come between.
const LARGE: usize = 256 << 10;

/// What a token does to one head.
#[derive(Clone, Copy, Default)]
struct TokenFactors {
    decay: f32,
    beta: f32,
    /// Its key times its query.
    key_query: f32,
}

/// One head of one sequence. Strides are in floats.
struct Head<'a> {
    tokens: &'a mut [TokenFactors],
    /// `[s]` for each token.
    q: PerToken,
    k: PerToken,
    v: PerToken,
    /// Outputs, `[s]` for each token.
    out: *mut f32,
    out_stride: usize,
    /// The state before the first token, `[s, s]`.
    from: *const f32,
    /// The newest snapshot.
    into: *mut f32,
    /// From one snapshot to the next older one.
    snapshot_stride: usize,
    n_snapshots: usize,
    /// Snapshots go past the caches.
    streams: bool,
}

/// A vector for each token.
#[derive(Clone, Copy)]
struct PerToken {
    data: *const f32,
    stride: usize,
}

impl PerToken {
    /// Those of head `h` of sequence `seq`.
    fn of(t: &sys::ggml_tensor, h: usize, seq: usize) -> Self {
        let data = t.data.cast::<u8>().wrapping_add(h * t.nb[1] + seq * t.nb[3]);
        Self { data: data.cast_const().cast(), stride: t.nb[2] / size_of::<f32>() }
    }

    fn of_token(self, token: usize) -> *const f32 {
        self.data.wrapping_add(token * self.stride)
    }
}

/// Rows `rows` of the head's state, `s = 16 * N`, an even number of them.
///
/// # Safety
/// All pointers are good for their sizes, `rows` are below `s`, the CPU has what `V` needs.
#[inline(always)]
unsafe fn state_rows<V: F32x16, const N: usize>(head: &mut Head<'_>, rows: Range<usize>) {
    let s = 16 * N;
    let scale = 1.0 / (s as f32).sqrt();
    for (t, token) in head.tokens.iter_mut().enumerate() {
        let mut sums = [V::zero(); 2];
        for i in 0..N {
            // SAFETY: `s` floats each.
            let (k, q) = unsafe { (V::load(head.k.of_token(t).add(16 * i)), V::load(head.q.of_token(t).add(16 * i))) };
            sums[i % 2] = k.mul_add(q, sums[i % 2]);
        }
        token.key_query = sums[0].add(sums[1]).sum();
    }
    let n_tokens = head.tokens.len();
    for j in rows.step_by(ROWS_AT_ONCE) {
        let mut m = [[V::zero(); N]; ROWS_AT_ONCE];
        for (r, m) in m.iter_mut().enumerate() {
            for (i, m) in m.iter_mut().enumerate() {
                // SAFETY: a row has `s` floats.
                *m = unsafe { V::load(head.from.add((j + r) * s + 16 * i)) };
            }
        }
        for (t, token) in head.tokens.iter().enumerate() {
            let (k, q) = (head.k.of_token(t), head.q.of_token(t));
            let mut of_k = [[V::zero(); 2]; ROWS_AT_ONCE];
            let mut of_q = [[V::zero(); 2]; ROWS_AT_ONCE];
            for i in 0..N {
                // SAFETY: `s` floats each.
                let (k, q) = unsafe { (V::load(k.add(16 * i)), V::load(q.add(16 * i))) };
                for r in 0..ROWS_AT_ONCE {
                    of_k[r][i % 2] = m[r][i].mul_add(k, of_k[r][i % 2]);
                    of_q[r][i % 2] = m[r][i].mul_add(q, of_q[r][i % 2]);
                }
            }
            let decay = V::all(token.decay);
            for (r, m) in m.iter_mut().enumerate() {
                let (of_k, of_q) = (of_k[r][0].add(of_k[r][1]).sum(), of_q[r][0].add(of_q[r][1]).sum());
                // SAFETY: `s` values of the token.
                let v = unsafe { *head.v.of_token(t).add(j + r) };
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
                let into = head.into.wrapping_add(back * head.snapshot_stride + j * s);
                for (i, m) in m.as_flattened().iter().enumerate() {
                    // SAFETY: a snapshot has `s` rows of `s` floats.
                    unsafe { if head.streams { m.stream(into.add(16 * i)) } else { m.store(into.add(16 * i)) } };
                }
            }
        }
    }
}

by_isa!(on_isa, state_rows<const N>, (head: &mut Head<'_>, part: Range<usize>));

/// [`on_isa`] for heads of `s`, one of [`HEAD_SIZES`].
///
/// # Safety
/// As [`on_isa`].
unsafe fn of_size(isa: Isa, s: usize, head: &mut Head<'_>, rows: Range<usize>) {
    // SAFETY: as for this function.
    unsafe {
        match s {
            16 => on_isa::<1>(isa, head, rows),
            32 => on_isa::<2>(isa, head, rows),
            64 => on_isa::<4>(isa, head, rows),
            _ => on_isa::<8>(isa, head, rows),
        }
    }
}

/// What thread `ith` of `nth` computes of the node `dst`.
///
/// # Safety
/// As [`delta_rule`]; `isa` is available.
unsafe fn on_thread(isa: Isa, dst: &sys::ggml_tensor, ith: usize, nth: usize) {
    // SAFETY: the node has seven operands.
    let [q, k, v, g, beta, state, into] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    // SAFETY: the eighth operand is null or has a number for each sequence.
    let which = unsafe { Which::of(dst.src[7]) };
    let [s, n_heads, n_tokens, n_seqs] = v.ne.map(|n| n as usize);
    let mut tokens = vec![TokenFactors::default(); n_tokens];
    let n = n_seqs * n_heads * s / ROWS_AT_ONCE;
    // Whole 64 bytes from an even start.
    let streams = into.nb[1] >= LARGE && [into.data as usize, into.nb[1], into.nb[2]].iter().all(|n| n % 64 == 0);
    let mut row = ROWS_AT_ONCE * (n * ith / nth);
    let end = ROWS_AT_ONCE * (n * (ith + 1) / nth);
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
            q: PerToken::of(q, of_keys, seq),
            k: PerToken::of(k, of_keys, seq),
            v: PerToken::of(v, h, seq),
            out: dst.data.cast::<f32>().wrapping_add((seq * n_tokens * n_heads + h) * s),
            out_stride: n_heads * s,
            from: state.data.cast::<f32>().wrapping_add(at + which.state(seq) * state.nb[3] / size_of::<f32>()),
            into: into.data.cast::<f32>().wrapping_add(at + seq * into.nb[1] / size_of::<f32>()),
            snapshot_stride: into.nb[2] / size_of::<f32>(),
            n_snapshots: into.ne[2] as usize,
            streams,
        };
        // SAFETY: shapes were checked when the node was made; rows are this thread's.
        unsafe { of_size(isa, s, &mut head, first..last) };
    }
    if streams {
        fence();
    }
}

/// `src`: queries and keys `[s, n_k_heads, n_tokens, n_seqs]`, values `[s, n_v_heads, n_tokens, n_seqs]`, logarithms of
/// decays and betas `[1, n_v_heads, n_tokens, n_seqs]`, the state `[s, s, n_v_heads, n_seqs]`, all F32, give
/// `dst: [s * n_v_heads, n_tokens * n_seqs]`; snapshots of the state go to `src[6]: [s * s * n_v_heads, n_seqs,
/// n_snapshots]`, newest first. With `src[7]: i32 [n_seqs]` there may be more states, and these are the numbers of those
/// that the sequences have.
///
/// # Safety
/// The node contract; `s` is one of [`HEAD_SIZES`], there are 1 to `n_tokens` snapshots, and `src[6]` may be written.
pub unsafe extern "C" fn delta_rule(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let Some(isa) = Isa::chosen() else { return };
    // SAFETY: the node contract, handed on: the node is alive.
    unsafe { on_thread(isa, &*dst, ith as usize, nth as usize) }
}

/// What one head of size `s` works on.
pub struct OneHead<'a> {
    /// Queries, `s` for each token.
    pub q: &'a [f32],
    /// Keys, likewise.
    pub k: &'a [f32],
    /// Values, likewise.
    pub v: &'a [f32],
    /// Decay (not its logarithm) and beta of each token.
    pub gates: &'a [(f32, f32)],
    /// Before the first token, `[s, s]`.
    pub state: &'a [f32],
}

/// One head over slices: outputs of each token to `out`, snapshots to `snapshots`, the newest first.
///
/// # Panics
/// A slice has another length, `s` is none of [`HEAD_SIZES`], or the CPU lacks `isa`.
pub fn one_head(isa: Isa, s: usize, x: &OneHead<'_>, out: &mut [f32], snapshots: &mut [f32]) {
    let n_snapshots = snapshots.len() / (s * s);
    assert!(Isa::available().contains(&isa) && HEAD_SIZES.contains(&(s as i64)), "no {isa:?} for heads of {s}");
    assert!([x.q.len(), x.k.len(), x.v.len(), out.len()] == [s * x.gates.len(); 4], "{} tokens", x.gates.len());
    assert!(x.state.len() == s * s && snapshots.len() == n_snapshots * s * s && n_snapshots <= x.gates.len(), "states");
    let factors = |&(decay, beta): &(f32, f32)| TokenFactors { decay, beta, key_query: 0.0 };
    let mut tokens: Vec<TokenFactors> = x.gates.iter().map(factors).collect();
    let of = |x: &[f32]| PerToken { data: x.as_ptr(), stride: s };
    let mut head = Head {
        tokens: &mut tokens,
        q: of(x.q),
        k: of(x.k),
        v: of(x.v),
        out: out.as_mut_ptr(),
        out_stride: s,
        from: x.state.as_ptr(),
        into: snapshots.as_mut_ptr(),
        snapshot_stride: s * s,
        n_snapshots,
        streams: false,
    };
    // SAFETY: everything has the sizes that it must have, and the CPU has the instructions (all asserted).
    unsafe { of_size(isa, s, &mut head, 0..s) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of outputs and snapshots of one head of size `s`.
    fn computed(isa: Isa, s: usize, n_tokens: usize, n_snapshots: usize) -> Vec<u32> {
        let mut seed = 7u32;
        let mut noise = |n: usize| -> Vec<f32> {
            let mut next = || {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 8) as f32 / 8_388_608.0 - 1.0
            };
            (0..n).map(|_| next()).collect()
        };
        let (q, k, v, state) = (noise(s * n_tokens), noise(s * n_tokens), noise(s * n_tokens), noise(s * s));
        let gates: Vec<_> = noise(2 * n_tokens).chunks(2).map(|g| ((g[0] - 1.0).exp(), g[1].abs())).collect();
        let (mut out, mut snapshots) = (vec![0.0; s * n_tokens], vec![0.0; s * s * n_snapshots]);
        let x = OneHead { q: &q, k: &k, v: &v, gates: &gates, state: &state };
        one_head(isa, s, &x, &mut out, &mut snapshots);
        out.iter().chain(&snapshots).map(|x| x.to_bits()).collect()
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for isa in Isa::available() {
            for (n_tokens, n_snapshots) in [(1, 1), (5, 5), (7, 2), (40, 1)] {
                for s in [16, 128] {
                    let scalar = computed(Isa::Scalar, s, n_tokens, n_snapshots);
                    assert_eq!(computed(isa, s, n_tokens, n_snapshots), scalar, "{isa:?}, {s}");
                }
            }
        }
    }
}
