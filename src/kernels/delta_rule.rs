//! The gated delta rule over a few or many tokens, with every snapshot written where it is to lie.
//!
//! A row of a head's state (one value, all keys) depends on no other row: it is loaded once, goes through all tokens in
//! registers, and each wanted snapshot of it is stored straight into the planes. ggml's op copies the state in, each
//! snapshot out, and needs another op to bring them to their places. The bits of a token depend neither on how many come
//! with it nor on the number of threads.
//!
//! Instead of snapshots a step may log what its tokens did to the state ([`Log`]): a later step that reads the state replays them,
//! with the same operations and so the same bits, in the registers that the state goes through anyway.

use std::ops::Range;

use ggml_sys as sys;

use crate::f32x16::{F32x16, by_isa};
use crate::isa::Isa;

/// Rows of the state that go through the tokens together, so that one's sums are made while the other's wait.
pub(crate) const ROWS_AT_ONCE: usize = 2;

/// Sizes of a head that the kernel serves.
pub const HEAD_SIZES: [i64; 4] = [16, 32, 64, 128];

/// Bytes of a sequence's state in one layer from which it will have left the caches before it is read again: other layers
/// have as much, and the weights come between.
pub const LARGE_STATE: usize = 256 << 10;

/// What a token does to one head.
#[derive(Clone, Copy, Default)]
pub(crate) struct TokenFactors {
    pub(crate) decay: f32,
    pub(crate) beta: f32,
    /// Its key times its query.
    pub(crate) key_query: f32,
}

/// One head of one sequence. Strides are in floats.
pub(crate) struct Head<'a> {
    pub(crate) tokens: &'a mut [TokenFactors],
    /// `[s]` for each token.
    pub(crate) q: PerToken,
    pub(crate) k: PerToken,
    pub(crate) v: PerToken,
    /// Outputs, `[s]` for each token.
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
    /// The state before the first token and those of `past`, `[s, s]`.
    pub(crate) from: *const f32,
    /// Logged tokens that come before the first one.
    pub(crate) past: Log,
    pub(crate) n_past: usize,
    pub(crate) keep: Keep,
    /// States are written past the caches.
    pub(crate) streams: bool,
}

/// What becomes of the state.
#[derive(Clone, Copy)]
pub(crate) enum Keep {
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

/// What a step of [`crate::delta_rule_logged`] does with the state of a sequence beside reading it and the tokens logged since.
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
    /// All, each at the place that its number says.
    pub const ALL: [Self; 3] = [Self::Log, Self::WriteAndLog, Self::Write];

    /// What stands for it in operands.
    pub fn number(self) -> i32 {
        self as i32
    }
}

impl Keep {
    /// By a step that may write the state `to` and log behind what `log` has.
    pub(crate) fn by(step: LoggedStep, to: *mut f32, log: Log) -> Self {
        match step {
            LoggedStep::Log => Self::Logged { before: std::ptr::null_mut(), log },
            LoggedStep::WriteAndLog => Self::Logged { before: to, log },
            LoggedStep::Write => Self::Snapshots { into: to, stride: 0, n: 1 },
        }
    }
}

/// What tokens did to the state of one head: a ring of entries of a key, an update for each row and a decay.
#[derive(Clone, Copy)]
pub(crate) struct Log {
    /// All entries of the head.
    pub(crate) data: *mut f32,
    /// The entry of the first token.
    pub(crate) first: usize,
    /// Entries that there are.
    pub(crate) capacity: usize,
}

impl Log {
    pub(crate) const NONE: Self = Self { data: std::ptr::null_mut(), first: 0, capacity: 1 };

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
pub(crate) struct PerToken {
    data: *const f32,
    stride: usize,
}

impl PerToken {
    /// Those of head `h` of sequence `seq`.
    pub(crate) fn of(t: &sys::ggml_tensor, h: usize, seq: usize) -> Self {
        let data = t.data.cast::<u8>().wrapping_add(h * t.nb[1] + seq * t.nb[3]);
        Self { data: data.cast_const().cast(), stride: t.nb[2] / size_of::<f32>() }
    }

    /// Vectors that lie in a slice, `stride` floats from one to the next.
    pub(crate) fn new(data: &[f32], stride: usize) -> Self {
        Self { data: data.as_ptr(), stride }
    }

    pub(crate) fn of_token(self, token: usize) -> *const f32 {
        self.data.wrapping_add(token * self.stride)
    }

    /// Those from a token on, without their first values.
    pub(crate) fn behind(self, token: usize, values: usize) -> Self {
        Self { data: self.of_token(token).wrapping_add(values), ..self }
    }
}

/// Each token's key times its query, `s = 16 * N`.
///
/// # Safety
/// `s` floats of each token; the CPU has what `V` needs.
#[inline(always)]
unsafe fn multiply_keys<V: F32x16, const N: usize>(tokens: &mut [TokenFactors], k: PerToken, q: PerToken) {
    for (t, token) in tokens.iter_mut().enumerate() {
        let mut sums = [V::zero(); 2];
        for i in 0..N {
            // SAFETY: `s` floats each (the caller).
            let (k, q) = unsafe { (V::load(k.of_token(t).add(16 * i)), V::load(q.of_token(t).add(16 * i))) };
            sums[i % 2] = k.mul_add(q, sums[i % 2]);
        }
        token.key_query = sums[0].add(sums[1]).sum();
    }
}

by_isa!(multiply_keys_on_isa, multiply_keys<const N>, (tokens: &mut [TokenFactors], k: PerToken, q: PerToken));

/// Each token's key times its query, of heads of `s`, one of [`HEAD_SIZES`].
///
/// # Safety
/// `s` floats of each token; `isa` is available.
pub(crate) unsafe fn key_queries(isa: Isa, s: usize, tokens: &mut [TokenFactors], k: PerToken, q: PerToken) {
    // SAFETY: as for this function.
    unsafe {
        match s {
            16 => multiply_keys_on_isa::<1>(isa, tokens, k, q),
            32 => multiply_keys_on_isa::<2>(isa, tokens, k, q),
            64 => multiply_keys_on_isa::<4>(isa, tokens, k, q),
            _ => multiply_keys_on_isa::<8>(isa, tokens, k, q),
        }
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
    // SAFETY: the caller's.
    unsafe { multiply_keys::<V, N>(head.tokens, head.k, head.q) };
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
pub(crate) unsafe fn log_keys(head: &Head<'_>, log: Log, s: usize) {
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
pub(crate) unsafe fn in_registers(isa: Isa, s: usize, head: &mut Head<'_>, rows: Range<usize>) {
    if rows.is_empty() {
        return;
    }
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
