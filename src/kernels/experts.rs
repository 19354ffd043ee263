//! Products with one of several matrices for each column: the experts that tokens were routed to, or the matrices of heads.
//! Each matrix is read once for all columns that want it.

use ggml_sys as sys;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use crate::activations::{Activations, MAX_COLUMNS, Shape};
#[cfg(target_arch = "x86_64")]
use crate::amx;
use crate::isa::Isa;
use crate::nodes::{activations, joined, n_columns};
use crate::product::{Prefetch, redo_by_ggml, rows_of_thread, rows_times_tile};
use crate::weight_rows::Matrix;
use crate::weight_type::WeightType;

thread_local! {
    /// Routes in the order of their experts; kept from node to node.
    static ORDER: RefCell<Vec<Route>> = const { RefCell::new(Vec::new()) };
}

#[cfg(target_arch = "x86_64")]
thread_local! {
    /// Columns of one expert; kept likewise.
    static COLUMNS: RefCell<Vec<amx::Lanes>> = const { RefCell::new(Vec::new()) };
}

/// One token that goes to one expert.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    pub(crate) expert: u32,
    /// Which column of activations.
    pub(crate) from: u32,
    /// Which column of the result.
    pub(crate) to: u32,
}

/// The id of a column that no expert is wanted for: it becomes zeros.
pub const NO_EXPERT: i32 = -1;

/// `src[0]: [k, m, n_expert]`, for each of `src[2]: [n_used, n_tokens]` (i32) one matrix of it, times `src[1]`, the columns
/// of `src[3]: [k, n_used or 1, n_tokens]` quantised (floats: those columns), gives `dst: [m, n_used, n_tokens]` F32.
/// [`NO_EXPERT`] gives zeros, any other id outside NaN. `src[4]`, if there is one, is `src[0]` with its rows joined
/// ([`crate::join_rows`]).
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn expert_products(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has four operands.
    let [w, y, ids, x] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    let (Some(ty), Some(isa)) = (WeightType::of(w.type_), Isa::chosen()) else { return };
    let shape = Shape { n: n_columns(x), k: w.ne[0] as usize, format: ty.format() };
    // SAFETY: `src[1]` was made for this shape, or is the columns.
    let activations = unsafe { activations(shape, isa, y) };
    let [row_bytes, m, n_expert] = [ty.row_bytes(shape.k), w.ne[1] as usize, w.ne[2] as usize];
    let (n_used, n_tokens, n_each) = (ids.ne[0] as usize, ids.ne[1] as usize, x.ne[1] as usize);
    let out = dst.data.cast::<f32>();
    ORDER.with_borrow_mut(|order| {
        order.clear();
        for to in 0..n_used * n_tokens {
            let (t, u) = (to / n_used, to % n_used);
            let id = ids.data.wrapping_byte_add(t * ids.nb[1] + u * ids.nb[0]).cast::<i32>();
            // SAFETY: within the ids.
            let id = unsafe { *id };
            let from = (t * n_each + u % n_each) as u32;
            match u32::try_from(id) {
                Ok(expert) if (expert as usize) < n_expert => order.push(Route { expert, from, to: to as u32 }),
                // The column says so, rather than hold what was there before.
                _ => rows_of_thread(isa, ty, m, ith as usize, nth as usize).for_each(|i| {
                    let nothing = if id == NO_EXPERT { 0.0 } else { f32::NAN };
                    // SAFETY: within the result; no other thread writes these rows.
                    unsafe { *out.wrapping_add(to * m + i) = nothing }
                }),
            }
        }
        order.sort_unstable();
        // SAFETY: null, or one more operand.
        let joined = unsafe { joined(isa, ty, dst.src[4]) };
        let experts = Experts { ty, data: w.data.cast(), joined, n_rows: m, bytes: row_bytes * m };
        // SAFETY: operands have these shapes (checked when the node was made); the routes lie in them.
        unsafe { on_thread(isa, &experts, &activations, order, out, ith as usize, nth as usize) }
    });
}

/// Ids of experts without those of whom there are copies elsewhere: `src[0]: [n_used, n_tokens]` (i32) gives `dst`, of the same
/// shape and contiguous, with [`NO_EXPERT`] where `src[1]: [n_expert]` (i32) has the number of a copy, which is not below zero.
/// `src[2]: [n_expert + 1]` (i32) counts how often each expert was asked for, and behind them how often there was a copy.
///
/// # Safety
/// The node contract. Nobody but such nodes changes `src[2]` meanwhile.
pub unsafe extern "C" fn experts_left(dst: *mut sys::ggml_tensor, ith: c_int, _: c_int, _: *mut c_void) {
    if ith != 0 {
        return;
    }
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has three operands.
    let [ids, copies, counts] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    let (n_used, n_tokens, n_expert) = (ids.ne[0] as usize, ids.ne[1] as usize, copies.ne[0] as usize);
    // SAFETY: an aligned number of the counts; graphs that compute at the same time change it by atomics, too.
    let count =
        |i: usize| unsafe { AtomicI32::from_ptr(counts.data.cast::<i32>().wrapping_add(i)) }.fetch_add(1, Relaxed);
    for to in 0..n_used * n_tokens {
        let (t, u) = (to / n_used, to % n_used);
        // SAFETY: within the ids.
        let id = unsafe { *ids.data.wrapping_byte_add(t * ids.nb[1] + u * ids.nb[0]).cast::<i32>() };
        let mut left = id;
        if let Some(expert) = usize::try_from(id).ok().filter(|&expert| expert < n_expert) {
            count(expert);
            // SAFETY: within the numbers.
            if unsafe { *copies.data.cast::<i32>().wrapping_add(expert) } >= 0 {
                count(n_expert);
                left = NO_EXPERT;
            }
        }
        // SAFETY: within the result, which is contiguous.
        unsafe { *dst.data.cast::<i32>().wrapping_add(to) = left }
    }
}

/// Each of the matrices `src[0]: [k, m, n]` times the column of its number of each token: `src[1]`, the columns of `src[2]:
/// [k, n, n_tokens]` quantised (floats: those columns), gives `dst: [m, n, n_tokens]` F32. `src[3]`, if there is one, is `src[0]`
/// with its rows joined ([`crate::join_rows`]).
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn head_products(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has three operands.
    let [w, y, x] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    let (Some(ty), Some(isa)) = (WeightType::of(w.type_), Isa::chosen()) else { return };
    let shape = Shape { n: n_columns(x), k: w.ne[0] as usize, format: ty.format() };
    // SAFETY: `src[1]` was made for this shape, or is the columns.
    let activations = unsafe { activations(shape, isa, y) };
    let [n_bytes, m, n] = [ty.row_bytes(shape.k) * w.ne[1] as usize, w.ne[1] as usize, w.ne[2] as usize];
    ORDER.with_borrow_mut(|order| {
        order.clear();
        let column = |head: usize, token: usize| (token * n + head) as u32;
        let of_head = |head| (0..x.ne[2] as usize).map(move |token| (head, column(head, token)));
        let routes = (0..n).flat_map(of_head);
        order.extend(routes.map(|(head, at)| Route { expert: head as u32, from: at, to: at }));
        // SAFETY: null, or one more operand.
        let joined = unsafe { joined(isa, ty, dst.src[3]) };
        let heads = Experts { ty, data: w.data.cast(), joined, n_rows: m, bytes: n_bytes };
        // SAFETY: operands have these shapes (checked when the node was made); the routes lie in them, head by head.
        unsafe { on_thread(isa, &heads, &activations, order, dst.data.cast(), ith as usize, nth as usize) }
    });
}

/// Matrices of `n_rows` rows one after the other.
pub(crate) struct Experts {
    pub(crate) ty: WeightType,
    pub(crate) data: *const u8,
    /// As in a [`Matrix`].
    pub(crate) joined: *const u8,
    pub(crate) n_rows: usize,
    /// Bytes of one.
    pub(crate) bytes: usize,
}

/// What thread `ith` of `nth` computes: its part of every expert's rows. Results are `n_rows` for each route.
///
/// # Safety
/// `isa` is available; `x` was made for the weights; `order` is sorted, within the experts, the columns and `out`.
pub(crate) unsafe fn on_thread(
    isa: Isa,
    w: &Experts,
    x: &Activations,
    order: &[Route],
    out: *mut f32,
    ith: usize,
    nth: usize,
) {
    let mine = rows_of_thread(isa, w.ty, w.n_rows, ith, nth);
    let row_bytes = w.ty.row_bytes(x.shape.k);
    let matrix = |route: &Route| {
        let at = route.expert as usize * w.bytes;
        let joined = if w.joined.is_null() { w.joined } else { w.joined.wrapping_add(at) };
        Matrix { ty: w.ty, data: w.data.wrapping_add(at), joined, n_rows: w.n_rows }
    };
    let to = |route: &Route| out.wrapping_add(route.to as usize * w.n_rows);
    let mut at = 0;
    while let Some(first) = order.get(at) {
        let same = order[at..].iter().take_while(|r| r.expert == first.expert).count();
        let routes = &order[at..at + same];
        at += same;
        let this = matrix(first);
        let next = order.get(at).map_or(this, matrix).read().wrapping_add(mine.start * row_bytes);
        #[cfg(target_arch = "x86_64")]
        let in_tiles = amx::takes(isa, w.ty, same);
        #[cfg(not(target_arch = "x86_64"))]
        let in_tiles = false;
        if in_tiles {
            #[cfg(target_arch = "x86_64")]
            COLUMNS.with_borrow_mut(|memory| {
                let from = routes.iter().map(|route| route.from as usize);
                // SAFETY: the columns were quantised, in a node before this one; the rest as for `rows_times_tile` below.
                unsafe {
                    let columns = amx::Columns::gathered(x, from, memory);
                    amx::product(&this, mine.clone(), &columns, |j| to(&routes[j]), next);
                }
            });
        } else {
            for (i, routes) in routes.chunks(MAX_COLUMNS).enumerate() {
                let tile = x.gathered(routes.len(), |j| routes[j].from as usize);
                let to = std::array::from_fn(|j| to(&routes[j.min(routes.len() - 1)]));
                let prefetch = if i == 0 { Prefetch::Then(next) } else { Prefetch::Nothing };
                // SAFETY: the rows lie in the expert's matrix (`rows_of_thread`) and are as long as the columns; every route has
                // room in `out` (the caller).
                unsafe { rows_times_tile(isa, &this, mine.clone(), row_bytes, &tile, &to, prefetch) };
            }
        }
        // SAFETY: every thread has quantised its columns: a node before this one did, which ended with a barrier.
        if this.ty.leaves_minus_128() && unsafe { x.any_has_minus_128() } {
            for route in routes {
                // SAFETY: as for `rows_times_tile` above; the column was quantised.
                unsafe { redo_by_ggml(&this, x, route.from as usize, to(route), mine.clone()) };
            }
        }
    }
}
