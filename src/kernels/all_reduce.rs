//! Sums over ranks: processors that compute one model together, each with some rows or columns of its matrices, add up what
//! each has made, or put it side by side. CUDA's way is in `vendor/ggml-sys/cuda/all_reduce.cu`; this one is for ranks in the
//! host's memory.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ggml_sys as sys;

use crate::FIRST_PARAMETER;
use crate::nodes::n_columns;

/// The parameter that tells [`all_reduce`] from other nodes with functions, at [`crate::FIRST_PARAMETER`]. Behind it stand the
/// number of the group and the rank.
pub const ALL_REDUCE: i32 = 0x616c_6c72;

/// The same for [`all_gather`], which has a third number behind it: rows that follow each other.
pub const ALL_GATHER: i32 = 0x616c_6c67;

/// Ranks that compute at the same time, each on threads of its own. Known by a number as long as this is there.
#[derive(Debug)]
pub struct Meeting {
    number: i32,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    round: Mutex<Round>,
    ended: Condvar,
}

/// One exchange. The next one cannot end before each rank has come to it, so that all have taken the last one by then.
#[derive(Debug)]
struct Round {
    /// Of each rank, once it has come.
    coming: Vec<Option<Vec<f32>>>,
    number: u64,
    /// Of the last round.
    parts: Arc<Vec<Vec<f32>>>,
    broken: bool,
}

/// Meetings by number.
static MEETINGS: Mutex<Vec<Option<Arc<Shared>>>> = Mutex::new(Vec::new());

fn meetings() -> MutexGuard<'static, Vec<Option<Arc<Shared>>>> {
    MEETINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Meeting {
    /// Of so many ranks.
    pub fn new(n_ranks: usize) -> Self {
        let round = Round { coming: vec![None; n_ranks], number: 0, parts: Arc::default(), broken: false };
        let shared = Arc::new(Shared { round: Mutex::new(round), ended: Condvar::new() });
        let mut all = meetings();
        let free = all.iter().position(Option::is_none).unwrap_or(all.len());
        if free == all.len() {
            all.push(None);
        }
        all[free] = Some(Arc::clone(&shared));
        Self { number: i32::try_from(free).expect("few models are in use at once"), shared }
    }

    /// What nodes know it by.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// All ranks will come from here on; nobody is there now. What a round left that was broken up is forgotten.
    pub fn begin(&self) {
        let mut round = self.shared.round();
        round.broken = false;
        round.coming.fill(None);
    }

    /// Some rank will not come: the others go on with what they have, which is worth nothing.
    pub fn break_up(&self) {
        self.shared.round().broken = true;
        self.shared.ended.notify_all();
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        meetings()
            .iter_mut()
            .filter(|place| place.as_ref().is_some_and(|s| Arc::ptr_eq(s, &self.shared)))
            .for_each(|place| *place = None);
    }
}

impl Shared {
    fn round(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parts of all ranks, once each has come; `None` where one will not.
    fn exchange(&self, rank: usize, part: &[f32]) -> Option<Arc<Vec<Vec<f32>>>> {
        let mut round = self.round();
        *round.coming.get_mut(rank)? = Some(part.to_vec());
        if round.coming.iter().all(Option::is_some) {
            round.parts = Arc::new(round.coming.iter_mut().filter_map(Option::take).collect());
            round.number += 1;
            self.ended.notify_all();
            return Some(Arc::clone(&round.parts));
        }
        let number = round.number;
        let round = self.ended.wait_while(round, |round| round.number == number && !round.broken);
        let round = round.unwrap_or_else(PoisonError::into_inner);
        (round.number != number).then(|| Arc::clone(&round.parts))
    }
}

/// Gives `make` the parts of all ranks that come to such a node, in their order, and what it is to make of them.
///
/// # Safety
/// The node contract; the operand and the result are F32 and dense.
unsafe fn exchanged(dst: *mut sys::ggml_tensor, make: impl FnOnce(&[Vec<f32>], &mut [f32])) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: operands are alive, or absent.
    let Some(src) = (unsafe { dst.src[0].as_ref() }) else { return };
    let n = |t: &sys::ggml_tensor| t.ne[0] as usize * n_columns(t);
    // SAFETY: dense (the caller).
    let from = unsafe { std::slice::from_raw_parts(src.data.cast::<f32>(), n(src)) };
    // SAFETY: dense (the caller), and this thread's alone.
    let to = unsafe { std::slice::from_raw_parts_mut(dst.data.cast::<f32>(), n(dst)) };
    let [group, rank] = [1, 2].map(|i| usize::try_from(dst.op_params[FIRST_PARAMETER + i]).unwrap_or(usize::MAX));
    let shared = meetings().get(group).cloned().flatten();
    match shared.and_then(|shared| shared.exchange(rank, from)) {
        Some(parts) => make(&parts, to),
        None => to.fill(f32::NAN),
    }
}

/// The sum of the parts, in their order.
fn add_up(parts: &[Vec<f32>], to: &mut [f32]) {
    for (i, part) in parts.iter().enumerate() {
        to.iter_mut().zip(part).for_each(|(to, x)| *to = if i == 0 { *x } else { *to + x });
    }
}

/// Columns of `n_rows` rows in all: of each part `each` rows, then of the next, and again.
fn gather(parts: &[Vec<f32>], to: &mut [f32], n_rows: usize, each: usize) {
    for (place, to) in to.iter_mut().enumerate() {
        let (column, row) = (place / n_rows, place % n_rows);
        let (step, within) = (row / (each * parts.len()), row % (each * parts.len()));
        let of_part = step * each + within % each;
        *to = parts[within / each].get(column * (n_rows / parts.len()) + of_part).copied().unwrap_or(f32::NAN);
    }
}

/// `dst`, F32 and dense: the sum of `src[0]`, of the same shape, over all ranks, which have the same bits of it. Parameters:
/// [`ALL_REDUCE`], the group's number, the rank.
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn all_reduce(dst: *mut sys::ggml_tensor, ith: c_int, _: c_int, _: *mut c_void) {
    // One thread meets those of other ranks: what is added is short.
    if ith == 0 {
        // SAFETY: the node contract; both are dense (checked when the node was made).
        unsafe { exchanged(dst, add_up) };
    }
}

/// `dst: [n_ranks * n, ..]`, F32 and dense: the rows of `src[0]: [n, ..]` of all ranks, `each` of the first, of the second and so on,
/// and again. Parameters: [`ALL_GATHER`], the group's number, the rank, `each`.
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn all_gather(dst: *mut sys::ggml_tensor, ith: c_int, _: c_int, _: *mut c_void) {
    if ith == 0 {
        // SAFETY: the node is alive.
        let (n_rows, each) = unsafe { ((*dst).ne[0] as usize, (*dst).op_params[FIRST_PARAMETER + 3]) };
        let each = usize::try_from(each).unwrap_or(1).max(1);
        // SAFETY: the node contract; both are dense (checked when the node was made).
        unsafe { exchanged(dst, |parts, to| gather(parts, to, n_rows, each)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_one_sum_in_their_order_round_after_round() {
        let meeting = Meeting::new(3);
        // In another order the sum has other bits.
        let parts = [1e8f32, 1.0, -1e8];
        let of_rank = |rank: usize| {
            let shared = Arc::clone(&meeting.shared);
            move || {
                let sum = |i| {
                    let mut sum = vec![0.0; 2];
                    add_up(&shared.exchange(rank, &[parts[rank], i as f32]).unwrap(), &mut sum);
                    sum
                };
                (0..200).map(sum).collect::<Vec<_>>()
            }
        };
        let all: Vec<_> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..3).rev().map(|rank| s.spawn(of_rank(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let sums: Vec<_> = (0..200).map(|i| vec![parts[0] + parts[1] + parts[2], 3.0 * i as f32]).collect();
        assert!(all.iter().all(|of_rank| *of_rank == sums));
    }

    #[test]
    fn rows_of_ranks_follow_each_other_by_turns() {
        // Two columns of four rows of each rank, two and two.
        let parts = [vec![0.0, 1.0, 4.0, 5.0, 8.0, 9.0, 12.0, 13.0], vec![2.0, 3.0, 6.0, 7.0, 10.0, 11.0, 14.0, 15.0]];
        let mut all = vec![0.0; 16];
        gather(&parts, &mut all, 8, 2);
        assert_eq!(all, (0..16).map(|i| i as f32).collect::<Vec<_>>());
    }

    #[test]
    fn nobody_waits_for_a_rank_that_does_not_come() {
        let meeting = &Meeting::new(2);
        let sum = std::thread::scope(|s| {
            let waits = s.spawn(|| meeting.shared.exchange(0, &[1.0]));
            meeting.break_up();
            waits.join().unwrap()
        });
        assert_eq!(sum, None);
        // The next round is whole again.
        meeting.begin();
        let sums = std::thread::scope(|s| {
            let ranks = [0, 1].map(|rank| s.spawn(move || meeting.shared.exchange(rank, &[rank as f32])));
            ranks.map(|thread| thread.join().unwrap().map(|parts| parts.concat()))
        });
        assert_eq!(sums, [Some(vec![0.0, 1.0]), Some(vec![0.0, 1.0])]);
    }

    #[test]
    fn numbers_are_given_back() {
        let (a, b) = (Meeting::new(2), Meeting::new(2));
        assert_ne!(a.number(), b.number());
        let number = a.number() as usize;
        assert!(meetings()[number].is_some());
        drop(a);
        let gone = meetings()[number].as_ref().is_none_or(|other| !Arc::ptr_eq(other, &b.shared));
        assert!(gone && meetings()[b.number() as usize].is_some());
    }
}
