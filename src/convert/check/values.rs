//! The numbers of all tensors, looked at once: what cannot be (NaN), what is suspicious (rows of zeros), sums.
//! Owns reading and counting on some threads; judges nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ggml::Dtype;

use crate::error::Error;
use crate::source::Source;
use crate::stream::{Control, Stored, TensorPlan, Worker};

/// What the numbers of one tensor are like.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Numbers that were looked at; 0 for types without floats.
    pub n: u64,
    /// NaN and infinities.
    pub n_not_finite: u64,
    /// The first row with one.
    pub first_not_finite: Option<u64>,
    /// Rows in which every number is 0.
    pub n_zero_rows: u64,
    /// Some of them: no more than [`Stats::MOST_ZERO_ROWS`] of each piece that was read at once.
    pub zero_rows: Vec<u64>,
    /// Numbers below 0.
    pub n_negative: u64,
    /// Numbers below 1.
    pub n_below_one: u64,
    /// Of the finite ones.
    pub sum: f64,
    /// Of the finite ones.
    pub min: f32,
    /// Of the finite ones.
    pub max: f32,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats {
            n: 0,
            n_not_finite: 0,
            first_not_finite: None,
            n_zero_rows: 0,
            zero_rows: Vec::new(),
            n_negative: 0,
            n_below_one: 0,
            sum: 0.0,
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
        }
    }
}

impl Stats {
    /// Far more than there are in a sound file, and little memory for one that has nothing else.
    pub const MOST_ZERO_ROWS: usize = 1 << 12;

    /// The mean of the finite numbers.
    pub fn mean(&self) -> f64 {
        self.sum / self.n.saturating_sub(self.n_not_finite).max(1) as f64
    }

    pub(super) fn add_row(&mut self, row: u64, floats: &[f32]) {
        let mut zero = !floats.is_empty();
        let mut bad = 0;
        for &x in floats {
            zero &= x == 0.0;
            if x.is_finite() {
                self.sum += f64::from(x);
                self.n_negative += u64::from(x < 0.0);
                self.n_below_one += u64::from(x < 1.0);
                self.min = self.min.min(x);
                self.max = self.max.max(x);
            } else {
                bad += 1;
            }
        }
        self.n += floats.len() as u64;
        if bad > 0 {
            self.n_not_finite += bad;
            self.first_not_finite.get_or_insert(row);
        }
        if zero {
            self.n_zero_rows += 1;
            if self.zero_rows.len() < Stats::MOST_ZERO_ROWS {
                self.zero_rows.push(row);
            }
        }
    }

    pub(super) fn join(&mut self, other: &Stats) {
        let first = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        self.n += other.n;
        self.n_not_finite += other.n_not_finite;
        self.first_not_finite = first(self.first_not_finite, other.first_not_finite);
        self.n_zero_rows += other.n_zero_rows;
        self.zero_rows.extend(&other.zero_rows);
        self.n_negative += other.n_negative;
        self.n_below_one += other.n_below_one;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// Statistics for each tensor, in the order of the source, over the numbers that a GGUF file has: of a checkpoint after
/// norms were shifted and scales multiplied. Holds a few MiB for each thread, whatever the file.
///
/// # Errors
/// A file cannot be read any more, or `control` says stop.
pub fn scan(source: &Source, n_threads: usize, control: &Control) -> Result<Vec<Stats>, Error> {
    let plans: Vec<Option<TensorPlan>> = source.tensors.iter().map(|t| t.plan(0).ok().filter(is_readable)).collect();
    let pieces: Vec<Piece<'_>> = plans.iter().enumerate().flat_map(|(i, plan)| pieces(i, plan.as_ref())).collect();
    control.total.store(pieces.iter().map(|piece| piece.n_bytes).sum(), Ordering::Relaxed);
    let next = AtomicUsize::new(0);
    let shared = Mutex::new((vec![Stats::default(); source.tensors.len()], None::<Error>));
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        let mut worker = Worker::default();
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            if control.stop.load(Ordering::Relaxed) || lock().1.is_some() {
                break;
            }
            match piece.stats(source, &mut worker) {
                Ok(stats) => lock().0[piece.tensor].join(&stats),
                Err(e) => {
                    lock().1.get_or_insert(e);
                }
            }
            control.done.fetch_add(piece.n_bytes, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..n_threads.clamp(1, 64) {
            scope.spawn(work);
        }
        work();
    });
    let (mut stats, failed) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failed {
        Some(e) => return Err(e),
        None if control.stop.load(Ordering::Relaxed) => return Err(Error::Interrupted),
        None => {}
    }
    // Threads finish in any order.
    stats.iter_mut().for_each(|s| s.zero_rows.sort_unstable());
    Ok(stats)
}

/// Rows of one tensor that are read at once.
struct Piece<'p> {
    tensor: usize,
    plan: &'p TensorPlan,
    first: u64,
    n_rows: u64,
    n_bytes: u64,
}

fn pieces(tensor: usize, plan: Option<&TensorPlan>) -> impl Iterator<Item = Piece<'_>> {
    plan.into_iter().flat_map(move |plan| {
        let n_rows = plan.n_rows();
        let rows = (PIECE_ELEMENTS / plan.row_len.max(1)).max(1);
        let row_bytes = plan.source_bytes().checked_div(n_rows).unwrap_or(0);
        (0..n_rows.div_ceil(rows)).map(move |k| {
            let n = rows.min(n_rows - k * rows);
            Piece { tensor, plan, first: k * rows, n_rows: n, n_bytes: row_bytes * n }
        })
    })
}

/// Whether its numbers are floats, in rows that are not longer than any model has: they are held in memory.
fn is_readable(plan: &TensorPlan) -> bool {
    let is_float = |stored: Stored| !matches!(stored, Stored::Ggml(dtype) if dtype != Dtype::F32 && !dtype.unpacks());
    plan.row_len > 0 && plan.row_len <= MAX_ROW && plan.pieces.iter().all(|piece| is_float(piece.stored))
}

impl Piece<'_> {
    fn stats(&self, source: &Source, worker: &mut Worker) -> Result<Stats, Error> {
        let floats = worker.floats(self.plan, &source.inputs, self.first, self.n_rows)?;
        let mut stats = Stats::default();
        for (i, row) in floats.chunks_exact(self.plan.row_len as usize).enumerate() {
            stats.add_row(self.first + i as u64, row);
        }
        Ok(stats)
    }
}

/// 1 MiB of floats.
const PIECE_ELEMENTS: u64 = 1 << 18;
const MAX_ROW: u64 = 1 << 24;
