//! Attention over cells of a KV cache that ggml has no products for: rows are unpacked tile by tile, into what stays in the
//! cache of the processor, and serve all queries of a tile. Softmax in one pass; sums and products are F32.
//! A token has the same bits in every instruction set, with any number of threads, whatever tokens and masked cells stand
//! beside it: sums go tile by tile from the first cell on, and a tile that nobody sees changes nothing.
//!
//! Source: Milakov and Gimelshein 2018 (softmax in one pass); Dao et al. 2022 (tiles).

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use ggml_sys as sys;

use crate::f32x16::{F32x16, by_isa};
use crate::geglu::exp;
use crate::isa::Isa;
use crate::lanes::sum_array;
use crate::matrix::{At, LANES, add_product};
use crate::turbo::{FIRST_PARAMETER, Turbo};

/// Queries and cells of a tile.
const QUERIES: usize = 32;
const CELLS: usize = 64;

/// Sums of values that are in registers together.
const TOGETHER: usize = 4;

/// A masked cell, as F16.
const MASKED: u16 = 0xFC00;

/// Keys or values. Strides are in bytes, from cell to cell, head to head, sequence to sequence.
#[derive(Clone, Copy)]
struct Cells {
    /// With what its codes stand for; `None` for rows of ggml's own types.
    turbo: Option<(Turbo, [f32; 16])>,
    dtype: sys::ggml_type,
    data: *const u8,
    strides: [usize; 3],
    /// Values of a row.
    d: usize,
}

/// The operands of one node. Strides are in bytes.
struct Operands {
    n_cells: usize,
    n_rows: usize,
    n_head: usize,
    n_head_kv: usize,
    n_seqs: usize,
    q: *const u8,
    /// From row to row, head to head, sequence to sequence.
    q_strides: [usize; 3],
    k: Cells,
    v: Cells,
    /// `[n_cells]` halves for each row of each sequence.
    mask: *const u16,
    mask_rows: usize,
    /// One for each head, or null.
    sinks: *const f32,
    scale: f32,
    /// 0 for none.
    softcap: f32,
    /// `[d_v]` for each head of each row of each sequence.
    out: *mut f32,
}

impl Operands {
    /// Query heads of a key head.
    fn n_group(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// Tiles of the queries that share a key head.
    fn n_tiles(&self) -> usize {
        (self.n_group() * self.n_rows).div_ceil(QUERIES)
    }

    fn n_parts(&self) -> usize {
        self.n_tiles() * self.n_head_kv * self.n_seqs
    }

    /// The mask of a row.
    ///
    /// # Safety
    /// Row and sequence are there.
    unsafe fn mask_of(&self, row: usize, seq: usize) -> &[u16] {
        let first = (seq * self.mask_rows + row) * self.n_cells;
        // SAFETY: a row of the mask.
        unsafe { std::slice::from_raw_parts(self.mask.add(first), self.n_cells) }
    }
}

impl Cells {
    /// Floats of an unpacked row, filled up to whole groups of lanes.
    fn padded(&self) -> usize {
        self.d.next_multiple_of(LANES)
    }

    /// Unpacks `n` rows from cell `first` on, filled up with zeros; as they were rotated, where they were.
    ///
    /// # Safety
    /// The cells are there, `to` has rows of [`Cells::padded`] floats for them, the CPU has what `V` needs.
    #[inline(always)]
    unsafe fn unpack<V: F32x16>(&self, [first, n]: [usize; 2], head: usize, seq: usize, to: &mut [f32]) {
        let [of_cell, of_head, of_seq] = self.strides;
        for (i, row) in to.chunks_exact_mut(self.padded()).enumerate().take(n) {
            let (row, rest) = row.split_at_mut(self.d);
            rest.fill(0.0);
            let from = self.data.wrapping_add((first + i) * of_cell + head * of_head + seq * of_seq);
            match &self.turbo {
                // SAFETY: the row's bytes.
                Some((turbo, table)) => unsafe { turbo.unpack::<V>(table, from, row) },
                // SAFETY: as many floats.
                None if self.dtype == sys::GGML_TYPE_F32 => unsafe {
                    std::ptr::copy_nonoverlapping(from, row.as_mut_ptr().cast(), 4 * self.d);
                },
                // SAFETY: the table has every type; the type unpacks (checked when the node was made), and the row has its
                // bytes.
                None => unsafe {
                    if let Some(to_float) = (*sys::ggml_get_type_traits(self.dtype)).to_float {
                        to_float(from.cast(), row.as_mut_ptr(), self.d as i64);
                    }
                },
            }
        }
    }
}

/// What a thread works on, in floats of its own.
struct Tiles<'a> {
    /// `[QUERIES][padded d_k]`
    q: &'a mut [f32],
    /// `[CELLS][padded d_k]`
    k: &'a mut [f32],
    /// `[CELLS][padded d_v]`
    v: &'a mut [f32],
    /// `[QUERIES][CELLS]`
    scores: &'a mut [f32],
    /// `[QUERIES][padded d_v]`
    out: &'a mut [f32],
    /// The largest score of each query so far, and the sum of the powers.
    largest: &'a mut [f32],
    sum: &'a mut [f32],
}

thread_local! {
    static FLOATS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl<'a> Tiles<'a> {
    /// Those of heads of these sizes, in `floats`, which grow to what is needed.
    fn new(floats: &'a mut Vec<f32>, d_k: usize, d_v: usize) -> Self {
        let sizes = [QUERIES * d_k, CELLS * d_k, CELLS * d_v, QUERIES * CELLS, QUERIES * d_v, QUERIES, QUERIES];
        let n = sizes.iter().sum::<usize>();
        if floats.len() < n {
            floats.resize(n, 0.0);
        }
        let mut rest = &mut floats[..];
        let mut part = |n: usize| rest.split_off_mut(..n).unwrap_or_default();
        let [q, k, v, scores, out, largest, sum] = sizes.map(&mut part);
        Self { q, k, v, scores, out, largest, sum }
    }
}

/// Products of `R` queries and `C` keys of `n` floats, whole groups of lanes.
///
/// # Safety
/// The matrices have these sizes; the CPU has what `V` needs.
#[inline(always)]
unsafe fn products<V: F32x16, const R: usize, const C: usize>(
    q: At<*const f32>,
    k: At<*const f32>,
    to: At<*mut f32>,
    n: usize,
) {
    let mut sums = [[V::zero(); C]; R];
    for e in (0..n).step_by(LANES) {
        // SAFETY: a group of lanes of each key (the caller).
        let keys: [V; C] = std::array::from_fn(|c| unsafe { V::load(k.data.add(c * k.stride + e)) });
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: a group of lanes of each query (the caller).
            let x = unsafe { V::load(q.data.add(r * q.stride + e)) };
            for (sum, &y) in sums.iter_mut().zip(&keys) {
                *sum = x.mul_add(y, *sum);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (c, sum) in sums.into_iter().enumerate() {
            // SAFETY: a place of the result (the caller).
            unsafe { *to.data.add(r * to.stride + c) = sum.sum() };
        }
    }
}

/// Products of `n_queries` queries with a tile of keys, of `n` floats each.
///
/// # Safety
/// The tiles have these sizes; the CPU has what `V` needs.
#[inline(always)]
unsafe fn all_products<V: F32x16>(t: &mut Tiles<'_>, n_queries: usize, n_keys: usize, n: usize) {
    let (q, k, to) = (t.q.as_ptr(), t.k.as_ptr(), t.scores.as_mut_ptr());
    let at = |query: usize, key: usize| {
        let q = At { data: q.wrapping_add(query * n), stride: n };
        let k = At { data: k.wrapping_add(key * n), stride: n };
        (q, k, At { data: to.wrapping_add(query * CELLS + key), stride: CELLS })
    };
    let mut query = 0;
    while query < n_queries {
        let left = n_queries - query;
        // Keys behind the last are whatever the tile holds, and their products are not looked at.
        if V::N_REGISTERS == 1 && left >= 4 {
            for key in (0..n_keys).step_by(4) {
                let (q, k, to) = at(query, key);
                // SAFETY: queries, keys and results of the tiles, whose sizes are multiples of 4.
                unsafe { products::<V, 4, 4>(q, k, to, n) };
            }
            query += 4;
        } else if left >= 2 {
            for key in (0..n_keys).step_by(2) {
                let (q, k, to) = at(query, key);
                // SAFETY: likewise.
                unsafe { products::<V, 2, 2>(q, k, to, n) };
            }
            query += 2;
        } else {
            for key in (0..n_keys).step_by(4) {
                let (q, k, to) = at(query, key);
                // SAFETY: likewise.
                unsafe { products::<V, 1, 4>(q, k, to, n) };
            }
            query += 1;
        }
    }
}

/// Makes scores of products: scaled, capped, masked; what is behind `mask` is masked.
#[inline(always)]
fn scored(products: &mut [f32; CELLS], mask: &[u16], o: &Operands) {
    if o.softcap == 0.0 {
        products.iter_mut().for_each(|x| *x *= o.scale);
    } else {
        let factor = o.scale / o.softcap;
        for x in products.iter_mut() {
            let twice = (2.0 * factor * *x).clamp(-40.0, 40.0);
            *x = o.softcap * (1.0 - 2.0 / (exp(twice) + 1.0));
        }
    }
    for (x, &mask) in products.iter_mut().zip(mask) {
        *x = if mask == MASKED { f32::NEG_INFINITY } else { *x };
    }
    products[mask.len()..].fill(f32::NEG_INFINITY);
}

/// `exp(x - largest)`; nothing of a masked score.
#[inline(always)]
fn power(x: f32, largest: f32) -> f32 {
    let power = exp((x - largest).clamp(-87.0, 0.0));
    if x == f32::NEG_INFINITY { 0.0 } else { power }
}

/// The powers of a row of scores and their sum, where the largest so far was `largest`; gives the largest, the factor that
/// what was added up before has to take, and the sum.
#[inline(always)]
fn powers(scores: &mut [f32; CELLS], largest: f32) -> (f32, f32, f32) {
    let mut lanes = [largest; LANES];
    for group in scores.chunks_exact(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(group) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    let new = lanes.into_iter().fold(largest, |a, b| if b > a { b } else { a });
    let base = if new == f32::NEG_INFINITY { 0.0 } else { new };
    let mut sums = [0.0; LANES];
    for group in scores.chunks_exact_mut(LANES) {
        for (sum, x) in sums.iter_mut().zip(group) {
            *x = power(*x, base);
            *sum += *x;
        }
    }
    let half = |i: usize| sum_array(std::array::from_fn(|l| sums[i + l]));
    (new, power(largest, base), half(0) + half(8))
}

/// One part of the work: a tile of the queries that share a key head of a sequence.
///
/// # Safety
/// All pointers are good for their sizes and strides, the part is one of [`Operands::n_parts`], the CPU has what `V` needs.
#[inline(always)]
unsafe fn attend<V: F32x16>(o: &Operands, part: usize, t: &mut Tiles<'_>) {
    let (n_tiles, n_group) = (o.n_tiles(), o.n_group());
    let (tile, head_kv, seq) = (part % n_tiles, part / n_tiles % o.n_head_kv, part / n_tiles / o.n_head_kv);
    let first = tile * QUERIES;
    let n = QUERIES.min(n_group * o.n_rows - first);
    let (d_k, d_v) = (o.k.padded(), o.v.padded());
    let row_of = |i: usize| (first + i) / n_group;
    let head_of = |i: usize| head_kv * n_group + (first + i) % n_group;
    for (i, query) in t.q.chunks_exact_mut(d_k).enumerate().take(n) {
        let at = row_of(i) * o.q_strides[0] + head_of(i) * o.q_strides[1] + seq * o.q_strides[2];
        query[o.k.d..].fill(0.0);
        // SAFETY: a token's query.
        unsafe { std::ptr::copy_nonoverlapping(o.q.wrapping_add(at).cast(), query.as_mut_ptr(), o.k.d) };
        if let Some((turbo, _)) = o.k.turbo {
            turbo.rotate(query);
        }
    }
    t.out[..n * d_v].fill(0.0);
    t.largest.fill(f32::NEG_INFINITY);
    t.sum.fill(0.0);
    let rows = row_of(0)..row_of(n - 1) + 1;
    for cell in (0..o.n_cells).step_by(CELLS) {
        let n_cells = CELLS.min(o.n_cells - cell);
        // SAFETY: rows of the mask. A later token sees more cells.
        let sees = |row| unsafe { o.mask_of(row, seq)[cell..cell + n_cells].iter().any(|&mask| mask != MASKED) };
        if !rows.clone().rev().any(sees) {
            continue;
        }
        // SAFETY: cells of this head; the tiles have room.
        unsafe {
            o.k.unpack::<V>([cell, n_cells], head_kv, seq, t.k);
            all_products::<V>(t, n, n_cells, d_k);
            o.v.unpack::<V>([cell, n_cells], head_kv, seq, t.v);
        }
        let (scores, _) = t.scores.as_chunks_mut::<CELLS>();
        for (i, scores) in scores.iter_mut().enumerate().take(n) {
            // SAFETY: a row of the mask.
            let mask = unsafe { o.mask_of(row_of(i), seq) };
            scored(scores, &mask[cell..cell + n_cells], o);
            let (largest, factor, sum) = powers(scores, t.largest[i]);
            (t.largest[i], t.sum[i]) = (largest, t.sum[i].mul_add(factor, sum));
            t.out[i * d_v..][..d_v].iter_mut().for_each(|x| *x *= factor);
        }
        let weights = At { data: t.scores.as_ptr(), stride: CELLS };
        let v = At { data: t.v.as_ptr(), stride: d_v };
        let out = At { data: t.out.as_mut_ptr(), stride: d_v };
        // SAFETY: the tiles have these sizes.
        unsafe { add_product::<V, TOGETHER>(weights, v, out, [n, n_cells, d_v]) };
    }
    for (i, out) in t.out.chunks_exact_mut(d_v).enumerate().take(n) {
        let (mut factor, mut sum) = (1.0, t.sum[i]);
        if !o.sinks.is_null() {
            // SAFETY: one for each head.
            let sink = unsafe { *o.sinks.add(head_of(i)) };
            let largest = if sink > t.largest[i] { sink } else { t.largest[i] };
            factor = power(t.largest[i], largest);
            sum = sum.mul_add(factor, power(sink, largest));
        }
        // Who sees nothing gets nothing.
        let factor = if sum == 0.0 { 0.0 } else { factor / sum };
        out.iter_mut().for_each(|x| *x *= factor);
        if let Some((turbo, _)) = o.v.turbo {
            turbo.rotate_back(out);
        }
        let at = ((seq * o.n_rows + row_of(i)) * o.n_head + head_of(i)) * o.v.d;
        // SAFETY: a token's result.
        unsafe { std::ptr::copy_nonoverlapping(out.as_ptr(), o.out.add(at), o.v.d) };
    }
}

/// Every `nth` part from `ith` on, so that threads share the tokens that see most.
///
/// # Safety
/// As [`attend`], of all parts.
#[inline(always)]
unsafe fn parts<V: F32x16>(o: &Operands, [ith, nth]: [usize; 2], t: &mut Tiles<'_>) {
    for part in (ith..o.n_parts()).step_by(nth) {
        // SAFETY: handed on.
        unsafe { attend::<V>(o, part, t) };
    }
}

by_isa!(parts_on, parts, (operands: &Operands, thread: [usize; 2], tiles: &mut Tiles<'_>));

/// The parts of one thread.
///
/// # Safety
/// As [`attend`], of all parts; the instruction set is available.
unsafe fn on_isa(isa: Isa, o: &Operands, thread: [usize; 2]) {
    // Taken out: a function that is called within another one's closure is not compiled for the instruction set.
    let mut floats = FLOATS.take();
    let mut tiles = Tiles::new(&mut floats, o.k.padded(), o.v.padded());
    // SAFETY: handed on.
    unsafe { parts_on(isa, o, thread, &mut tiles) };
    FLOATS.set(floats);
}

/// `src[0]: [d_k, n_rows, n_head, n_seqs]` F32 queries with whole rows, `src[1]` keys and `src[2]` values, `[.., n_cells, n_head_kv,
/// n_seqs]` of any type that unpacks or in bytes as [`Turbo`] has them, `src[3]: [n_cells, >= n_rows, 1, n_seqs]` F16 mask of zeros
/// and minus infinities, and perhaps `src[4]: [n_head]` F32 sinks give `dst: [d_v, n_head, n_rows, n_seqs]` F32.
/// Parameters: [`Turbo::word`] of keys and of values, scale, and a cap on scores, 0 for none.
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn attention_over_cells(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let isa = Isa::chosen().unwrap_or(Isa::Scalar);
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has four operands.
    let [q, k, v, mask] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    // SAFETY: null, or an operand.
    let sinks = unsafe { dst.src[4].as_ref() };
    let parameter = |i: usize| dst.op_params[FIRST_PARAMETER + i];
    let cells = |t: &sys::ggml_tensor, word: i32, d: i64| Cells {
        turbo: Turbo::from_word(word).map(|turbo| (turbo, turbo.table())),
        dtype: t.type_,
        data: t.data.cast(),
        strides: [t.nb[1], t.nb[2], t.nb[3]],
        d: d as usize,
    };
    let operands = Operands {
        n_cells: k.ne[1] as usize,
        n_rows: q.ne[1] as usize,
        n_head: q.ne[2] as usize,
        n_head_kv: k.ne[2] as usize,
        n_seqs: q.ne[3] as usize,
        q: q.data.cast(),
        q_strides: [q.nb[1], q.nb[2], q.nb[3]],
        k: cells(k, parameter(0), q.ne[0]),
        v: cells(v, parameter(1), dst.ne[0]),
        mask: mask.data.cast(),
        mask_rows: mask.ne[1] as usize,
        sinks: sinks.map_or(std::ptr::null(), |sinks| sinks.data.cast()),
        scale: f32::from_bits(parameter(2) as u32),
        softcap: f32::from_bits(parameter(3) as u32),
        out: dst.data.cast(),
    };
    // SAFETY: shapes were checked when the node was made; parts are this thread's.
    unsafe { on_isa(isa, &operands, [ith as usize, nth as usize]) }
}

#[cfg(test)]
#[path = "cell_attention_tests.rs"]
mod tests;
