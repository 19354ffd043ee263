//! How many of an executor's threads compute, where others want the processors too. A thread that shares its processor with
//! another program holds up all that wait for it at the end of each node, so fewer may be faster: that is measured.
//! Pure arithmetic over times of graphs. Knows nothing of what computes, nor where a load comes from.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::crowding::Load;

/// Threads without a processor, on average, that tell of other programs; a system's own work stays below. Once it is crowded,
/// fewer tell that it still is.
const CROWDED: f64 = 0.25;
const STILL_CROWDED: f64 = 0.1;

/// Idle processors, for each thread more, that make more threads worth a trial.
const IDLE: f64 = 0.7;

/// So many runs of a graph make a mean that others are compared with; fewer, if they took so long.
const KNOWN: u32 = 3;
const KNOWN_SECONDS: f64 = 0.1;

/// What a mean remembers, in runs.
const MEMORY: u32 = 16;

/// Runs and seconds of a trial: a thread that has just begun gets more of a processor than it keeps.
const N_RUNS: u32 = 8;
const TRIAL_SECONDS: f64 = 0.3;

/// A trial has to be this much faster: else every change of the machine's mood would be followed.
const BETTER: f64 = 0.95;

/// A trial that is slower by this share, and by a time slice of another program, ends at once.
const WORSE: f64 = 1.1;
const SLICE: f64 = 4e-3;

/// Between trials: at first, and at most, where they do not help.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Means that are kept at most.
const MAX_MEANS: usize = 512;

#[derive(Clone, Copy, Default)]
struct Mean {
    seconds: f64,
    n: u32,
}

impl Mean {
    fn is_known(&self) -> bool {
        self.n >= KNOWN || self.seconds * f64::from(self.n) >= KNOWN_SECONDS
    }
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
    /// Seconds of graphs with the threads that serve, since that number or the load changed.
    means: HashMap<u64, Mean>,
    trial: Option<Trial>,
    next_trial: Instant,
    pause: Duration,
    /// Trials in a row that did not help.
    n_failed: usize,
    /// Other programs want the processors.
    is_crowded: bool,
}

impl ThreadCount {
    /// All of `most`, until something else is faster.
    pub(crate) fn new(most: usize, now: Instant) -> Self {
        let (means, trial) = (HashMap::new(), None);
        Self { most, serves: most, means, trial, next_trial: now, pause: PAUSE, n_failed: 0, is_crowded: false }
    }

    /// For the next run of this graph.
    pub(crate) fn choose(&self, graph: u64) -> usize {
        let trial = self.trial.as_ref().filter(|_| self.mean(graph).is_some());
        trial.map_or(self.serves, |trial| trial.n_threads)
    }

    /// The number that serves outside of trials.
    pub(crate) fn serves(&self) -> usize {
        self.serves
    }

    /// What to tell if another number served before.
    pub(crate) fn change_from(&self, before: usize) -> Option<String> {
        let (serves, most) = (self.serves, self.most);
        match serves.cmp(&before) {
            Ordering::Equal => None,
            Ordering::Less => Some(format!("{serves} of {most} threads compute: other programs use the processors")),
            Ordering::Greater if serves == most => Some(format!("all {most} threads compute again")),
            Ordering::Greater => Some(format!("{serves} of {most} threads compute: more processors are free")),
        }
    }

    /// Whether threads that wait for each other are to give way to other programs.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// The graph took so long with so many threads; `load` is what a look has shown, if it was time for one.
    pub(crate) fn ran(&mut self, graph: u64, n_threads: usize, took: Duration, load: Option<Load>, now: Instant) {
        let seconds = took.as_secs_f64();
        let expected = self.mean(graph);
        match &mut self.trial {
            Some(trial) if trial.n_threads == n_threads => {
                trial.n_runs += 1;
                trial.seconds += seconds;
                trial.expected += expected.unwrap_or(seconds);
            }
            _ => self.remember(graph, seconds),
        }
        if self.trial.is_some() {
            self.judge(now);
        } else if let Some(load) = load {
            self.consider(load, now);
        }
    }

    /// Seconds of a graph with the threads that serve.
    fn mean(&self, graph: u64) -> Option<f64> {
        self.means.get(&graph).filter(|mean| mean.is_known()).map(|mean| mean.seconds)
    }

    fn remember(&mut self, graph: u64, seconds: f64) {
        if self.means.len() >= MAX_MEANS {
            self.means.clear();
        }
        let mean = self.means.entry(graph).or_default();
        mean.n = (mean.n + 1).min(MEMORY);
        mean.seconds += (seconds - mean.seconds) / f64::from(mean.n);
    }

    /// Begins a trial that such a load makes worth it.
    fn consider(&mut self, load: Load, now: Instant) {
        let n_more = ((load.n_idle / IDLE) as usize).min(self.most - self.serves);
        // Fewer threads do not wait, but as long as nobody leaves a processor idle the others are there.
        let is_over = load.n_waiting < STILL_CROWDED && (self.serves == self.most || n_more > 0);
        let is_crowded = if self.is_crowded { !is_over } else { load.n_waiting >= CROWDED };
        if is_crowded != self.is_crowded {
            // What graphs took before says nothing of now.
            self.means.clear();
            (self.is_crowded, self.pause, self.n_failed, self.next_trial) = (is_crowded, PAUSE, 0, now);
        }
        if now < self.next_trial {
            return;
        }
        let n_threads = match (is_crowded, n_more) {
            (true, _) => self.another(),
            (false, 1..) => Some(self.serves + n_more),
            (false, 0) => None,
        };
        self.trial = n_threads.map(|n_threads| Trial { n_threads, n_runs: 0, seconds: 0.0, expected: 0.0 });
    }

    /// What to try in a crowd: one thread fewer, then half of them, then one alone, then all, and so on.
    fn another(&self) -> Option<usize> {
        let mut numbers = vec![self.serves - 1, self.serves / 2, 1, self.most];
        numbers.retain(|&n| n > 0 && n != self.serves);
        numbers.dedup();
        (!numbers.is_empty()).then(|| numbers[self.n_failed % numbers.len()])
    }

    /// Ends a trial that has told enough.
    fn judge(&mut self, now: Instant) {
        let Some(trial) = &self.trial else { return };
        let is_worse = trial.seconds > WORSE * trial.expected + SLICE;
        if (trial.n_runs < N_RUNS || trial.seconds < TRIAL_SECONDS) && !is_worse {
            return;
        }
        if !is_worse && trial.seconds < BETTER * trial.expected {
            (self.serves, self.pause, self.n_failed) = (trial.n_threads, PAUSE, 0);
            self.means.clear();
        } else {
            (self.pause, self.n_failed) = ((2 * self.pause).min(LONGEST_PAUSE), self.n_failed + 1);
        }
        self.trial = None;
        self.next_trial = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which each number of threads takes its time, and has its load.
    struct Machine {
        count: ThreadCount,
        now: Instant,
        looked: Instant,
    }

    const NO_LOAD: Load = Load { n_waiting: 0.0, n_idle: 0.0 };

    impl Machine {
        fn new(most: usize) -> Self {
            let now = Instant::now();
            Self { count: ThreadCount::new(most, now), now, looked: now }
        }

        /// Runs of two graphs in turns; seconds in all.
        fn run(&mut self, n: usize, seconds: impl Fn(usize) -> f64, load: impl Fn(usize) -> Load) -> f64 {
            let mut all = 0.0;
            for i in 0..n as u64 {
                let n_threads = self.count.choose(i % 2);
                let took = Duration::from_secs_f64(seconds(n_threads) * [1.0, 0.2][(i % 2) as usize]);
                self.now += took;
                all += took.as_secs_f64();
                let due = self.now - self.looked >= Duration::from_millis(100);
                let load = due.then(|| load(n_threads));
                if due {
                    self.looked = self.now;
                }
                self.count.ran(i % 2, n_threads, took, load, self.now);
            }
            all
        }
    }

    fn crowd(n_waiting: f64) -> Load {
        Load { n_waiting, ..NO_LOAD }
    }

    #[test]
    fn while_no_thread_waits_for_a_processor_all_serve() {
        let mut machine = Machine::new(4);
        let all_four = |n: usize| {
            assert_eq!(n, 4);
            0.01
        };
        machine.run(2000, all_four, |_| crowd(0.1));
        machine.run(2000, all_four, |_| Load { n_idle: 3.0, ..NO_LOAD });
    }

    #[test]
    fn the_fastest_number_is_found_and_all_threads_again_when_the_others_are_gone() {
        // Two of six processors are taken: five or six threads wait for those that have none.
        let mut machine = Machine::new(6);
        let seconds = |n: usize| if n > 4 { 0.02 + 0.01 * (n - 5) as f64 } else { 0.04 / n as f64 };
        let load = |n: usize| if n > 4 { crowd(1.0) } else { Load { n_idle: 4.0 - n as f64, ..NO_LOAD } };
        machine.run(2000, seconds, load);
        assert_eq!(machine.count.serves, 4);
        let told = machine.count.change_from(6);
        assert_eq!(told.as_deref(), Some("4 of 6 threads compute: other programs use the processors"));
        assert_eq!(machine.count.change_from(4), None);
        let took = machine.run(4000, seconds, load);
        assert!(took < 1.03 * 4000.0 * 0.6 * seconds(4), "{took}: trials cost little");
        machine.run(4000, |n| 0.04 / n as f64, |n| Load { n_idle: 6.0 - n as f64, ..NO_LOAD });
        assert_eq!(machine.count.serves, 6);
        assert_eq!(machine.count.change_from(4).as_deref(), Some("all 6 threads compute again"));
    }

    #[test]
    fn one_thread_serves_where_one_fewer_is_not_enough() {
        // As many busy programs as processors: whoever waits for another waits for a time slice.
        let mut machine = Machine::new(8);
        let seconds = |n: usize| if n > 1 { 0.5 } else { 0.1 };
        machine.run(200, seconds, |n| crowd(n as f64 / 2.0));
        assert_eq!(machine.count.serves, 1);
    }

    #[test]
    fn where_fewer_threads_are_slower_all_serve_on() {
        let mut machine = Machine::new(2);
        let seconds = |n: usize| [0.03, 0.02][n - 1];
        let took = machine.run(4000, seconds, |n| crowd((n - 1) as f64));
        assert_eq!(machine.count.serves, 2);
        assert!(took < 1.03 * 4000.0 * 0.6 * 0.02, "{took}");
    }

    #[test]
    fn what_graphs_took_before_the_crowd_came_is_no_measure() {
        let mut machine = Machine::new(2);
        machine.run(1000, |_| 0.02, |_| NO_LOAD);
        machine.run(100, |n| [0.035, 0.06][n - 1], |n| crowd((n - 1) as f64));
        assert_eq!(machine.count.serves, 1);
    }

    #[test]
    fn slow_runs_are_known_at_once() {
        let mut machine = Machine::new(2);
        machine.run(20, |n| [0.04, 3.0][n - 1], |n| crowd((n - 1) as f64));
        assert_eq!(machine.count.serves, 1);
    }
}
