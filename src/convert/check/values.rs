//! The numbers of all tensors, looked at once: what cannot be (NaN), what is suspicious (rows of zeros), sums.
//! Owns reading and counting on some threads; judges nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ggml::Dtype;

use crate::error::Error;
use crate::source::{Source, SourceTensor};
use crate::stream::Control;

/// What the numbers of one tensor are like.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// Numbers that were looked at; 0 for types without floats.
    pub n: u64,
    /// NaN and infinities.
    pub n_not_finite: u64,
    /// The first row with one.
    pub first_not_finite: Option<u64>,
    /// Rows in which every number is 0.
    pub n_zero_rows: u64,
    /// The first of them.
    pub first_zero_row: Option<u64>,
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
            first_zero_row: None,
            sum: 0.0,
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
        }
    }
}

impl Stats {
    /// The mean of the finite numbers.
    pub fn mean(&self) -> f64 {
        self.sum / self.n.saturating_sub(self.n_not_finite).max(1) as f64
    }

    fn add_row(&mut self, row: u64, floats: &[f32]) {
        let mut zero = !floats.is_empty();
        let mut bad = 0;
        for &x in floats {
            zero &= x == 0.0;
            if x.is_finite() {
                self.sum += f64::from(x);
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
            self.first_zero_row.get_or_insert(row);
        }
    }

    fn join(&mut self, other: &Stats) {
        let first = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        self.n += other.n;
        self.n_not_finite += other.n_not_finite;
        self.first_not_finite = first(self.first_not_finite, other.first_not_finite);
        self.n_zero_rows += other.n_zero_rows;
        self.first_zero_row = first(self.first_zero_row, other.first_zero_row);
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// Statistics for each tensor, in the order of the source. Holds a few MiB for each thread, whatever the file.
///
/// # Errors
/// A file cannot be read any more, or `control` says stop.
pub fn scan(source: &Source, n_threads: usize, control: &Control) -> Result<Vec<Stats>, Error> {
    let pieces = pieces(source);
    let next = AtomicUsize::new(0);
    let shared = Mutex::new((vec![Stats::default(); source.tensors.len()], None::<Error>));
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        let (mut raw, mut floats) = (Vec::new(), Vec::new());
        while let Some((i, first, n)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            if control.stop.load(Ordering::Relaxed) || lock().1.is_some() {
                break;
            }
            let t = &source.tensors[*i];
            match piece(source, t, *first, *n, &mut raw, &mut floats) {
                Ok(stats) => lock().0[*i].join(&stats),
                Err(e) => {
                    lock().1.get_or_insert(e);
                }
            }
            control.done.fetch_add(t.row_bytes() * n, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..n_threads.clamp(1, 64) {
            scope.spawn(work);
        }
        work();
    });
    let (stats, failed) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failed {
        Some(e) => Err(e),
        None if control.stop.load(Ordering::Relaxed) => Err(Error::Interrupted),
        None => Ok(stats),
    }
}

/// Tensor, first row and number of rows of each piece of work.
fn pieces(source: &Source) -> Vec<(usize, u64, u64)> {
    let mut pieces = Vec::new();
    for (i, t) in source.tensors.iter().enumerate() {
        let n_rows = t.n_rows();
        let rows = (PIECE_ELEMENTS / t.row_len().max(1)).max(1);
        // Rows longer than any model has are not held in memory; no types but floats are looked at.
        if n_rows == 0 || t.row_len() > MAX_ROW || !readable(t) {
            continue;
        }
        pieces.extend((0..n_rows.div_ceil(rows)).map(|k| (i, k * rows, rows.min(n_rows - k * rows))));
    }
    pieces
}

fn readable(t: &SourceTensor) -> bool {
    Dtype::from_id(t.dtype.id()).is_ok_and(|dtype| dtype == Dtype::F32 || dtype.unpacks())
}

fn piece(
    source: &Source,
    t: &SourceTensor,
    first: u64,
    n: u64,
    raw: &mut Vec<u8>,
    floats: &mut Vec<f32>,
) -> Result<Stats, Error> {
    let refused = |e: ggml::Error| Error::tensor(&t.name, e.to_string());
    let dtype = Dtype::from_id(t.dtype.id()).map_err(refused)?;
    raw.resize((t.row_bytes() * n) as usize, 0);
    source.inputs[t.file].read_at(raw, t.at + first * t.row_bytes())?;
    floats.resize((t.row_len() * n) as usize, 0.0);
    ggml::unpack(dtype, raw, floats).map_err(refused)?;
    let mut stats = Stats::default();
    for (i, row) in floats.chunks_exact(t.row_len() as usize).enumerate() {
        stats.add_row(first + i as u64, row);
    }
    Ok(stats)
}

/// 1 MiB of floats.
const PIECE_ELEMENTS: u64 = 1 << 18;
const MAX_ROW: u64 = 1 << 24;
