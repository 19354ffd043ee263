//! The gated delta rule over many tokens, as prompts have them: sixteen rows of a head's state at a time, one in each lane.
//!
//! [`crate::delta_rule`] has all keys of a row in registers: a token's sums end with additions of lanes, for which the next token has to
//! wait. Here a sum over keys goes over registers, and whatever a token does to the state is done while the sums of the next one are
//! made. Sums have the same order as there: key `i` belongs to one of 32 sums, number `i % 32`, and those are added in pairs as lanes
//! are. So the bits are the same.
//!
//! The state is turned once for all tokens. Keys and queries lie far apart in memory; those of some tokens are brought side by side, and
//! these tokens go through all rows before the next ones.

use std::cell::RefCell;
use std::ops::Range;

use crate::delta_rule::{Head, Keep, PerToken, TokenFactors, in_registers, key_queries};
use crate::dispatch::each;
use crate::f32x16::{F32x16, by_isa};
use crate::isa::Isa;

/// Rows of a group.
const ROWS: usize = 16;

/// Tokens whose keys and queries are brought side by side: as many as stay in the first cache.
const TOGETHER: usize = 32;

thread_local! {
    /// A turned state, keys and queries; kept from node to node.
    static MEMORY: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Some tokens, and what of them sixteen rows have.
struct Tokens<'a> {
    factors: &'a [TokenFactors],
    /// `[s]` for each token, side by side.
    k: *const f32,
    q: *const f32,
    /// Values of the rows.
    v: PerToken,
    /// Outputs of the rows.
    out: *mut f32,
    out_stride: usize,
}

/// What a token did: its key, and the update of each row.
struct Done<V> {
    k: *const f32,
    update: V,
    decay: V,
}

/// Keys times the state, and queries times the state.
type Sums<V> = [V; 2];

#[inline(always)]
fn add<V: F32x16>(a: Sums<V>, b: Sums<V>) -> Sums<V> {
    [a[0].add(b[0]), a[1].add(b[1])]
}

/// Keys and queries `first + 32 i` times their registers of the state, added up. Before that, what is `done` happens to these registers
/// if it is not the `FIRST` token.
///
/// # Safety
/// A state of `32 * BLOCKS` registers begins at `state`, and as many keys and queries where they begin; the CPU has what `V` needs.
#[inline(always)]
unsafe fn partial<V: F32x16, const BLOCKS: usize, const FIRST: bool>(
    first: usize,
    state: *mut f32,
    (k, q): (*const f32, *const f32),
    done: &Done<V>,
) -> Sums<V> {
    let mut sums = [V::zero(); 2];
    each!(block of BLOCKS, {
        let i = first + 32 * block;
        // SAFETY: register and number `i` of `32 * BLOCKS` (the caller).
        unsafe {
            let (k, q, k_before) = (V::all(*k.add(i)), V::all(*q.add(i)), V::all(*done.k.add(i)));
            let at = state.add(ROWS * i);
            let mut m = V::load(at);
            if !FIRST {
                m = k_before.mul_add(done.update, m.mul(done.decay));
                m.store(at);
            }
            sums = [m.mul_add(k, sums[0]), m.mul_add(q, sums[1])];
        }
    });
    sums
}

/// Sum number `l` of eight.
///
/// # Safety
/// As [`partial`].
#[inline(always)]
unsafe fn eighth<V: F32x16, const BLOCKS: usize, const FIRST: bool>(
    l: usize,
    state: *mut f32,
    of: (*const f32, *const f32),
    done: &Done<V>,
) -> Sums<V> {
    // SAFETY: the caller's.
    unsafe {
        let a = partial::<V, BLOCKS, FIRST>(l, state, of, done);
        let a = add(a, partial::<V, BLOCKS, FIRST>(l + 16, state, of, done));
        let b = partial::<V, BLOCKS, FIRST>(l + 8, state, of, done);
        add(a, add(b, partial::<V, BLOCKS, FIRST>(l + 24, state, of, done)))
    }
}

/// Sums number `l`, `l + 2`, `l + 4` and `l + 6`.
///
/// # Safety
/// As [`partial`].
#[inline(always)]
unsafe fn half<V: F32x16, const BLOCKS: usize, const FIRST: bool>(
    l: usize,
    state: *mut f32,
    of: (*const f32, *const f32),
    done: &Done<V>,
) -> Sums<V> {
    // SAFETY: the caller's.
    unsafe {
        let a = eighth::<V, BLOCKS, FIRST>(l, state, of, done);
        let a = add(a, eighth::<V, BLOCKS, FIRST>(l + 4, state, of, done));
        let b = eighth::<V, BLOCKS, FIRST>(l + 2, state, of, done);
        add(a, add(b, eighth::<V, BLOCKS, FIRST>(l + 6, state, of, done)))
    }
}

/// Key and query times the state, in the order of [`F32x16::sum`].
///
/// # Safety
/// As [`partial`].
#[inline(always)]
unsafe fn products<V: F32x16, const BLOCKS: usize, const FIRST: bool>(
    state: *mut f32,
    of: (*const f32, *const f32),
    done: &Done<V>,
) -> Sums<V> {
    // SAFETY: the caller's.
    unsafe {
        let even = half::<V, BLOCKS, FIRST>(0, state, of, done);
        add(even, half::<V, BLOCKS, FIRST>(1, state, of, done))
    }
}

/// Tokens, one at least, happen to sixteen rows of a state, turned: a register for each of `32 * BLOCKS` keys.
///
/// # Safety
/// All pointers are good for their sizes; the CPU has what `V` needs.
#[inline(always)]
unsafe fn sixteen_rows<V: F32x16, const BLOCKS: usize>(x: &Tokens<'_>, state: *mut f32) {
    let s = 32 * BLOCKS;
    let scale = V::all(1.0 / (s as f32).sqrt());
    let mut done = Done { k: x.k, update: V::zero(), decay: V::zero() };
    for (t, factors) in x.factors.iter().enumerate() {
        let of = (x.k.wrapping_add(t * s), x.q.wrapping_add(t * s));
        // SAFETY: a turned state; `s` floats of each token; sixteen values and outputs (the caller).
        unsafe {
            let [of_k, of_q] = match t {
                0 => products::<V, BLOCKS, true>(state, of, &done),
                _ => products::<V, BLOCKS, false>(state, of, &done),
            };
            let decay = V::all(factors.decay);
            let update = V::load(x.v.of_token(t)).add(V::all(-factors.decay).mul(of_k)).mul(V::all(factors.beta));
            let o = decay.mul(of_q).add(update.mul(V::all(factors.key_query)));
            o.mul(scale).store(x.out.add(t * x.out_stride));
            done = Done { k: of.0, update, decay };
        }
    }
    for i in 0..s {
        // SAFETY: likewise; there is a token.
        unsafe {
            let at = state.add(ROWS * i);
            V::all(*done.k.add(i)).mul_add(done.update, V::load(at).mul(done.decay)).store(at);
        }
    }
}

by_isa!(on_isa, sixteen_rows<const BLOCKS>, (x: &Tokens<'_>, state: *mut f32));

/// True if heads of such a size are computed here.
fn has_size(s: usize) -> bool {
    [32, 64, 128].contains(&s)
}

/// The first `n` tokens of a head happen to rows of its state, whole groups of sixteen. Then `then` is called with the state after them,
/// of which it may read these rows.
///
/// # Safety
/// All pointers of the head are good for their sizes; [`has_size`] says yes to `s`; rows are below `s`; `isa` is available.
unsafe fn tokens(
    isa: Isa,
    s: usize,
    head: &mut Head<'_>,
    rows: Range<usize>,
    n: usize,
    then: impl FnOnce(&mut Head<'_>, *const f32),
) {
    let n_groups = rows.len() / ROWS;
    MEMORY.with_borrow_mut(|memory| {
        memory.resize(memory.len().max(2 * s * s + 2 * s * TOGETHER), 0.0);
        let (turned, rest) = memory.split_at_mut(s * s);
        let (state, rest) = rest.split_at_mut(s * s);
        let (k, q) = rest.split_at_mut(s * TOGETHER);
        for (group, to) in turned.chunks_exact_mut(s * ROWS).take(n_groups).enumerate() {
            for (r, row) in (rows.start + group * ROWS..).take(ROWS).enumerate() {
                for i in 0..s {
                    // SAFETY: a row of the state (the caller).
                    to[i * ROWS + r] = unsafe { *head.from.add(row * s + i) };
                }
            }
        }
        for first in (0..n).step_by(TOGETHER) {
            let len = TOGETHER.min(n - first);
            for t in 0..len {
                // SAFETY: `s` floats of each token (the caller).
                unsafe {
                    std::ptr::copy_nonoverlapping(head.k.of_token(first + t), k[t * s..][..s].as_mut_ptr(), s);
                    std::ptr::copy_nonoverlapping(head.q.of_token(first + t), q[t * s..][..s].as_mut_ptr(), s);
                }
            }
            // SAFETY: they are side by side now.
            unsafe {
                key_queries(isa, s, &mut head.tokens[first..first + len], PerToken::new(k, s), PerToken::new(q, s))
            };
            for (group, state) in turned.chunks_exact_mut(s * ROWS).take(n_groups).enumerate() {
                let row = rows.start + group * ROWS;
                let x = Tokens {
                    factors: &head.tokens[first..first + len],
                    k: k.as_ptr(),
                    q: q.as_ptr(),
                    v: head.v.behind(first, row),
                    out: head.out.wrapping_add(first * head.out_stride + row),
                    out_stride: head.out_stride,
                };
                // SAFETY: the rows' values and outputs lie there (the caller).
                unsafe {
                    match s {
                        32 => on_isa::<1>(isa, &x, state.as_mut_ptr()),
                        64 => on_isa::<2>(isa, &x, state.as_mut_ptr()),
                        _ => on_isa::<4>(isa, &x, state.as_mut_ptr()),
                    }
                }
            }
        }
        for (group, from) in turned.chunks_exact(s * ROWS).take(n_groups).enumerate() {
            for (r, row) in (rows.start + group * ROWS..).take(ROWS).enumerate() {
                for (i, to) in state[row * s..][..s].iter_mut().enumerate() {
                    *to = from[i * ROWS + r];
                }
            }
        }
        then(head, state.as_ptr());
    });
}

/// Tokens from which on it pays to turn the state.
const MANY: usize = 48;

/// Rows of a head of size `s`, one of [`crate::HEAD_SIZES`]. Of many tokens all but those whose states are wanted in lanes.
///
/// # Safety
/// As [`in_registers`].
pub(crate) unsafe fn of_size(isa: Isa, s: usize, head: &mut Head<'_>, rows: Range<usize>) {
    let n = match head.keep {
        Keep::Snapshots { n, .. } if head.n_past == 0 && has_size(s) => head.tokens.len() - n.max(1),
        _ => 0,
    };
    let in_lanes = if n < MANY { 0 } else { rows.len() / ROWS * ROWS };
    let (lanes, rest) = (rows.start..rows.start + in_lanes, rows.start + in_lanes..rows.end);
    // SAFETY: the caller's; what is left of the head has the tokens from `n` on, and begins with the state that those before leave.
    unsafe {
        if in_lanes > 0 {
            tokens(isa, s, head, lanes.clone(), n, |head, state| {
                let mut last = Head {
                    tokens: &mut head.tokens[n..],
                    k: head.k.behind(n, 0),
                    q: head.q.behind(n, 0),
                    v: head.v.behind(n, 0),
                    out: head.out.wrapping_add(n * head.out_stride),
                    from: state,
                    ..*head
                };
                in_registers(isa, s, &mut last, lanes);
            });
        }
        in_registers(isa, s, head, rest);
    }
}
