//! Attention of every token to every other, without a mask, as towers that see need it: in tiles of queries and keys, so that
//! scores never leave the cache. Sums and products are F32. ggml's own function copies and turns each tile of keys anew for
//! every tile of queries, and what its inner product becomes depends on the C++ compiler.
//! A token has the same bits in every instruction set, with any number of threads.
//!
//! Source: Milakov and Gimelshein 2018 (softmax in one pass); Dao et al. 2022 (tiles).

use std::ffi::{c_int, c_void};
use std::ops::Range;

use ggml_sys as sys;

use crate::f32x16::{F32x16, by_isa};
use crate::geglu::exp;
use crate::isa::Isa;
use crate::matrix::{At, LANES, add_product};

/// The longest heads that are served.
pub const MAX_HEAD: usize = 128;

/// Queries and keys of a tile.
const QUERIES: usize = 96;
const KEYS: usize = 64;

/// Rows of a product that are in registers together.
const ROWS: usize = 6;

/// Keys and values of all heads, and their queries. Strides are in floats.
struct Heads {
    n_embd: usize,
    n_heads: usize,
    n_tokens: usize,
    /// `[n_embd]` for each token of each head.
    q: *const f32,
    q_strides: [usize; 2],
    /// `[n_tokens]` for each of `n_embd` of each head.
    k: *const f32,
    k_strides: [usize; 2],
    /// As `q`.
    v: *const f32,
    v_strides: [usize; 2],
    out: *mut f32,
    out_strides: [usize; 2],
}

impl Heads {
    /// Tiles of queries of all heads.
    fn n_tiles(&self) -> usize {
        self.n_heads * self.n_tokens.div_ceil(QUERIES)
    }

    /// Floats of a row of values and results, filled up to whole groups of lanes.
    fn padded(&self) -> usize {
        self.n_embd.next_multiple_of(LANES)
    }
}

/// What a thread works on; aligned, so that no load takes two lines of the cache.
#[repr(C, align(64))]
struct Tiles {
    /// `[QUERIES][n_embd]`
    q: [f32; QUERIES * MAX_HEAD],
    /// `[n_embd][KEYS]`
    k: [f32; MAX_HEAD * KEYS],
    /// `[KEYS][padded]`
    v: [f32; KEYS * MAX_HEAD],
    /// `[QUERIES][KEYS]`
    scores: [f32; QUERIES * KEYS],
    /// `[QUERIES][padded]`
    out: [f32; QUERIES * MAX_HEAD],
    /// The largest score of each query so far, and the sum of the powers.
    largest: [f32; QUERIES],
    sum: [f32; QUERIES],
}

/// The powers of a row of scores and their sum, where the largest so far was `largest`; gives the largest, the factor that
/// what was added up before has to take, and the sum.
#[inline(always)]
fn powers(scores: &mut [f32; KEYS], largest: f32) -> (f32, f32, f32) {
    let mut lanes = [largest; LANES];
    for group in scores.chunks_exact(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(group) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    let new = lanes.into_iter().fold(largest, |a, b| if b > a { b } else { a });
    let mut sums = [0.0; LANES];
    for group in scores.chunks_exact_mut(LANES) {
        for (sum, x) in sums.iter_mut().zip(group) {
            *x = exp((*x - new).clamp(-87.0, 0.0));
            *sum += *x;
        }
    }
    let half = |i: usize| crate::lanes::sum_array(std::array::from_fn(|l| sums[i + l]));
    (new, exp((largest - new).clamp(-87.0, 0.0)), half(0) + half(8))
}

/// Tiles `part` of queries, counted on from head to head.
///
/// # Safety
/// All pointers are good for their sizes, `part` lies within the tiles, heads have at most [`MAX_HEAD`] floats, the CPU has
/// what `V` needs.
#[inline(always)]
unsafe fn tiles<V: F32x16>(heads: &Heads, part: Range<usize>) {
    // SAFETY: floats of zero.
    let mut t: Tiles = unsafe { std::mem::zeroed() };
    let (n_embd, padded, n_tokens) = (heads.n_embd, heads.padded(), heads.n_tokens);
    let per_head = n_tokens.div_ceil(QUERIES);
    for tile in part {
        let (head, first) = (tile / per_head, tile % per_head * QUERIES);
        let n = QUERIES.min(n_tokens - first);
        let n_rows = n.next_multiple_of(ROWS);
        for i in 0..n_rows {
            let from = heads.q.wrapping_add((first + i.min(n - 1)) * heads.q_strides[0] + head * heads.q_strides[1]);
            // SAFETY: a token's query; the tile has room for as many rows.
            unsafe { std::ptr::copy_nonoverlapping(from, t.q.as_mut_ptr().add(i * n_embd), n_embd) };
        }
        t.out[..n_rows * padded].fill(0.0);
        t.largest.fill(f32::NEG_INFINITY);
        t.sum.fill(0.0);
        for key in (0..n_tokens).step_by(KEYS) {
            let n_keys = KEYS.min(n_tokens - key);
            // SAFETY: keys and values of this head; the tiles have room.
            unsafe { take_keys(heads, head, key..key + n_keys, &mut t) };
            t.scores[..n_rows * KEYS].fill(0.0);
            let q = At { data: t.q.as_ptr(), stride: n_embd };
            let k = At { data: t.k.as_ptr(), stride: KEYS };
            let scores = At { data: t.scores.as_mut_ptr(), stride: KEYS };
            // SAFETY: the tiles have these sizes.
            unsafe { add_product::<V, ROWS>(q, k, scores, [n_rows, n_embd, KEYS]) };
            let (rows, _) = t.scores.as_chunks_mut::<KEYS>();
            for (i, row) in rows.iter_mut().enumerate().take(n_rows) {
                row[n_keys..].fill(f32::NEG_INFINITY);
                let (largest, factor, sum) = powers(row, t.largest[i]);
                (t.largest[i], t.sum[i]) = (largest, t.sum[i].mul_add(factor, sum));
                t.out[i * padded..][..padded].iter_mut().for_each(|x| *x *= factor);
            }
            let scores = At { data: t.scores.as_ptr(), stride: KEYS };
            let v = At { data: t.v.as_ptr(), stride: padded };
            let out = At { data: t.out.as_mut_ptr(), stride: padded };
            // SAFETY: the tiles have these sizes.
            unsafe { add_product::<V, ROWS>(scores, v, out, [n_rows, KEYS, padded]) };
        }
        for i in 0..n {
            let to = heads.out.wrapping_add((first + i) * heads.out_strides[0] + head * heads.out_strides[1]);
            let of_one = 1.0 / t.sum[i];
            for (e, x) in t.out[i * padded..][..n_embd].iter().enumerate() {
                // SAFETY: a token's result.
                unsafe { *to.add(e) = x * of_one };
            }
        }
    }
}

/// Copies keys and values of tokens `keys` of `head`; what is missing to a whole tile is zero.
///
/// # Safety
/// The tokens are there, at most [`KEYS`].
#[inline(always)]
unsafe fn take_keys(heads: &Heads, head: usize, keys: Range<usize>, t: &mut Tiles) {
    let (n_embd, padded, n_keys) = (heads.n_embd, heads.padded(), keys.len());
    let k = heads.k.wrapping_add(keys.start + head * heads.k_strides[1]);
    for (e, row) in t.k.chunks_exact_mut(KEYS).enumerate().take(n_embd) {
        row[n_keys..].fill(0.0);
        // SAFETY: the tokens' value `e`.
        unsafe { std::ptr::copy_nonoverlapping(k.add(e * heads.k_strides[0]), row.as_mut_ptr(), n_keys) };
    }
    let v = heads.v.wrapping_add(keys.start * heads.v_strides[0] + head * heads.v_strides[1]);
    for (i, row) in t.v.chunks_exact_mut(padded).enumerate().take(KEYS) {
        row[if i < n_keys { n_embd } else { 0 }..].fill(0.0);
        if i < n_keys {
            // SAFETY: a token's value.
            unsafe { std::ptr::copy_nonoverlapping(v.add(i * heads.v_strides[0]), row.as_mut_ptr(), n_embd) };
        }
    }
}

by_isa!(on_isa, tiles, (heads: &Heads, part: Range<usize>));

/// `src[0]: [n_embd_head, n_tokens, n_head]` queries, `src[1]: [n_tokens, n_embd_head, n_head]` keys and
/// `src[2]: [n_embd_head, n_tokens, n_head]` values, F32 with whole rows, give `dst: [n_embd_head, n_head, n_tokens]`: the
/// values weighted by the softmax of `q * k`. Heads have at most [`MAX_HEAD`] floats.
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn attention_to_all(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let Some(isa) = Isa::chosen() else { return };
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has three operands.
    let [q, k, v] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    let strides = |t: &sys::ggml_tensor| [t.nb[1] / size_of::<f32>(), t.nb[2] / size_of::<f32>()];
    let [of_head, of_token] = strides(dst);
    let heads = Heads {
        n_embd: q.ne[0] as usize,
        n_heads: q.ne[2] as usize,
        n_tokens: q.ne[1] as usize,
        q: q.data.cast(),
        q_strides: strides(q),
        k: k.data.cast(),
        k_strides: strides(k),
        v: v.data.cast(),
        v_strides: strides(v),
        out: dst.data.cast(),
        out_strides: [of_token, of_head],
    };
    let (all, ith, nth) = (heads.n_tiles(), ith as usize, nth as usize);
    // SAFETY: shapes were checked when the node was made; tiles are this thread's.
    unsafe { on_isa(isa, &heads, all * ith / nth..all * (ith + 1) / nth) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2039) as f32 / 700.0 - 1.4).collect()
    }

    /// Queries of `[n_embd, n_heads, n_tokens]`, keys of `[n_tokens, n_embd, n_heads]`, values as queries.
    fn attend(isa: Isa, [n_embd, n_heads, n_tokens]: [usize; 3], qkv: [&[f32]; 3], n_threads: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; n_embd * n_heads * n_tokens];
        let by_token = [n_embd * n_heads, n_embd];
        let heads = Heads {
            n_embd,
            n_heads,
            n_tokens,
            q: qkv[0].as_ptr(),
            q_strides: by_token,
            k: qkv[1].as_ptr(),
            k_strides: [n_tokens, n_tokens * n_embd],
            v: qkv[2].as_ptr(),
            v_strides: by_token,
            out: out.as_mut_ptr(),
            out_strides: by_token,
        };
        let all = heads.n_tiles();
        for ith in 0..n_threads {
            // SAFETY: everything has the sizes said above; the instruction set is available.
            unsafe { on_isa(isa, &heads, all * ith / n_threads..all * (ith + 1) / n_threads) };
        }
        out
    }

    /// In double precision, by the definition.
    fn plain([n_embd, n_heads, n_tokens]: [usize; 3], [q, k, v]: [&[f32]; 3]) -> Vec<f64> {
        let mut out = Vec::new();
        for token in 0..n_tokens {
            for head in 0..n_heads {
                let at = |t: usize, e: usize| (t * n_heads + head) * n_embd + e;
                let key = |t: usize, e: usize| f64::from(k[(head * n_embd + e) * n_tokens + t]);
                let score = |t: usize| (0..n_embd).map(|e| f64::from(q[at(token, e)]) * key(t, e)).sum::<f64>();
                let scores: Vec<f64> = (0..n_tokens).map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let powers: Vec<f64> = scores.iter().map(|x| (x - largest).exp()).collect();
                let sum: f64 = powers.iter().sum();
                let value = |e: usize| (0..n_tokens).map(|t| powers[t] * f64::from(v[at(t, e)])).sum::<f64>() / sum;
                out.extend((0..n_embd).map(value));
            }
        }
        out
    }

    #[test]
    fn every_instruction_set_and_number_of_threads_gives_the_same_bits_and_they_are_attention() {
        for shape in [[64, 3, 200], [72, 2, 97], [8, 1, 1], [80, 2, 64], [128, 1, 130], [20, 2, 5]] {
            let n = shape.iter().product();
            let (q, k, v) = (numbers(n, 1), numbers(n, 2), numbers(n, 3));
            let expected = plain(shape, [&q, &k, &v]);
            let first = attend(Isa::Scalar, shape, [&q, &k, &v], 1);
            for (i, (&found, &expected)) in first.iter().zip(&expected).enumerate() {
                let error = (f64::from(found) - expected).abs();
                assert!(error < 2e-5, "{shape:?}, element {i}: {found}, {expected} expected");
            }
            for isa in Isa::available() {
                for n_threads in 1..=3 {
                    let found = attend(isa, shape, [&q, &k, &v], n_threads);
                    let same = first.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{isa:?}, {shape:?}, {n_threads} threads");
                }
            }
        }
    }

    #[test]
    fn scores_far_apart_pick_one_token_and_rising_ones_forget_the_former() {
        let shape = [4, 1, 150];
        let mut q = vec![0.0; 600];
        q.iter_mut().step_by(4).for_each(|x| *x = 1.0);
        // The score of a token is 10 times its number.
        let mut k = vec![0.0; 600];
        (0..150).for_each(|t| k[t] = 10.0 * t as f32);
        let v = numbers(600, 4);
        for isa in Isa::available() {
            let out = attend(isa, shape, [&q, &k, &v], 2);
            for (i, x) in out.iter().enumerate() {
                assert!((x - v[596 + i % 4]).abs() < 1e-3, "{isa:?}, element {i}: {x}");
            }
        }
    }
}
