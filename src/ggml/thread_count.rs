//! How many of an executor's threads compute, where others want the processors too. Threads that share a processor with
//! another program hold up all that wait for them at the end of each node, so fewer may be faster: that is measured.
//! Pure arithmetic over times of graphs. Knows nothing of what computes, nor of other programs but that threads waited long.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// So many runs of a graph make a mean that others are compared with.
const KNOWN: u32 = 3;

/// What a mean remembers, in runs.
const MEMORY: u32 = 16;

/// Runs of a trial.
const N_RUNS: u32 = 8;

/// A trial has to be this much faster: else every change of the machine's mood would be followed.
const BETTER: f64 = 0.95;

/// A trial that is slower by this share, and by a time slice of another program, ends at once.
const WORSE: f64 = 1.1;
const SLICE: f64 = 4e-3;

/// Long waits of late that make fewer threads worth a trial.
const CROWDED: f64 = 3.0;

/// Seconds after which long waits count half.
const HALF_LIFE: f64 = 0.05;

/// Between trials: at first, and at most, where they do not help.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Means that are kept at most.
const MAX_MEANS: usize = 512;

#[derive(Clone, Copy, Default)]
struct Mean {
    seconds: f64,
    n: u32,
}

/// Some runs with another number of threads.
struct Trial {
    n_threads: usize,
    n_runs: u32,
    seconds: f64,
    /// What they would have taken with the number that serves.
    expected: f64,
}

/// The number of threads for the graphs of one executor.
pub(crate) struct ThreadCount {
    most: usize,
    serves: usize,
    /// By graph and number of threads.
    means: HashMap<(u64, usize), Mean>,
    trial: Option<Trial>,
    next_trial: Instant,
    pause: Duration,
    /// Long waits, the newer the more, and when the last was counted.
    crowded: f64,
    counted: Instant,
}

impl ThreadCount {
    /// All of `most`, until something else is faster.
    pub(crate) fn new(most: usize, now: Instant) -> Self {
        let (means, trial) = (HashMap::new(), None);
        Self { most, serves: most, means, trial, next_trial: now, pause: PAUSE, crowded: 0.0, counted: now }
    }

    /// For the next run of this graph.
    pub(crate) fn choose(&self, graph: u64) -> usize {
        let trial = self.trial.as_ref().filter(|_| self.mean(graph).is_some());
        trial.map_or(self.serves, |trial| trial.n_threads)
    }

    /// The graph took so long with so many threads, which waited long so often.
    pub(crate) fn ran(&mut self, graph: u64, n_threads: usize, took: Duration, n_long_waits: u64, now: Instant) {
        let seconds = took.as_secs_f64();
        if n_long_waits > 0 {
            let ago = now.duration_since(self.counted).as_secs_f64();
            self.crowded = self.crowded * 0.5_f64.powf(ago / HALF_LIFE) + n_long_waits as f64;
            self.counted = now;
        }
        match (self.mean(graph), &mut self.trial) {
            (Some(expected), Some(trial)) if trial.n_threads == n_threads => {
                trial.n_runs += 1;
                trial.seconds += seconds;
                trial.expected += expected;
            }
            _ => {}
        }
        self.remember(graph, n_threads, seconds);
        self.judge(now);
    }

    /// Seconds of a graph with the threads that serve.
    fn mean(&self, graph: u64) -> Option<f64> {
        self.means.get(&(graph, self.serves)).filter(|mean| mean.n >= KNOWN).map(|mean| mean.seconds)
    }

    fn remember(&mut self, graph: u64, n_threads: usize, seconds: f64) {
        if self.means.len() >= MAX_MEANS {
            self.means.clear();
        }
        let mean = self.means.entry((graph, n_threads)).or_default();
        mean.n = (mean.n + 1).min(MEMORY);
        mean.seconds += (seconds - mean.seconds) / f64::from(mean.n);
    }

    /// Ends a trial that has told enough, or begins one that is due.
    fn judge(&mut self, now: Instant) {
        let Some(trial) = &self.trial else {
            if now >= self.next_trial {
                let ago = now.duration_since(self.counted).as_secs_f64();
                let crowded = self.crowded * 0.5_f64.powf(ago / HALF_LIFE) >= CROWDED;
                let fewer = (crowded && self.serves > 1).then(|| self.serves - 1);
                let more = (self.serves < self.most).then_some(self.serves + 1);
                self.trial =
                    fewer.or(more).map(|n_threads| Trial { n_threads, n_runs: 0, seconds: 0.0, expected: 0.0 });
            }
            return;
        };
        let is_worse = trial.seconds > WORSE * trial.expected + SLICE;
        if trial.n_runs < N_RUNS && !is_worse {
            return;
        }
        if !is_worse && trial.seconds < BETTER * trial.expected {
            (self.serves, self.pause) = (trial.n_threads, PAUSE);
            // With more threads than before, what fewer took may be long ago.
            let serves = self.serves;
            self.means.retain(|(_, n), _| *n == serves);
        } else {
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
        self.trial = None;
        self.next_trial = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which each number of threads takes its time, and long waits come with some.
    struct Machine {
        count: ThreadCount,
        now: Instant,
    }

    impl Machine {
        fn new(most: usize) -> Self {
            let now = Instant::now();
            Self { count: ThreadCount::new(most, now), now }
        }

        /// Runs of two graphs in turns; seconds in all.
        fn run(&mut self, n: usize, seconds: impl Fn(usize) -> f64, long_waits: impl Fn(usize) -> u64) -> f64 {
            let mut all = 0.0;
            for i in 0..n as u64 {
                let n_threads = self.count.choose(i % 2);
                let took = Duration::from_secs_f64(seconds(n_threads) * [1.0, 0.2][(i % 2) as usize]);
                self.now += took;
                all += took.as_secs_f64();
                self.count.ran(i % 2, n_threads, took, long_waits(n_threads), self.now);
            }
            all
        }
    }

    #[test]
    fn without_long_waits_nothing_is_tried() {
        let mut machine = Machine::new(4);
        machine.run(
            1000,
            |n| {
                assert_eq!(n, 4);
                0.01
            },
            |_| 0,
        );
    }

    #[test]
    fn the_fastest_number_is_found_and_all_threads_again_when_the_others_are_gone() {
        // Two of six processors are taken: five or six threads wait for those that have none.
        let mut machine = Machine::new(6);
        let crowded = |n: usize| if n > 4 { 0.02 + 0.01 * (n - 5) as f64 } else { 0.04 / n as f64 };
        machine.run(2000, crowded, |n| u64::from(n > 4));
        assert_eq!(machine.count.serves, 4);
        let seconds = machine.run(4000, crowded, |n| u64::from(n > 4));
        assert!(seconds < 1.03 * 4000.0 * 0.6 * crowded(4), "{seconds}: trials cost little");
        machine.run(4000, |n| 0.04 / n as f64, |_| 0);
        assert_eq!(machine.count.serves, 6);
    }

    #[test]
    fn where_fewer_threads_are_slower_all_serve_on() {
        let mut machine = Machine::new(2);
        let seconds = machine.run(4000, |n| [0.03, 0.02][n - 1], |n| u64::from(n > 1));
        assert_eq!(machine.count.serves, 2);
        assert!(seconds < 1.03 * 4000.0 * 0.6 * 0.02, "{seconds}");
    }

    #[test]
    fn a_long_wait_now_and_then_tries_nothing() {
        let mut machine = Machine::new(2);
        for _ in 0..100 {
            machine.run(
                1,
                |n| {
                    assert_eq!(n, 2);
                    0.01
                },
                |_| 1,
            );
            machine.run(
                20,
                |n| {
                    assert_eq!(n, 2);
                    0.01
                },
                |_| 0,
            );
        }
    }
}
