//! Products with the experts that rows picked: each expert's weights are read once for all rows that want it.

use ggml_sys as sys;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;

use super::Path;
use super::activations::{MAX_ROWS, Rows, Shape};
use super::nodes::{self, n_rows};
use super::product::{self as share, Ahead, Matrix};
use super::weight_type::Kind;

thread_local! {
    /// Picks in the order of their experts; kept from node to node.
    static ORDER: RefCell<Vec<Pick>> = const { RefCell::new(Vec::new()) };
}

/// One row of one token with one expert.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pick {
    pub(super) expert: u32,
    /// Which row of activations.
    pub(super) row: u32,
    /// Which row of the result.
    pub(super) to: u32,
}

/// `src[0]: [k, m, n_expert]`, for each of `src[2]: [n_used, n_tokens]` (i32) one matrix of it, times `src[1]`, the rows of
/// `src[3]: [k, n_used or 1, n_tokens]` quantised (floats: those rows), gives `dst: [m, n_used, n_tokens]` F32.
///
/// # Safety
/// Called by ggml for a node that `Graph::kernel_experts` made, by each of `nth` threads.
pub(super) unsafe extern "C" fn products(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has four operands.
    let [w, y, ids, x] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    let (Some(kind), Some(path)) = (Kind::of(w.type_), Path::chosen()) else { return };
    let shape = Shape { n: n_rows(x), k: w.ne[0] as usize, format: kind.format() };
    // SAFETY: `src[1]` was made for this shape, or is the rows.
    let rows = unsafe { nodes::rows(shape, y) };
    let [k_bytes, m, n_expert] = [kind.row_bytes(shape.k), w.ne[1] as usize, w.ne[2] as usize];
    let (n_used, n_tokens, n_each) = (ids.ne[0] as usize, ids.ne[1] as usize, x.ne[1] as usize);
    let out = dst.data.cast::<f32>();
    ORDER.with_borrow_mut(|order| {
        order.clear();
        for to in 0..n_used * n_tokens {
            let (t, u) = (to / n_used, to % n_used);
            let id = ids.data.wrapping_byte_add(t * ids.nb[1] + u * ids.nb[0]).cast::<i32>();
            // SAFETY: within the ids.
            let id = unsafe { *id };
            let row = (t * n_each + u % n_each) as u32;
            match u32::try_from(id) {
                Ok(expert) if (expert as usize) < n_expert => order.push(Pick { expert, row, to: to as u32 }),
                // No such expert: the row says so, rather than hold what was there before.
                _ => (0..m).for_each(|i| {
                    // SAFETY: within the result; all threads write the same.
                    unsafe { *out.wrapping_add(to * m + i) = f32::NAN }
                }),
            }
        }
        order.sort_unstable();
        let experts = Experts { kind, data: w.data.cast(), m, bytes: k_bytes * m };
        // SAFETY: operands have these shapes (checked when the node was made); the picks lie in them.
        unsafe { share(path, &experts, &rows, order, out, ith as usize, nth as usize) }
    });
}

/// Matrices of `m` rows one after the other.
pub(super) struct Experts {
    pub(super) kind: Kind,
    pub(super) data: *const u8,
    pub(super) m: usize,
    /// Bytes of one.
    pub(super) bytes: usize,
}

/// The share of thread `ith` of `nth`: its part of every expert's rows. Results are `[m]` for each pick.
///
/// # Safety
/// `path` is available; `rows` are quantised for the weights; `order` is sorted, within the experts, the rows and `out`.
pub(super) unsafe fn share(
    path: Path,
    w: &Experts,
    rows: &Rows,
    order: &[Pick],
    out: *mut f32,
    ith: usize,
    nth: usize,
) {
    let part = share::part(w.m, ith, nth);
    let row_bytes = w.kind.row_bytes(rows.shape.k);
    let matrix = |pick: &Pick| w.data.wrapping_add(pick.expert as usize * w.bytes);
    let mut at = 0;
    while let Some(first) = order.get(at) {
        let same = order[at..].iter().take_while(|p| p.expert == first.expert).count();
        let picks = &order[at..at + same];
        at += same;
        let this = Matrix { kind: w.kind, data: matrix(first), m: w.m };
        let next = order.get(at).map_or(this.data, matrix).wrapping_add(part.start * row_bytes);
        for (i, picks) in picks.chunks(MAX_ROWS).enumerate() {
            let columns = rows.gathered(picks.len(), |j| picks[j].row as usize);
            let to = std::array::from_fn(|j| out.wrapping_add(picks[j.min(picks.len() - 1)].to as usize * w.m));
            let ahead = if i == 0 { Ahead::Then(next) } else { Ahead::Nothing };
            // SAFETY: the rows lie in the weight and are as long as the columns.
            unsafe { share::groups(path, &this, part.clone(), row_bytes, &columns, &to, ahead) };
        }
        // SAFETY: all rows were quantised.
        if unsafe { rows.odd() } {
            // SAFETY: the caller's promise.
            unsafe { odd_rows(&this, rows, picks, out, part.clone()) };
        }
    }
}

/// Rows with a quant of -128, by ggml.
///
/// # Safety
/// As [`share`], for picks of one expert.
unsafe fn odd_rows(w: &Matrix, rows: &Rows, picks: &[Pick], out: *mut f32, part: Range<usize>) {
    for pick in picks {
        let to = out.wrapping_add(pick.to as usize * w.m);
        // SAFETY: the caller's promise.
        unsafe { share::odd_row(w, rows, pick.row as usize, to, part.clone()) };
    }
}
