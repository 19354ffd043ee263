//! How far a download is: a bar on a terminal, lines of text elsewhere.
//! Shows nothing where all files are in the cache. Knows no hub.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hub::Event;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Follows the download of one model.
pub struct DownloadProgress {
    bar: ProgressBar,
    /// There is a terminal to show the bar on.
    on_terminal: bool,
    /// Takes a line where there is no terminal, and what goes wrong where there is one.
    say: fn(&str),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes that are there, by file.
    done: HashMap<String, u64>,
    total: u64,
    n_files: usize,
    said: Option<Instant>,
}

impl DownloadProgress {
    /// Nothing is shown before the first bytes.
    pub fn new(on_terminal: bool, say: fn(&str)) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(ProgressStyle::with_template(BAR).expect("a constant template"));
        Self { bar, on_terminal, say, state: Mutex::default() }
    }

    /// Takes what is told of a download.
    pub fn tell(&self, event: Event<'_>) {
        match event {
            Event::Chosen { files } => {
                let mut state = self.lock();
                state.total = files.size();
                state.n_files = files.files().count();
            }
            Event::Progress { file, done, size } => self.progress(file, done, size),
            Event::Waiting { file } => self.line(&format!("waiting for another program that fetches {file}")),
            Event::Again { why, after } => {
                self.line(&format!("{why}; trying again in {} s", after.as_secs_f64().ceil()));
            }
        }
    }

    /// Takes the bar off the screen.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn progress(&self, file: &str, done: u64, size: u64) {
        let mut state = self.lock();
        let is_new = state.done.insert(file.to_owned(), done).is_none();
        let sum: u64 = state.done.values().sum();
        let total = state.total.max(size);
        if self.on_terminal {
            if self.bar.is_hidden() && done < size {
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            self.bar.set_length(total);
            self.bar.set_position(sum);
            if is_new {
                let name = file.rsplit('/').next().unwrap_or(file);
                let place = format!("{}/{} ", state.done.len(), state.n_files);
                self.bar.set_message(format!("{}{name}", if state.n_files > 1 { place } else { String::new() }));
                // What was there before says nothing of the speed.
                self.bar.reset_eta();
            }
            return;
        }
        if is_new && done == size {
            // It was in the cache.
            return;
        }
        let is_due = state.said.is_none_or(|said| said.elapsed() >= LINE_EVERY);
        if is_due || done == size {
            state.said = Some(Instant::now());
            drop(state);
            (self.say)(&format!("fetching {file}: {} of {}", HumanBytes(done), HumanBytes(size)));
        }
    }

    fn line(&self, words: &str) {
        if self.bar.is_hidden() {
            (self.say)(words);
        } else {
            self.bar.println(words);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DownloadProgress {
    fn drop(&mut self) {
        self.finish();
    }
}

const BAR: &str = "{msg:.bold} {bar:24} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}";

/// Between lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_counts_the_bytes_of_all_files() {
        let progress = DownloadProgress::new(true, |_| {});
        progress.lock().total = 30;
        for (file, done, size) in [("a", 0, 10), ("a", 10, 10), ("b/c", 5, 20)] {
            progress.tell(Event::Progress { file, done, size });
        }
        assert_eq!((progress.bar.position(), progress.bar.length()), (15, Some(30)));
        progress.finish();
    }
}
