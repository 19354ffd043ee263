//! The end of the process under threads that still compute. ggml and drivers destroy what they share in functions that run
//! then, so the end waits for the graphs that run, and no other begins.
//! Owns the count of those. Knows nothing of what they compute.

use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// A forward pass that takes longer (a worker elsewhere that does not answer) is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);

struct Threads {
    n_working: usize,
    /// The thread that ends the process.
    ending: Option<ThreadId>,
}

static THREADS: Mutex<Threads> = Mutex::new(Threads { n_working: 0, ending: None });
static LESS_WORK: Condvar = Condvar::new();

fn threads() -> MutexGuard<'static, Threads> {
    // A number and an id: nothing is half-done in there when a thread panics.
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process does not end while one lives.
#[must_use]
pub(crate) struct Working(());

/// To be held while ggml computes. Does not return when the process is ending.
pub(crate) fn working() -> Working {
    let mut threads = threads();
    if is_left_over(&threads) {
        drop(threads);
        park();
    }
    threads.n_working += 1;
    Working(())
}

impl Drop for Working {
    fn drop(&mut self) {
        threads().n_working -= 1;
        LESS_WORK.notify_all();
    }
}

/// Has the end of the process noticed from now on. Called after ggml or a device's driver has registered its own end, which
/// then comes later: functions run in the opposite order.
pub(crate) fn notice(of_driver: bool) {
    unsafe extern "C" {
        fn atexit(function: extern "C" fn()) -> c_int;
    }
    static OF_GGML: Once = Once::new();
    static OF_DRIVERS: Once = Once::new();
    let once = if of_driver { &OF_DRIVERS } else { &OF_GGML };
    once.call_once(|| {
        // SAFETY: of the C library, with this type; the function is alive for ever.
        unsafe { atexit(on_end) };
    });
}

extern "C" fn on_end() {
    let mut threads = threads();
    threads.ending.get_or_insert_with(|| std::thread::current().id());
    let ended = LESS_WORK.wait_timeout_while(threads, PATIENCE, |t| t.n_working > 0);
    drop(ended);
}

fn is_left_over(threads: &Threads) -> bool {
    threads.ending.is_some_and(|ends| ends != std::thread::current().id())
}

/// True on a thread that still computes, or frees a device's memory, while another ends the process.
pub(crate) fn left_over() -> bool {
    is_left_over(&threads())
}

/// Waits for the end of the process.
pub(crate) fn park() -> ! {
    loop {
        std::thread::park();
    }
}
