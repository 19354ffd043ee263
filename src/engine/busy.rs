//! Whether the engines of this process are wanted: for those who work only while nobody waits.
//! Owns the count of requests that wait, are prepared or run, over all engines. Knows nothing of what they are.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

struct Requests {
    n: usize,
    /// When the last one ended.
    idle_since: Option<Instant>,
}

static REQUESTS: Mutex<Requests> = Mutex::new(Requests { n: 0, idle_since: None });
static CAME: Condvar = Condvar::new();

fn requests() -> MutexGuard<'static, Requests> {
    // A number and a time: nothing is half-done in there when a thread panics.
    REQUESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request counts as long as this lives.
#[derive(Debug)]
pub(crate) struct Busy(());

impl Busy {
    pub(crate) fn new() -> Self {
        requests().n += 1;
        CAME.notify_all();
        Self(())
    }
}

impl Clone for Busy {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut requests = requests();
        requests.n -= 1;
        if requests.n == 0 {
            requests.idle_since = Some(Instant::now());
        }
    }
}

/// How long no request has waited or run on any engine of this process; `None` while some do. Before the first request it is the
/// longest time.
pub fn idle_time() -> Option<Duration> {
    let requests = requests();
    (requests.n == 0).then(|| requests.idle_since.map_or(Duration::MAX, |since| since.elapsed()))
}

/// Waits until a request comes, `patience` at most; true when there is one.
pub fn wait_for_request(patience: Duration) -> bool {
    let waited = CAME.wait_timeout_while(requests(), patience, |requests| requests.n == 0);
    waited.unwrap_or_else(PoisonError::into_inner).0.n > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_hears_of_a_request_and_of_its_end() {
        // Other tests of the crate may run requests as well: only what holds beside them is claimed.
        let request = Busy::new();
        let same = request.clone();
        drop(request);
        assert_eq!(idle_time(), None, "the clone counts");
        assert!(wait_for_request(Duration::ZERO));
        drop(same);
    }
}
