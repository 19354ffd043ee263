//! All tensors of a file, slab by slab, on some threads, into a part that becomes the file.
//! Owns the slabs: their size is part of what a journal means.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gguf::Layout;

use super::part::Part;
use super::rows::Worker;
use super::tensor::TensorPlan;
use crate::error::Error;
use crate::io::{Input, copy_range, write_all_at};

/// Everything that one output is made of.
#[derive(Debug)]
pub struct Job {
    /// The files that plans read.
    pub inputs: Vec<Input>,
    /// Other files that the output must not take the place of.
    pub side_inputs: Vec<PathBuf>,
    /// Its tensors, in the order of `layout`.
    pub tensors: Vec<TensorPlan>,
    /// Its header and places.
    pub layout: Layout,
    /// Options that change what the bytes are and do not show in the header.
    pub options: String,
}

/// How a run is watched and ended from outside.
#[derive(Default)]
pub struct Control {
    /// Bytes of sources in all, known once the work has begun.
    pub total: AtomicU64,
    /// Bytes of sources that are done.
    pub done: AtomicU64,
    /// Bytes that an earlier run had done, known once the run has begun.
    pub resumed: AtomicU64,
    /// Set to end the run; what is done is kept for the next one.
    pub stop: AtomicBool,
    /// Called after each slab, by the thread that made it, for those who would rather not ask again and again.
    pub watcher: Option<Watcher>,
}

/// What is told of progress.
pub type Watcher = Box<dyn Fn(&Control) + Send + Sync>;

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Control { total, done, resumed, stop, watcher: _ } = self;
        f.debug_struct("Control")
            .field("total", total)
            .field("done", done)
            .field("resumed", resumed)
            .field("stop", stop)
            .finish_non_exhaustive()
    }
}

/// What becomes of an unfinished output when a run fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// It is removed, unless the run was stopped by [`Control::stop`].
    Remove,
    /// It is kept, to be taken up after the cause is gone.
    Keep,
    /// It is removed, also when the run was stopped.
    LeaveNothing,
}

impl Job {
    /// Bytes of sources, scales aside.
    pub fn source_bytes(&self) -> u64 {
        self.tensors.iter().map(TensorPlan::source_bytes).sum()
    }

    /// Writes the file `target` on `n_threads` threads. An existing file of that name is replaced when the new one is
    /// whole. What an earlier run of the same job has left is used.
    ///
    /// # Errors
    /// `target` is one of the inputs or a folder; a file cannot be read or written; a number does not fit its type;
    /// [`Error::Stopped`] when told to stop, or [`Error::Interrupted`] when nothing is to be left.
    pub fn run(&self, target: &Path, n_threads: usize, control: &Control, on_failure: OnFailure) -> Result<(), Error> {
        let inputs = || self.inputs.iter().map(Input::path).chain(self.side_inputs.iter().map(PathBuf::as_path));
        for written in Part::names(target) {
            if inputs().any(|input| same_file(input, &written)) {
                return Err(Error::input(&written, "is one of the inputs; give the output another name"));
            }
        }
        let slabs = Slabs::of(&self.tensors)?;
        let size = (self.layout.n_bytes, slabs.n);
        let (part, n_done) = Part::open(target, &self.layout.header, size, self.identity())?;
        let resumed = slabs.source_bytes(&self.tensors, n_done);
        control.total.store(self.source_bytes(), Ordering::Relaxed);
        control.done.store(resumed, Ordering::Relaxed);
        control.resumed.store(resumed, Ordering::Relaxed);
        match self.all(&slabs, &part, n_done, n_threads, control) {
            Ok(()) => part.finish(),
            Err(e) => {
                let stopped = matches!(e, Error::Stopped { .. });
                match on_failure {
                    OnFailure::Remove if !stopped => part.discard(),
                    OnFailure::Remove | OnFailure::Keep => {}
                    OnFailure::LeaveNothing => part.discard(),
                }
                Err(if stopped && on_failure == OnFailure::LeaveNothing { Error::Interrupted } else { e })
            }
        }
    }

    fn all(&self, slabs: &Slabs, part: &Part, n_done: u64, n_threads: usize, control: &Control) -> Result<(), Error> {
        let shared = Mutex::new(Shared {
            next: n_done,
            low: n_done,
            ahead: BTreeSet::new(),
            noted: Instant::now(),
            failed: None,
        });
        let work = || {
            let mut worker = Worker::default();
            while let Some(no) = claim(&shared, slabs, control) {
                let done = self.slab(slabs, no, &mut worker, part, control).and_then(|()| finished(&shared, no, part));
                if let Err(e) = done {
                    lock(&shared).failed.get_or_insert(e);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..n_threads.clamp(1, MAX_THREADS) {
                scope.spawn(work);
            }
            work();
        });
        let Shared { low, failed, .. } = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(e) = failed {
            return Err(e);
        }
        if low < slabs.n {
            part.note(low)?;
            return Err(Error::Stopped { part: part.path().to_owned() });
        }
        Ok(())
    }

    fn slab(&self, slabs: &Slabs, no: u64, worker: &mut Worker, part: &Part, control: &Control) -> Result<(), Error> {
        let (i, first, n) = slabs.get(no);
        let plan = &self.tensors[i];
        let (_, start, n_bytes) = &self.layout.tensors[i];
        let row_bytes = n_bytes / plan.n_rows();
        let at = start + first * row_bytes;
        if !self.copied(plan, first, n * row_bytes, part, at)? {
            let bytes = worker.rows(plan, &self.inputs, first, n)?;
            write_all_at(part.file(), bytes, at).map_err(|e| Error::io(part.path(), "write", e))?;
        }
        control.done.fetch_add(slabs.bytes_of(plan, n), Ordering::Relaxed);
        if let Some(watcher) = &control.watcher {
            watcher(control);
        }
        Ok(())
    }

    /// Has the system copy rows that stay as they are and lie together; false where it cannot.
    fn copied(&self, plan: &TensorPlan, first: u64, n_bytes: u64, part: &Part, at: u64) -> Result<bool, Error> {
        let Some((piece, from)) = plan.copied_from(first) else { return Ok(false) };
        let input = &self.inputs[piece.file];
        // One that became shorter is told as such; all else is the output's fault.
        if from.checked_add(n_bytes).is_none_or(|end| end > input.n_bytes()) {
            return Ok(false);
        }
        copy_range(input.file(), from, part.file(), at, n_bytes).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => Error::io(input.path(), "read", e),
            _ => Error::io(part.path(), "write", e),
        })
    }

    /// What the bytes depend on, header aside.
    fn identity(&self) -> String {
        let inputs: Vec<String> = self.inputs.iter().map(Input::stamp).collect();
        let program = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));
        format!("{program}, slabs of {SLAB_ELEMENTS}, {}\n{}", self.options, inputs.join("\n"))
    }
}

/// Writes all bytes of one tensor, slab by slab, on this thread.
///
/// # Errors
/// A file cannot be read, a number does not fit its type, or `out` refuses.
pub fn write_tensor(plan: &TensorPlan, inputs: &[Input], out: &mut dyn std::io::Write) -> Result<(), Error> {
    let slabs = Slabs::of(std::slice::from_ref(plan))?;
    let mut worker = Worker::default();
    for no in 0..slabs.n {
        let (_, first, n) = slabs.get(no);
        let bytes = worker.rows(plan, inputs, first, n)?;
        out.write_all(bytes).map_err(|e| Error::io(Path::new(&plan.name), "write", e))?;
    }
    Ok(())
}

/// The cut of all tensors into slabs: some rows each, at least one.
struct Slabs {
    /// For each tensor with rows: its index, the number of its first slab, rows of a slab, rows in all.
    tensors: Vec<(usize, u64, u64, u64)>,
    n: u64,
}

impl Slabs {
    /// # Errors
    /// A row is too long to be held in memory.
    fn of(plans: &[TensorPlan]) -> Result<Slabs, Error> {
        let mut slabs = Slabs { tensors: Vec::with_capacity(plans.len()), n: 0 };
        for (i, plan) in plans.iter().enumerate() {
            if plan.row_len > MAX_ROW_ELEMENTS {
                let what = format!("rows of {} elements, at most {MAX_ROW_ELEMENTS} allowed", plan.row_len);
                return Err(Error::tensor(&plan.name, what));
            }
            let n_rows = plan.n_rows();
            if n_rows > 0 && plan.row_len > 0 {
                let rows = (SLAB_ELEMENTS / plan.row_len).max(1);
                slabs.tensors.push((i, slabs.n, rows, n_rows));
                slabs.n += n_rows.div_ceil(rows);
            }
        }
        Ok(slabs)
    }

    /// Tensor, first row and number of rows of a slab.
    fn get(&self, no: u64) -> (usize, u64, u64) {
        let at = self.tensors.partition_point(|(_, first, _, _)| *first <= no) - 1;
        let (i, first, rows, n_rows) = self.tensors[at];
        let row = (no - first) * rows;
        (i, row, rows.min(n_rows - row))
    }

    fn bytes_of(&self, plan: &TensorPlan, n_rows: u64) -> u64 {
        (u128::from(plan.source_bytes()) * u128::from(n_rows) / u128::from(plan.n_rows().max(1))) as u64
    }

    /// Bytes of sources of the first `n` slabs.
    fn source_bytes(&self, plans: &[TensorPlan], n: u64) -> u64 {
        (0..n).map(|no| self.get(no)).map(|(i, _, n)| self.bytes_of(&plans[i], n)).sum()
    }
}

/// What the threads agree on.
struct Shared {
    /// The next slab to take.
    next: u64,
    /// All slabs below are written.
    low: u64,
    /// Written ones above.
    ahead: BTreeSet<u64>,
    noted: Instant,
    failed: Option<Error>,
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn claim(shared: &Mutex<Shared>, slabs: &Slabs, control: &Control) -> Option<u64> {
    let mut s = lock(shared);
    let go = s.failed.is_none() && s.next < slabs.n && !control.stop.load(Ordering::Relaxed);
    go.then(|| {
        s.next += 1;
        s.next - 1
    })
}

/// Moves the mark up, and writes it to the journal every few seconds.
fn finished(shared: &Mutex<Shared>, no: u64, part: &Part) -> Result<(), Error> {
    let low = {
        let mut s = lock(shared);
        s.ahead.insert(no);
        while s.ahead.first() == Some(&s.low) {
            s.ahead.pop_first();
            s.low += 1;
        }
        if s.noted.elapsed() < NOTE_EVERY {
            return Ok(());
        }
        s.noted = Instant::now();
        s.low
    };
    // Others go on meanwhile: they only add to what is promised here.
    part.note(low)
}

/// Whether both paths lead to one file.
fn same_file(a: &Path, b: &Path) -> bool {
    let whole = |path: &Path| -> Option<PathBuf> { path.canonicalize().ok() };
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        if id(a).is_some_and(|a| Some(a) == id(b)) {
            return true;
        }
    }
    whole(a).is_some_and(|a| Some(a) == whole(b))
}

/// The number of threads that this machine runs at once.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Numbers of a slab: 2 MiB of floats.
const SLAB_ELEMENTS: u64 = 1 << 19;
/// A worker holds a row of floats twice and its bytes; this is far above all models.
pub(crate) const MAX_ROW_ELEMENTS: u64 = 1 << 21;
/// More wait for the disk, and each has buffers.
const MAX_THREADS: usize = 64;
const NOTE_EVERY: Duration = Duration::from_secs(5);
