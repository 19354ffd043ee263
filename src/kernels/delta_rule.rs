//! The gated delta rule over a few or many tokens, with every snapshot written where it is to lie.
//!
//! A row of a head's state (one value, all keys) depends on no other row: it is loaded once, goes through all tokens in
//! registers, and each wanted snapshot of it is stored straight into the planes. ggml's op copies the state in, each
//! snapshot out, and needs another op to bring them to their places. The bits of a token depend neither on how many come
//! with it nor on the number of threads.
//!
//! Instead of snapshots a step may log what its tokens did to the state ([`Log`]): a later step that reads the state replays them,
//! with the same operations and so the same bits, in the registers that the state goes through anyway.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use ggml_sys as sys;

use crate::f32x16::{F32x16, by_isa, fence};
use crate::isa::Isa;
use crate::which::Which;

/// The parameter that tells [`delta_rule`] from other nodes with functions, at [`crate::FIRST_PARAMETER`]: a device that computes
/// it by itself is `vendor/ggml-sys/cuda/states.cu`.
pub const DELTA_RULE: i32 = 0x6465_6c74;

/// The same for [`delta_rule_logged`], which CPUs alone compute.
pub const DELTA_RULE_LOGGED: i32 = 0x646c_6f67;

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
    /// The state before the first token and those of `past`, `[s, s]`.
    from: *const f32,
    /// Logged tokens that come before the first one.
    past: Log,
    n_past: usize,
    keep: Keep,
    /// States are written past the caches.
    streams: bool,
}

/// What becomes of the state.
#[derive(Clone, Copy)]
enum Keep {
    /// Those after the last tokens are written.
    Snapshots {
        /// The newest.
        into: *mut f32,
        /// From one to the next older one.
        stride: usize,
        n: usize,
    },
    /// The one before the first token is written if `before` is not null, and the tokens are logged.
    Logged { before: *mut f32, log: Log },
}

/// What tokens did to the state of one head: a ring of entries of a key, an update for each row and a decay.
#[derive(Clone, Copy)]
struct Log {
    /// All entries of the head.
    data: *mut f32,
    /// The entry of the first token.
    first: usize,
    /// Entries that there are.
    capacity: usize,
}

impl Log {
    const NONE: Self = Self { data: std::ptr::null_mut(), first: 0, capacity: 1 };

    /// The entry of a token, of heads of `s`.
    fn entry(self, token: usize, s: usize) -> *mut f32 {
        self.data.wrapping_add((self.first + token) % self.capacity * entry_floats(s))
    }
}

/// Floats of an entry of a log, of heads of `s`: whole cache lines.
pub const fn entry_floats(s: usize) -> usize {
    2 * s + 16
}

/// Tokens that fit where a head of `s` has its state: what its log may have at most.
pub fn log_capacity(s: usize) -> usize {
    s * s / entry_floats(s)
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
        for t in 0..head.n_past {
            let entry = head.past.entry(t, s);
            // SAFETY: an entry has a key, an update for each row and the decay.
            let decay = V::all(unsafe { *entry.add(2 * s) });
            for (r, m) in m.iter_mut().enumerate() {
                // SAFETY: likewise.
                let update = V::all(unsafe { *entry.add(s + j + r) });
                for (i, m) in m.iter_mut().enumerate() {
                    // SAFETY: likewise.
                    let k = unsafe { V::load(entry.add(16 * i)) };
                    *m = k.mul_add(update, m.mul(decay));
                }
            }
        }
        if let Keep::Logged { before, .. } = head.keep
            && !before.is_null()
        {
            // SAFETY: a state has `s` rows of `s` floats.
            unsafe { put(&m, before.add(j * s), head.streams) };
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
                if let Keep::Logged { log, .. } = head.keep {
                    // SAFETY: an entry has an update for each row.
                    unsafe { *log.entry(t, s).add(s + j + r) = update };
                }
                let update = V::all(update);
                for (i, m) in m.iter_mut().enumerate() {
                    // SAFETY: `s` floats.
                    let k = unsafe { V::load(k.add(16 * i)) };
                    *m = k.mul_add(update, m.mul(decay));
                }
            }
            let back = n_tokens - 1 - t;
            if let Keep::Snapshots { into, stride, n } = head.keep
                && back < n
            {
                // SAFETY: likewise.
                unsafe { put(&m, into.add(back * stride + j * s), head.streams) };
            }
        }
    }
}

/// Writes rows of a state, past the caches if `streams`.
///
/// # Safety
/// There is room at `into`, which is a multiple of 64 if `streams`.
#[inline(always)]
unsafe fn put<V: F32x16, const N: usize>(rows: &[[V; N]; ROWS_AT_ONCE], into: *mut f32, streams: bool) {
    for (i, x) in rows.as_flattened().iter().enumerate() {
        // SAFETY: room for all of them (the caller).
        unsafe { if streams { x.stream(into.add(16 * i)) } else { x.store(into.add(16 * i)) } };
    }
}

/// Logs keys and decays, which all rows of a head have in common.
///
/// # Safety
/// The head's pointers are good for their sizes; nobody else logs them.
unsafe fn log_keys(head: &Head<'_>, log: Log, s: usize) {
    for (t, token) in head.tokens.iter().enumerate() {
        let entry = log.entry(t, s);
        // SAFETY: `s` floats each (the caller).
        unsafe { std::ptr::copy_nonoverlapping(head.k.of_token(t), entry, s) };
        // SAFETY: the decay comes behind keys and updates.
        unsafe { *entry.add(2 * s) = token.decay };
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

/// A node's operands that every form of the rule has, and its outputs.
struct Node<'a> {
    q: &'a sys::ggml_tensor,
    k: &'a sys::ggml_tensor,
    v: &'a sys::ggml_tensor,
    g: &'a sys::ggml_tensor,
    beta: &'a sys::ggml_tensor,
    out: *mut f32,
}

impl<'a> Node<'a> {
    /// # Safety
    /// The node has these operands.
    unsafe fn of(dst: &'a sys::ggml_tensor) -> Self {
        // SAFETY: five operands (the caller).
        let [q, k, v, g, beta] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
        Self { q, k, v, g, beta, out: dst.data.cast() }
    }

    /// Thread `ith` of `nth`'s rows of all heads. `states`, of sequence and head: where the state lies, the log before it, and what
    /// becomes of it.
    ///
    /// # Safety
    /// `isa` is available, shapes were checked when the node was made, threads come with different `ith`, and what `states` gives is
    /// good for the node's sizes.
    unsafe fn compute(
        &self,
        isa: Isa,
        streams: bool,
        (ith, nth): (usize, usize),
        states: impl Fn(usize, usize) -> (*const f32, (Log, usize), Keep),
    ) {
        let [s, n_heads, n_tokens, n_seqs] = self.v.ne.map(|n| n as usize);
        let mut tokens = vec![TokenFactors::default(); n_tokens];
        let n = n_seqs * n_heads * s / ROWS_AT_ONCE;
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
                (token.decay, token.beta) = (gate(self.g, i).exp(), gate(self.beta, i));
            }
            let of_keys = h % self.q.ne[1] as usize;
            let (from, (past, n_past), keep) = states(seq, h);
            let mut head = Head {
                tokens: &mut tokens,
                q: PerToken::of(self.q, of_keys, seq),
                k: PerToken::of(self.k, of_keys, seq),
                v: PerToken::of(self.v, h, seq),
                out: self.out.wrapping_add((seq * n_tokens * n_heads + h) * s),
                out_stride: n_heads * s,
                from,
                past,
                n_past,
                keep,
                streams,
            };
            if let (Keep::Logged { log, .. }, 0) = (keep, first) {
                // SAFETY: sizes are the node's (the caller), and one thread has the first row.
                unsafe { log_keys(&head, log, s) };
            }
            // SAFETY: shapes were checked when the node was made; rows are this thread's.
            unsafe { of_size(isa, s, &mut head, first..last) };
        }
        if streams {
            fence();
        }
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
    // SAFETY: the node contract: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has seven operands.
    let (node, [state, into]) = unsafe { (Node::of(dst), [&*dst.src[5], &*dst.src[6]]) };
    // SAFETY: the eighth operand is null or has a number for each sequence.
    let which = unsafe { Which::of(dst.src[7]) };
    let s = node.v.ne[0] as usize;
    // Whole 64 bytes from an even start.
    let streams = into.nb[1] >= LARGE && [into.data as usize, into.nb[1], into.nb[2]].iter().all(|n| n % 64 == 0);
    let states = |seq: usize, h: usize| {
        let at = h * s * s;
        let from = state.data.cast::<f32>().wrapping_add(at + which.state(seq) * state.nb[3] / size_of::<f32>());
        let newest = into.data.cast::<f32>().wrapping_add(at + seq * into.nb[1] / size_of::<f32>());
        let (stride, n) = (into.nb[2] / size_of::<f32>(), into.ne[2] as usize);
        (from.cast_const(), (Log::NONE, 0), Keep::Snapshots { into: newest, stride, n })
    };
    // SAFETY: the node contract, handed on; the instruction set is the one chosen, and states and snapshots have a head's size.
    unsafe { node.compute(isa, streams, (ith as usize, nth as usize), states) };
}

/// What a step of [`delta_rule_logged`] does with the state of a sequence beside reading it and the tokens logged since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedStep {
    /// Logs its tokens.
    Log,
    /// Writes the state before its tokens, and logs these.
    WriteAndLog,
    /// Writes the state after its tokens.
    Write,
}

impl LoggedStep {
    /// Kinds of steps.
    pub const N: i32 = 3;

    /// What stands for it in operands.
    pub fn number(self) -> i32 {
        match self {
            Self::Log => 0,
            Self::WriteAndLog => 1,
            Self::Write => 2,
        }
    }
}

/// As [`delta_rule`] with a log for each sequence, where `src[5]: [s, s, n_v_heads, n_states]` are all states, and a log takes the
/// place of one. For each sequence `src[6]: i32 [n_seqs]` has the number of the state that it reads, `src[7]: i32 [2 * n_seqs]` that
/// of the state to write and of the log, `src[8]: i32 [3 * n_seqs]` the entry of the first token that was logged since the state
/// was written, how many there are, and a [`LoggedStep`]. The parameter behind [`DELTA_RULE_LOGGED`] is the number of entries of
/// each log.
///
/// # Safety
/// The node contract; `s` is one of [`HEAD_SIZES`]; numbers of states are in range; as many entries as were logged and as the step
/// logs fit the log, which has 1 to [`log_capacity`]; no two sequences have a state to write or a log in common; `src[5]` may be written.
pub unsafe extern "C" fn delta_rule_logged(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let Some(isa) = Isa::chosen() else { return };
    // SAFETY: the node contract: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has nine operands.
    let (node, [all, read, places, steps]) = unsafe { (Node::of(dst), std::array::from_fn(|i| &*dst.src[5 + i])) };
    // SAFETY: numbers of each sequence (the caller), none below 0, as inputs are checked before each run.
    let number = |t: &sys::ggml_tensor, i: usize| unsafe { *t.data.cast::<i32>().add(i) } as usize;
    let s = node.v.ne[0] as usize;
    let capacity = dst.op_params[crate::FIRST_PARAMETER + 1] as usize;
    let streams = all.nb[3] >= LARGE && [all.data as usize, all.nb[3]].iter().all(|n| n % 64 == 0);
    let states = |seq: usize, h: usize| {
        let state = |i: usize| all.data.cast::<f32>().wrapping_add(h * s * s + i * all.nb[3] / size_of::<f32>());
        let [first, n_past, step] = std::array::from_fn(|i| number(steps, 3 * seq + i));
        let to = state(number(places, 2 * seq));
        let log = |first: usize| Log { data: state(number(places, 2 * seq + 1)), first: first % capacity, capacity };
        let more = log(first + n_past);
        let keep = match step as i32 {
            0 => Keep::Logged { before: std::ptr::null_mut(), log: more },
            1 => Keep::Logged { before: to, log: more },
            _ => Keep::Snapshots { into: to, stride: 0, n: 1 },
        };
        (state(number(read, seq)).cast_const(), (log(first), n_past), keep)
    };
    // SAFETY: the node contract, handed on; the instruction set is the one chosen, and states and logs have a head's size.
    unsafe { node.compute(isa, streams, (ith as usize, nth as usize), states) };
}

/// Has tokens that were logged happen to the states of heads of size `s`, `states: [s, s, n_heads]`: `n_past` entries of each head's
/// part of `logs: [s, s, n_heads]`, which has `capacity`, from entry `first` on.
///
/// # Panics
/// `s` is none of [`HEAD_SIZES`], a slice is not whole heads, there are more entries than a log has, or the CPU lacks `isa`.
pub fn replay(
    isa: Isa,
    s: usize,
    states: &mut [f32],
    (logs, capacity): (&[f32], usize),
    (first, n_past): (usize, usize),
) {
    assert!(Isa::available().contains(&isa) && HEAD_SIZES.contains(&(s as i64)), "no {isa:?} for heads of {s}");
    assert!((1..=log_capacity(s)).contains(&capacity), "a log of {capacity} entries");
    assert!(states.len() == logs.len() && states.len().is_multiple_of(s * s) && n_past <= capacity, "{n_past} entries");
    for (state, log) in states.chunks_exact_mut(s * s).zip(logs.chunks_exact(s * s)) {
        let none = PerToken { data: std::ptr::null(), stride: 0 };
        let into = state.as_mut_ptr();
        let mut head = Head {
            tokens: &mut [],
            q: none,
            k: none,
            v: none,
            out: std::ptr::null_mut(),
            out_stride: 0,
            from: into.cast_const(),
            // Without tokens nothing is logged.
            past: Log { data: log.as_ptr().cast_mut(), first: first % capacity, capacity },
            n_past,
            keep: Keep::Logged { before: into, log: Log::NONE },
            streams: false,
        };
        // SAFETY: state and log have their sizes, and the CPU has the instructions (asserted); each row is read before it is written.
        unsafe { of_size(isa, s, &mut head, 0..s) };
    }
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
        past: Log::NONE,
        n_past: 0,
        keep: Keep::Snapshots { into: snapshots.as_mut_ptr(), stride: s * s, n: n_snapshots },
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

    /// A step over slices: the tokens of `x`, a head, its log from entry `first` on with `n_past` entries, and what it does. Gives the
    /// outputs.
    fn logged_step(
        (isa, s, capacity): (Isa, usize, usize),
        x: &OneHead<'_>,
        (state, log): (&mut [f32], &mut [f32]),
        (first, n_past, step): (usize, usize, LoggedStep),
    ) -> Vec<f32> {
        let mut out = vec![0.0; x.v.len()];
        let factors = |&(decay, beta): &(f32, f32)| TokenFactors { decay, beta, key_query: 0.0 };
        let mut tokens: Vec<TokenFactors> = x.gates.iter().map(factors).collect();
        let of = |x: &[f32]| PerToken { data: x.as_ptr(), stride: s };
        let (into, data) = (state.as_mut_ptr(), log.as_mut_ptr());
        let log = |first: usize| Log { data, first: first % capacity, capacity };
        let more = log(first + n_past);
        let keep = match step {
            LoggedStep::Log => Keep::Logged { before: std::ptr::null_mut(), log: more },
            LoggedStep::WriteAndLog => Keep::Logged { before: into, log: more },
            LoggedStep::Write => Keep::Snapshots { into, stride: 0, n: 1 },
        };
        let mut head = Head {
            tokens: &mut tokens,
            q: of(x.q),
            k: of(x.k),
            v: of(x.v),
            out: out.as_mut_ptr(),
            out_stride: s,
            from: into.cast_const(),
            past: log(first),
            n_past,
            keep,
            streams: false,
        };
        // SAFETY: all slices have the sizes of the head and its tokens, which the test chose so that they fit the log.
        unsafe {
            if let Keep::Logged { log, .. } = keep {
                log_keys(&head, log, s);
            }
            of_size(isa, s, &mut head, 0..s);
        }
        out
    }

    #[test]
    fn logged_tokens_leave_the_bits_of_snapshots() {
        use LoggedStep::{Log, Write, WriteAndLog};
        // Tokens, those of them that are kept, and what the step does.
        let steps = [
            (3, 3, Log),
            (4, 1, Log),
            (1, 1, Log),
            (4, 2, WriteAndLog),
            (2, 2, Log),
            (9, 9, Write),
            (2, 1, WriteAndLog),
        ];
        for isa in Isa::available() {
            for s in [32usize, 64, 128] {
                let mut seed = 3u32;
                let mut noise = |n: usize| -> Vec<f32> {
                    let mut next = || {
                        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (seed >> 8) as f32 / 8_388_608.0 - 1.0
                    };
                    (0..n).map(|_| next()).collect()
                };
                let mut plain = noise(s * s);
                let (mut state, mut log) = (plain.clone(), vec![f32::NAN; s * s]);
                // Near the end, so that the ring is closed on the way.
                let capacity = 9;
                let (mut first, mut n_past) = (capacity - 2, 0);
                for &(n, kept, step) in &steps {
                    let (q, k, v) = (noise(s * n), noise(s * n), noise(s * n));
                    let gates: Vec<_> = noise(2 * n).chunks(2).map(|g| ((g[0] - 1.0).exp(), g[1].abs())).collect();
                    let (mut out, mut snapshots) = (vec![0.0; s * n], vec![0.0; s * s * n]);
                    let x = OneHead { q: &q, k: &k, v: &v, gates: &gates, state: &plain };
                    one_head(isa, s, &x, &mut out, &mut snapshots);
                    let found = logged_step((isa, s, capacity), &x, (&mut state, &mut log), (first, n_past, step));
                    assert_eq!(found, out, "{isa:?}, {s}, {n} tokens, {step:?}");
                    plain = snapshots[(n - kept) * s * s..][..s * s].to_vec();
                    (first, n_past) = match step {
                        Log => (first, n_past + kept),
                        WriteAndLog => (first + n_past, kept),
                        Write => (0, 0),
                    };
                    let mut whole = state.clone();
                    replay(isa, s, &mut whole, (&log, capacity), (first, n_past));
                    assert_eq!(whole, plain, "{isa:?}, {s}, after {n} tokens, {step:?}");
                }
            }
        }
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
