//! Attention over cells of a KV cache, of any type that unpacks: rows are unpacked tile by tile, into what stays in the
//! cache of the processor, and serve all queries of a tile. Softmax in one pass; sums and products are F32.
//!
//! Sums are made of runs of [`RUN`] cells, and those are added up in order. Runs of few tokens are computed apart, so that
//! threads share them ([`attention_over_runs`], [`sums_of_runs`]); of many tokens, tile by tile one after the other
//! ([`attention_over_cells`]). A token has the same bits both ways, in every instruction set, with any number of threads,
//! whatever tokens and masked cells stand beside it: a tile or a run that nobody sees changes nothing.
//!
//! Source: Milakov and Gimelshein 2018 (softmax in one pass); Dao et al. 2022 (tiles).

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use ggml_sys as sys;

use crate::cell_rows::Cells;
use crate::f32x16::{F32x16, by_isa};
use crate::geglu::exp;
use crate::isa::Isa;
use crate::lanes::sum_array;
use crate::matrix::{At, LANES, add_product};
use crate::turbo::{FIRST_PARAMETER, Turbo};

/// Queries and cells of a tile.
const QUERIES: usize = 32;
const CELLS: usize = 64;

/// Cells of a run, whole tiles.
pub const RUN: usize = 512;

/// Floats of a run's sums beside those of the values: the largest score, and the sum of the powers.
pub const BESIDE: usize = 2;

/// Sums of values that are in registers together.
const TOGETHER: usize = 4;

/// A masked cell, as F16.
const MASKED: u16 = 0xFC00;

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
    /// `[d_v]` for each head of each row of each sequence; of runs apart `[BESIDE + d_v, n_runs]`.
    out: *mut f32,
    /// Runs are computed apart.
    apart: bool,
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

    fn n_runs(&self) -> usize {
        self.n_cells.div_ceil(RUN)
    }

    fn n_parts(&self) -> usize {
        self.n_tiles() * self.n_head_kv * self.n_seqs * if self.apart { self.n_runs() } else { 1 }
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
    /// `out`, `largest` and `sum` of all runs before.
    all_out: &'a mut [f32],
    all_largest: &'a mut [f32],
    all_sum: &'a mut [f32],
}

thread_local! {
    static FLOATS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl<'a> Tiles<'a> {
    /// Those of heads of these sizes, in `floats`, which grow to what is needed.
    fn new(floats: &'a mut Vec<f32>, d_k: usize, d_v: usize) -> Self {
        let of_sums = [QUERIES * d_v, QUERIES, QUERIES];
        let [out, largest, sum] = of_sums;
        let sizes = [QUERIES * d_k, CELLS * d_k, CELLS * d_v, QUERIES * CELLS, out, largest, sum, out, largest, sum];
        let n = sizes.iter().sum::<usize>();
        if floats.len() < n {
            floats.resize(n, 0.0);
        }
        let mut rest = &mut floats[..];
        let mut part = |n: usize| rest.split_off_mut(..n).unwrap_or_default();
        let [q, k, v, scores, out, largest, sum, all_out, all_largest, all_sum] = sizes.map(&mut part);
        Self { q, k, v, scores, out, largest, sum, all_out, all_largest, all_sum }
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
        // Not in a closure, which is not compiled for the instruction set.
        let mut keys = [V::zero(); C];
        for (c, key) in keys.iter_mut().enumerate() {
            // SAFETY: a group of lanes of each key (the caller).
            *key = unsafe { V::load(k.data.add(c * k.stride + e)) };
        }
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

/// Adds the sums of a run to those of the runs before it: the largest score, the sum of the powers, and the sums of values.
#[inline(always)]
fn add_run(all: (&mut f32, &mut f32, &mut [f32]), run: (f32, f32, &[f32])) {
    let ((all_largest, all_sum, all_out), (largest, sum, out)) = (all, run);
    // Of what is not a number the sum is none either, and goes on.
    if sum == 0.0 {
        return;
    }
    let new = if largest > *all_largest { largest } else { *all_largest };
    let (old, more) = (power(*all_largest, new), power(largest, new));
    *all_largest = new;
    *all_sum = old * *all_sum + more * sum;
    for (all, &x) in all_out.iter_mut().zip(out) {
        *all = old * *all + more * x;
    }
}

/// Makes a token's result of its sums: with a sink there is one more score.
#[inline(always)]
fn finish(out: &mut [f32], largest: f32, mut sum: f32, sink: Option<f32>, turbo: Option<Turbo>) {
    let mut factor = 1.0;
    if let Some(sink) = sink {
        let new = if sink > largest { sink } else { largest };
        factor = power(largest, new);
        sum = sum.mul_add(factor, power(sink, new));
    }
    // Who sees nothing gets nothing.
    let factor = if sum == 0.0 { 0.0 } else { factor / sum };
    out.iter_mut().for_each(|x| *x *= factor);
    if let Some(turbo) = turbo {
        turbo.rotate_back(out);
    }
}

/// The queries of one part of the work: those of a tile that share a key head of a sequence.
struct Tile {
    n_group: usize,
    head_kv: usize,
    seq: usize,
    /// Its first query among those of the key head, and how many it has.
    first: usize,
    n: usize,
}

impl Tile {
    fn new(o: &Operands, number: usize) -> Self {
        let (n_tiles, n_group) = (o.n_tiles(), o.n_group());
        let first = number % n_tiles * QUERIES;
        let (head_kv, seq) = (number / n_tiles % o.n_head_kv, number / n_tiles / o.n_head_kv);
        Self { n_group, head_kv, seq, first, n: QUERIES.min(n_group * o.n_rows - first) }
    }

    fn row(&self, i: usize) -> usize {
        (self.first + i) / self.n_group
    }

    fn head(&self, i: usize) -> usize {
        self.head_kv * self.n_group + (self.first + i) % self.n_group
    }

    /// The number of query `i` among all of the result.
    fn number(&self, o: &Operands, i: usize) -> usize {
        (self.seq * o.n_rows + self.row(i)) * o.n_head + self.head(i)
    }
}

/// One part of the work: a tile, and one run of its cells where runs are apart.
///
/// # Safety
/// All pointers are good for their sizes and strides, the part is one of [`Operands::n_parts`], the CPU has what `V` needs.
#[inline(always)]
unsafe fn attend<V: F32x16>(o: &Operands, part: usize, t: &mut Tiles<'_>) {
    let tile = Tile::new(o, if o.apart { part / o.n_runs() } else { part });
    let d_k = o.k.padded();
    for (i, query) in t.q.chunks_exact_mut(d_k).enumerate().take(tile.n) {
        let at = tile.row(i) * o.q_strides[0] + tile.head(i) * o.q_strides[1] + tile.seq * o.q_strides[2];
        query[o.k.d..].fill(0.0);
        // SAFETY: a token's query.
        unsafe { std::ptr::copy_nonoverlapping(o.q.wrapping_add(at).cast(), query.as_mut_ptr(), o.k.d) };
        if let Some((turbo, _)) = o.k.turbo {
            turbo.rotate(query);
        }
    }
    // SAFETY: handed on; runs of the cells.
    unsafe {
        match o.apart {
            true => give_run::<V>(o, &tile, part % o.n_runs(), t),
            false => give_all_runs::<V>(o, &tile, t),
        }
    }
}

/// Gives the sums of one run.
///
/// # Safety
/// As [`attend`]; the run is there.
#[inline(always)]
unsafe fn give_run<V: F32x16>(o: &Operands, tile: &Tile, run: usize, t: &mut Tiles<'_>) {
    // SAFETY: handed on.
    unsafe { attend_to_run::<V>(o, tile, run, t) };
    let (d_v, size) = (o.v.padded(), BESIDE + o.v.d);
    for i in 0..tile.n {
        let to = o.out.wrapping_add((tile.number(o, i) * o.n_runs() + run) * size);
        // SAFETY: the sums of this run of a token, as many floats.
        let to = unsafe { std::slice::from_raw_parts_mut(to, size) };
        (to[0], to[1]) = (t.largest[i], t.sum[i]);
        to[BESIDE..].copy_from_slice(&t.out[i * d_v..][..o.v.d]);
    }
}

/// Adds up all runs and gives the results of tokens.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn give_all_runs<V: F32x16>(o: &Operands, tile: &Tile, t: &mut Tiles<'_>) {
    let d_v = o.v.padded();
    t.all_out[..tile.n * d_v].fill(0.0);
    t.all_largest.fill(f32::NEG_INFINITY);
    t.all_sum.fill(0.0);
    for run in 0..o.n_runs() {
        // SAFETY: handed on.
        unsafe { attend_to_run::<V>(o, tile, run, t) };
        for i in 0..tile.n {
            let all = (&mut t.all_largest[i], &mut t.all_sum[i], &mut t.all_out[i * d_v..][..d_v]);
            add_run(all, (t.largest[i], t.sum[i], &t.out[i * d_v..][..d_v]));
        }
    }
    for (i, out) in t.all_out.chunks_exact_mut(d_v).enumerate().take(tile.n) {
        // SAFETY: one for each head.
        let sink = (!o.sinks.is_null()).then(|| unsafe { *o.sinks.add(tile.head(i)) });
        finish(out, t.all_largest[i], t.all_sum[i], sink, o.v.turbo.map(|(turbo, _)| turbo));
        // SAFETY: a token's result.
        unsafe { std::ptr::copy_nonoverlapping(out.as_ptr(), o.out.add(tile.number(o, i) * o.v.d), o.v.d) };
    }
}

/// The sums of a tile over a run of cells.
///
/// # Safety
/// As [`attend`]; the run is there.
#[inline(always)]
unsafe fn attend_to_run<V: F32x16>(o: &Operands, tile: &Tile, run: usize, t: &mut Tiles<'_>) {
    let (&Tile { head_kv, seq, n, .. }, d_k, d_v) = (tile, o.k.padded(), o.v.padded());
    t.out[..n * d_v].fill(0.0);
    t.largest.fill(f32::NEG_INFINITY);
    t.sum.fill(0.0);
    let rows = tile.row(0)..tile.row(n - 1) + 1;
    for cell in (run * RUN..o.n_cells.min((run + 1) * RUN)).step_by(CELLS) {
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
            let mask = unsafe { o.mask_of(tile.row(i), seq) };
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

/// The parameter that tells [`attention_over_cells`] from other nodes with functions, at [`FIRST_PARAMETER`]: a device that attends by
/// itself (`vendor/ggml-sys/cuda/attention.cu`) follows this file.
pub const ATTEND_CELLS: i32 = 0x6174_7463;

/// `src[0]: [d_k, n_rows, n_head, n_seqs]` F32 queries with whole rows, `src[1]` keys and `src[2]` values, `[.., n_cells, n_head_kv,
/// n_seqs]` of any type that unpacks or in bytes as [`Turbo`] has them, `src[3]: [n_cells, >= n_rows, 1, n_seqs]` F16 mask of zeros
/// and minus infinities, and perhaps `src[4]: [n_head]` F32 sinks give `dst: [d_v, n_head, n_rows, n_seqs]` F32.
/// Parameters: [`ATTEND_CELLS`], [`Turbo::word`] of keys and of values, scale, a cap on scores, 0 for none, `d_v`, and 0 (1 where
/// `src[4]` says whose cells each sequence reads and sinks come behind it: only devices take that).
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn attention_over_cells(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: handed on.
    unsafe { on_node(dst, [ith, nth], false) }
}

/// As [`attention_over_cells`], the sums of each run of [`RUN`] cells apart: `dst: [BESIDE + d_v, n_runs, n_head, n_rows *
/// n_seqs]` F32, no sinks. [`sums_of_runs`] makes attention of them.
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn attention_over_runs(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: handed on.
    unsafe { on_node(dst, [ith, nth], true) }
}

/// # Safety
/// As [`attention_over_cells`], or [`attention_over_runs`] with `apart`.
unsafe fn on_node(dst: *mut sys::ggml_tensor, [ith, nth]: [c_int; 2], apart: bool) {
    let isa = Isa::chosen().unwrap_or(Isa::Scalar);
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has four operands.
    let [q, k, v, mask] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    // SAFETY: null, or an operand.
    let sinks = unsafe { dst.src[4].as_ref() };
    let parameter = |i: usize| dst.op_params[FIRST_PARAMETER + 1 + i];
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
        v: cells(v, parameter(1), parameter(4).into()),
        mask: mask.data.cast(),
        mask_rows: mask.ne[1] as usize,
        sinks: sinks.map_or(std::ptr::null(), |sinks| sinks.data.cast()),
        scale: f32::from_bits(parameter(2) as u32),
        softcap: f32::from_bits(parameter(3) as u32),
        out: dst.data.cast(),
        apart,
    };
    // SAFETY: shapes were checked when the node was made; parts are this thread's.
    unsafe { on_isa(isa, &operands, [ith as usize, nth as usize]) }
}

/// Attention of the sums of its runs: `src[0]: [BESIDE + d_v, n_runs, n_head, n_rows * n_seqs]` as [`attention_over_runs`] gives
/// them, and perhaps `src[1]: [n_head]` F32 sinks, give `dst: [d_v, n_head, n_rows, n_seqs]` F32. Parameter: [`Turbo::word`] of the
/// values.
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn sums_of_runs(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let isa = Isa::chosen().unwrap_or(Isa::Scalar);
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has an operand.
    let runs = unsafe { &*dst.src[0] };
    // SAFETY: null, or an operand.
    let sinks = unsafe { dst.src[1].as_ref() };
    let [size, n_runs, n_head, n_tokens] = runs.ne.map(|n| n as usize);
    let turbo = Turbo::from_word(dst.op_params[FIRST_PARAMETER]);
    // SAFETY: `[size, n_runs, n_head, n_tokens]` floats, contiguous (checked when the node was made).
    let runs = unsafe { std::slice::from_raw_parts(runs.data.cast::<f32>(), size * n_runs * n_head * n_tokens) };
    // SAFETY: one for each head.
    let sinks = sinks.map(|sinks| unsafe { std::slice::from_raw_parts(sinks.data.cast::<f32>(), n_head) });
    for token in (ith as usize..n_head * n_tokens).step_by(nth as usize) {
        let to = dst.data.cast::<f32>().wrapping_add(token * (size - BESIDE));
        // SAFETY: a token's result, of one head, which is this thread's.
        let to = unsafe { std::slice::from_raw_parts_mut(to, size - BESIDE) };
        // SAFETY: the instruction set is available.
        unsafe {
            sums_on(isa, &runs[token * n_runs * size..][..n_runs * size], sinks.map(|s| s[token % n_head]), turbo, to)
        };
    }
}

/// `V` is of no use but to compile it for an instruction set.
///
/// # Safety
/// None: as the other functions that are compiled so.
#[inline(always)]
unsafe fn sums<V: F32x16>(runs: &[f32], sink: Option<f32>, turbo: Option<Turbo>, to: &mut [f32]) {
    to.fill(0.0);
    let (mut largest, mut sum) = (f32::NEG_INFINITY, 0.0);
    for run in runs.chunks_exact(BESIDE + to.len()) {
        add_run((&mut largest, &mut sum, to), (run[0], run[1], &run[BESIDE..]));
    }
    finish(to, largest, sum, sink, turbo);
}

by_isa!(sums_on, sums, (runs: &[f32], sink: Option<f32>, turbo: Option<Turbo>, to: &mut [f32]));

#[cfg(test)]
#[path = "cell_attention_tests.rs"]
mod tests;
