//! Other programs that want the processors. ggml's threads give way to them by themselves (`vendor/ggml-sys/wait.c`); the user
//! learns of it once, since nothing else tells why a model has become slow.
//! Owns that line and what it follows from. Knows nothing of what computes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ggml_sys as sys;

/// So many long waits of threads for each other are worth a closer look: a prompt has some of its own.
const N_LONG_WAITS: u64 = 16;

/// The time, as a share, that this program's threads must have been ready without a processor.
const CROWDED: f64 = 0.1;

/// One line is enough for a process.
static SAID: AtomicBool = AtomicBool::new(false);

/// What one executor has seen.
pub(crate) struct Crowding {
    n_long_waits: u64,
    at: Instant,
    /// Of all threads, as the system counts it.
    without_processor: Option<Duration>,
}

impl Crowding {
    pub(crate) fn new() -> Self {
        Self { n_long_waits: n_long_waits(), at: Instant::now(), without_processor: without_processor() }
    }

    /// To be called after each graph; cheap where there is nothing to see.
    pub(crate) fn look(&mut self) {
        if n_long_waits() - self.n_long_waits < N_LONG_WAITS || SAID.load(Ordering::Relaxed) {
            return;
        }
        let (since, before) = (self.at, self.without_processor);
        *self = Self::new();
        if is_crowded(since.elapsed(), before, self.without_processor) && !SAID.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "other programs use the processors: threads sleep instead of spinning while they wait for each other, and \
                 tokens come more slowly"
            );
        }
    }
}

fn is_crowded(took: Duration, before: Option<Duration>, after: Option<Duration>) -> bool {
    let lost = before.zip(after).map_or(Duration::ZERO, |(before, after)| after.saturating_sub(before));
    lost.as_secs_f64() > CROWDED * took.as_secs_f64()
}

/// Long waits of this process so far.
pub(crate) fn n_long_waits() -> u64 {
    // SAFETY: no preconditions.
    unsafe { sys::nextn_long_waits() }
}

/// How long the threads of this process have been ready and had no processor. Linux counts it; elsewhere `None`.
fn without_processor() -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    let of_thread = |text: String| text.split_whitespace().nth(1)?.parse::<u64>().ok();
    // A thread that ends meanwhile has no file.
    let waited = threads.filter_map(|thread| of_thread(std::fs::read_to_string(thread.path().join("schedstat")).ok()?));
    Some(Duration::from_nanos(waited.sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_without_a_processor_is_a_crowd() {
        let ms = Duration::from_millis;
        assert!(is_crowded(ms(1000), Some(ms(5)), Some(ms(400))));
        assert!(!is_crowded(ms(1000), Some(ms(5)), Some(ms(50))), "long waits of a prompt");
        assert!(!is_crowded(ms(1000), Some(ms(400)), Some(ms(5))), "a thread has ended");
        assert!(!is_crowded(ms(1000), None, None), "the system does not tell");
    }
}
