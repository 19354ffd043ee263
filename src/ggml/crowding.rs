//! Other programs that want the processors: how long threads of this process were ready and had none, and how many
//! processors nobody used meanwhile. From it follows when another number of threads is worth a trial.
//! Reads what Linux counts (`/proc`); elsewhere nothing is known. Knows nothing of what computes.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use crate::cores::allowed_cpus;

/// Between two looks at least: reading the files of twenty threads takes a tenth of a millisecond.
const PERIOD: Duration = Duration::from_millis(100);

/// Hundredths of a second: the unit of `/proc/stat` on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// What happened since the last look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    /// Threads of this process that were ready and had no processor, on average.
    pub(crate) n_waiting: f64,
    /// Processors that nobody used, on average, of those that this process may use.
    pub(crate) n_idle: f64,
}

/// Counters of the system, at a time.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    /// Of all threads of this process together.
    without_processor: Duration,
    idle_ticks: u64,
}

/// What one executor has seen.
pub(crate) struct Crowding {
    cpus: BTreeSet<usize>,
    last: Option<Reading>,
}

impl Crowding {
    pub(crate) fn new() -> Self {
        let cpus = allowed_cpus().unwrap_or_default();
        let last = read(&cpus);
        Self { cpus, last }
    }

    /// To be asked after each graph: the load since the last answer, at most ten times a second. `None` in between, and where
    /// the system does not tell.
    pub(crate) fn look(&mut self, now: Instant) -> Option<Load> {
        let last = self.last?;
        if now.duration_since(last.at) < PERIOD {
            return None;
        }
        let reading = read(&self.cpus)?;
        self.last = Some(reading);
        Some(load(&last, &reading))
    }
}

fn load(before: &Reading, after: &Reading) -> Load {
    let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-3);
    // A thread that has ended takes its share along.
    let waited = after.without_processor.saturating_sub(before.without_processor);
    let idle = after.idle_ticks.saturating_sub(before.idle_ticks) as f64 / TICKS_PER_SECOND;
    Load { n_waiting: waited.as_secs_f64() / seconds, n_idle: idle / seconds }
}

fn read(cpus: &BTreeSet<usize>) -> Option<Reading> {
    let threads = fs::read_dir("/proc/self/task").ok()?.flatten();
    let of_thread = |text: String| text.split_whitespace().nth(1)?.parse::<u64>().ok();
    // A thread that ends meanwhile has no file.
    let waited = threads.filter_map(|thread| of_thread(fs::read_to_string(thread.path().join("schedstat")).ok()?));
    let without_processor = Duration::from_nanos(waited.sum());
    let idle_ticks = idle_ticks(&fs::read_to_string("/proc/stat").ok()?, cpus);
    Some(Reading { at: Instant::now(), without_processor, idle_ticks })
}

/// Of the lines `cpuN user nice system idle iowait ...`: ticks without work of the processors `cpus`.
fn idle_ticks(stat: &str, cpus: &BTreeSet<usize>) -> u64 {
    let of_line = |line: &str| -> Option<u64> {
        let mut words = line.split_whitespace();
        let cpu: usize = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let idle: u64 = words.nth(3)?.parse().ok()?;
        let waits_for_disks: u64 = words.next()?.parse().ok()?;
        cpus.contains(&cpu).then_some(idle + waits_for_disks)
    };
    stat.lines().filter_map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_what_was_added_in_the_time() {
        let at = Instant::now();
        let ms = Duration::from_millis;
        let before = Reading { at, without_processor: ms(500), idle_ticks: 1000 };
        let after = Reading { at: at + ms(200), without_processor: ms(600), idle_ticks: 1030 };
        let Load { n_waiting, n_idle } = load(&before, &after);
        assert!((n_waiting - 0.5).abs() < 1e-9 && (n_idle - 1.5).abs() < 1e-9, "{n_waiting} {n_idle}");
        let ended = Reading { without_processor: ms(20), ..after };
        assert_eq!(load(&before, &ended).n_waiting, 0.0, "a thread has ended");
    }

    #[test]
    fn only_processors_that_the_process_may_use_count_as_idle() {
        let stat = "cpu  1 1 1 900 9\ncpu0 10 0 5 100 1 0\ncpu1 10 0 5 200 2 0\ncpu12 1 1 1 400 4\nintr 5 6 7 8 9\n";
        assert_eq!(idle_ticks(stat, &BTreeSet::from([0, 1])), 303);
        assert_eq!(idle_ticks(stat, &BTreeSet::from([12])), 404);
        assert_eq!(idle_ticks("nothing of the kind", &BTreeSet::from([0])), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_look_comes_once_in_a_while() {
        let mut crowding = Crowding::new();
        let now = Instant::now();
        assert_eq!(crowding.look(now), None, "too early");
        let load = crowding.look(now + 2 * PERIOD).expect("Linux tells");
        assert!(load.n_waiting >= 0.0 && load.n_idle >= 0.0, "{load:?}");
    }
}
