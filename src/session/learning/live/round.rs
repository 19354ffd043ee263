//! A round: the program that trains, as a process of low priority that can be stopped. Owns its command line, its end and what it
//! reports. Whatever it does, or does not, harms nothing but its own round.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::place::HEAD;
use super::rule::Measured;
use crate::learning::options::LiveOptions;

/// What the program measured: shares of right drafts, by depth (`nextn-tune head --report`).
#[derive(Debug, Deserialize)]
pub(super) struct Report {
    n_held_out: u64,
    start: Option<Vec<f64>>,
    best: Option<Vec<f64>>,
    rival: Option<Vec<f64>>,
}

impl Report {
    /// That of a round's folder.
    ///
    /// # Errors
    /// A sentence: it is not there, or is no report.
    pub(super) fn read(folder: &Path) -> Result<Self, String> {
        let path = folder.join(REPORT);
        let mut bytes = Vec::new();
        let read = fs::File::open(&path).and_then(|file| file.take(MAX_REPORT).read_to_end(&mut bytes));
        read.map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: no report: {error}", path.display()))
    }

    /// As the rule wants it. What is missing is worth nothing.
    pub(super) fn measured(&self) -> Measured {
        let length = |shares: &Vec<f64>| {
            let chances = shares.iter().scan(1.0, |chance, right| {
                *chance *= right;
                Some(*chance)
            });
            1.0 + chances.sum::<f64>()
        };
        let known = |shares: &Option<Vec<f64>>| shares.as_ref().map_or(f64::NAN, length);
        Measured {
            n: self.n_held_out,
            in_use: known(&self.start),
            learned: known(&self.best),
            before: self.rival.as_ref().map(length),
        }
    }
}

/// Whether the program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It runs, or is stopped.
    Not,
    /// With success.
    Well,
}

/// The program while it runs; it is ended when this is dropped.
pub(super) struct Round {
    child: Child,
    /// When it is closed, the program ends.
    _stdin: Option<ChildStdin>,
    /// Its last words.
    said: Arc<Mutex<VecDeque<String>>>,
    most_mib: u64,
    is_stopped: bool,
    /// How long it has run, and since when it does.
    ran: Duration,
    since: Instant,
}

impl Round {
    /// Starts round `n` on a model's file, the folder of kept replies and an empty folder. `heads`: the one to start from and the one
    /// to measure beside it; without the former it starts from the model's own.
    ///
    /// # Errors
    /// A sentence: the program does not start.
    pub(super) fn start(
        options: &LiveOptions,
        (model, kept, folder): (&Path, &Path, &Path),
        (start, rival): (Option<&PathBuf>, Option<&PathBuf>),
        n: u64,
    ) -> Result<Self, String> {
        let mut command = Command::new(&options.program);
        command.arg("head").arg(model).arg("--from").arg(kept).arg("-o").arg(folder.join(HEAD));
        command.arg("--report").arg(folder.join(REPORT));
        for (option, path) in [("--head", start), ("--rival", rival)] {
            if let Some(path) = path {
                command.arg(option).arg(path);
            }
        }
        for (option, value) in [
            ("--tokens", options.n_tokens.to_string()),
            ("--hold-latest", options.n_held_out.to_string()),
            ("--cache-size", (options.n_mib / 2).max(1).to_string()),
            ("--batch", BATCH.to_string()),
            ("--measurements", N_MEASUREMENTS.to_string()),
            ("--seed", n.to_string()),
            // Each tensor has the type that it has in use, so that the one can take the other's place.
            ("--type", "keep".to_owned()),
            ("--device", "cpu".to_owned()),
        ] {
            command.arg(option).arg(value);
        }
        command.args(["--slim", "--force", "--until-stdin-ends"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        system::prepare(&mut command);
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", options.program.display()))?;
        system::give_way(&child);
        let said = Arc::<Mutex<VecDeque<String>>>::default();
        if let Some(stderr) = child.stderr.take() {
            let into = Arc::clone(&said);
            // It ends with the program. Without it the program would wait for room in the pipe.
            std::thread::spawn(move || keep_last(stderr, &into));
        }
        let _stdin = child.stdin.take();
        let most_mib = options.n_mib.into();
        let (is_stopped, ran, since) = (false, Duration::ZERO, Instant::now());
        Ok(Self { child, _stdin, said, most_mib, is_stopped, ran, since })
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// A sentence: it ended otherwise than well, or took too much memory or time and was ended.
    pub(super) fn ended(&mut self) -> Result<Ended, String> {
        let status = self.child.try_wait().map_err(|error| error.to_string())?;
        match status {
            Some(status) if status.success() => return Ok(Ended::Well),
            Some(status) => return Err(format!("the program ended with {status}: {}", self.last_words())),
            None => {}
        }
        if let Some(mib) = system::memory_mib(&self.child).filter(|mib| *mib > self.most_mib) {
            return Err(format!("the program took {mib} MiB of {}: it was ended", self.most_mib));
        }
        let ran = self.ran + if self.is_stopped { Duration::ZERO } else { self.since.elapsed() };
        if ran > LONGEST {
            return Err(format!("the program took longer than {} minutes: it was ended", LONGEST.as_secs() / 60));
        }
        Ok(Ended::Not)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Stops it where it stands; false where the system cannot.
    pub(super) fn stop(&mut self) -> bool {
        self.is_stopped = system::stop(&self.child);
        self.ran += self.since.elapsed();
        self.is_stopped
    }

    /// Has it go on.
    pub(super) fn go_on(&mut self) {
        system::go_on(&self.child);
        self.is_stopped = false;
        self.since = Instant::now();
    }

    fn last_words(&self) -> String {
        let said = lock(&self.said);
        said.iter().rev().find(|line| line.contains("error")).or(said.back()).cloned().unwrap_or_default()
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        // One that has ended is told nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps the last lines, each up to a length.
fn keep_last(from: impl Read, into: &Mutex<VecDeque<String>>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let mut said = lock(into);
        if said.len() == N_LINES {
            said.pop_front();
        }
        said.push_back(String::from_utf8_lossy(&line).trim_end().chars().filter(|c| !c.is_control()).collect());
        line.clear();
    }
}

/// The numbers or lines in there.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Numbers and lines: nothing is half-done in there when a thread panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What differs between systems.
#[cfg(unix)]
mod system {
    use std::process::{Child, Command};

    use rustix::process::{Pid, Signal, kill_process, setpriority_process};

    pub(super) fn prepare(_: &mut Command) {}

    /// Processors are its own only where nobody else wants them.
    pub(super) fn give_way(child: &Child) {
        if let Err(error) = setpriority_process(Some(Pid::from_child(child)), LOWEST) {
            tracing::debug!(%error, "--learn-live: the program runs at the usual priority");
        }
    }

    pub(super) fn stop(child: &Child) -> bool {
        // One that has ended cannot be stopped, and need not be.
        kill_process(Pid::from_child(child), Signal::STOP).is_ok()
    }

    pub(super) fn go_on(child: &Child) {
        let _ = kill_process(Pid::from_child(child), Signal::CONT);
    }

    /// Memory of its own, without files that it maps; `None` where the system does not tell.
    pub(super) fn memory_mib(child: &Child) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? >> 10)
    }

    /// The highest number of `nice`.
    const LOWEST: i32 = 19;
}

#[cfg(windows)]
mod system {
    use std::os::windows::process::CommandExt;
    use std::process::{Child, Command};

    /// `IDLE_PRIORITY_CLASS`
    const LOWEST: u32 = 0x40;

    pub(super) fn prepare(command: &mut Command) {
        command.creation_flags(LOWEST);
    }

    pub(super) fn give_way(_: &Child) {}

    /// It cannot be stopped, only ended.
    pub(super) fn stop(_: &Child) -> bool {
        false
    }

    pub(super) fn go_on(_: &Child) {}

    pub(super) fn memory_mib(_: &Child) -> Option<u64> {
        None
    }
}

const REPORT: &str = "report.json";

/// Bytes of a report at most.
const MAX_REPORT: u64 = 1 << 16;

/// Lines of the program that are kept, and bytes of one.
const N_LINES: usize = 20;
const MAX_LINE: u64 = 512;

/// Tokens of a step: many small steps do better than few large ones.
const BATCH: u32 = 1024;

/// Measurements of a round, each of which may be its best.
const N_MEASUREMENTS: u32 = 4;

/// A round that takes longer, stops not counted, is ended.
const LONGEST: Duration = Duration::from_secs(30 * 60);
