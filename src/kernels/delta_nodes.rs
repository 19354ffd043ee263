//! The nodes of the gated delta rule: where the heads of each sequence lie, which rows of them a thread computes, and what becomes
//! of their states.

use std::ffi::{c_int, c_void};

use ggml_sys as sys;

use crate::delta_lanes::of_size;
use crate::delta_rule::{Head, Keep, LARGE_STATE, Log, LoggedStep, PerToken, ROWS_AT_ONCE, TokenFactors, log_keys};
use crate::f32x16::fence;
use crate::isa::Isa;
use crate::which::Which;

/// The parameter that tells [`delta_rule`] from other nodes with functions, at [`crate::FIRST_PARAMETER`]: a device that computes
/// it by itself is `vendor/ggml-sys/cuda/states.cu`.
pub const DELTA_RULE: i32 = 0x6465_6c74;

/// The same for [`delta_rule_logged`], which CPUs alone compute.
pub const DELTA_RULE_LOGGED: i32 = 0x646c_6f67;

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
/// The node contract; `s` is one of [`crate::HEAD_SIZES`], there are 1 to `n_tokens` snapshots, and `src[6]` may be written.
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
    let streams = into.nb[1] >= LARGE_STATE && [into.data as usize, into.nb[1], into.nb[2]].iter().all(|n| n % 64 == 0);
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

/// As [`delta_rule`] with a log for each sequence, where `src[5]: [s, s, n_v_heads, n_states]` are all states, and a log takes the
/// place of one. For each sequence `src[6]: i32 [n_seqs]` has the number of the state that it reads, `src[7]: i32 [2 * n_seqs]` that
/// of the state to write and of the log, `src[8]: i32 [3 * n_seqs]` the entry of the first token that was logged since the state
/// was written, how many there are, and a [`LoggedStep`]. The parameter behind [`DELTA_RULE_LOGGED`] is the number of entries of
/// each log.
///
/// # Safety
/// The node contract; `s` is one of [`crate::HEAD_SIZES`]; numbers of states are in range; as many entries as were logged and as the step
/// logs fit the log, which has 1 to [`crate::log_capacity`]; no two sequences have a state to write or a log in common; `src[5]` may be written.
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
    let streams = all.nb[3] >= LARGE_STATE && [all.data as usize, all.nb[3]].iter().all(|n| n % 64 == 0);
    let states = |seq: usize, h: usize| {
        let state = |i: usize| all.data.cast::<f32>().wrapping_add(h * s * s + i * all.nb[3] / size_of::<f32>());
        let [first, n_past, step] = std::array::from_fn(|i| number(steps, 3 * seq + i));
        let to = state(number(places, 2 * seq));
        let log = |first: usize| Log { data: state(number(places, 2 * seq + 1)), first: first % capacity, capacity };
        let step = LoggedStep::ALL.get(step).copied().unwrap_or(LoggedStep::Write);
        let keep = Keep::by(step, to, log(first + n_past));
        (state(number(read, seq)).cast_const(), (log(first), n_past), keep)
    };
    // SAFETY: the node contract, handed on; the instruction set is the one chosen, and states and logs have a head's size.
    unsafe { node.compute(isa, streams, (ith as usize, nth as usize), states) };
}
