//! Signs of life on standard error while the model loads and while the prompt is read. They come where that takes longer than
//! a glance, and nowhere but on a terminal.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::PromptProgress;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use session::FileProgress;

/// A line that turns, from a moment after it is made until it is dropped.
pub struct Waiting {
    bar: ProgressBar,
    /// Dropped when nothing is to be shown any more.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// While a model is loaded: its name, its bytes, the time.
    pub fn load(model: Option<&Path>, shown: bool) -> Self {
        let words = match model {
            Some(path) => {
                let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
                format!(
                    "loading {} ({})",
                    program::sanitize::clean_line(&path.display().to_string()),
                    HumanBytes(bytes)
                )
            }
            None => "loading the embedded model".to_owned(),
        };
        let waiting = Self::start(shown);
        waiting.bar.set_message(words);
        waiting
    }

    /// Shows how far the files of a model are; where the line is not shown, nothing listens.
    pub fn progress(&self) -> FileProgress {
        if self.thread.is_none() {
            return FileProgress::default();
        }
        let bar = self.bar.clone();
        FileProgress::new(move |file, done, total| bar.set_message(far(file, done, total)))
    }

    fn start(shown: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(style("{spinner} {msg}  {elapsed}"));
        let (end, ended) = mpsc::channel::<()>();
        let thread = shown.then(|| {
            let bar = bar.clone();
            std::thread::spawn(move || {
                if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(TURN);
                }
            })
        });
        Self { bar, end: Some(end), thread }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.end.take());
        // Afterwards nothing draws any more.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

/// How far a prompt is read, from its request to its first token.
pub struct PromptBar(Option<Waiting>);

impl PromptBar {
    /// A prompt of which nothing is known yet, where `shown`.
    pub fn new(shown: bool) -> Self {
        let waiting = Waiting::start(shown);
        waiting.bar.set_message("reading the prompt");
        Self(Some(waiting))
    }

    /// Takes a report of the engine.
    pub fn update(&mut self, progress: PromptProgress) {
        let Some(Waiting { bar, .. }) = &self.0 else { return };
        if bar.length().is_none() {
            bar.set_style(style("{spinner} prompt {bar:20} {pos}/{len} tokens  {percent} %  {elapsed}"));
            bar.set_length(progress.total as u64);
        }
        bar.set_position(progress.done as u64);
    }

    /// Takes the bar off the screen.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

/// How far a file is, in words.
fn far(file: &Path, done: u64, total: u64) -> String {
    let percent = done * 100 / total.max(1);
    format!(
        "loading {} {percent} % ({} of {})",
        program::sanitize::clean_line(&file.display().to_string()),
        HumanBytes(done),
        HumanBytes(total)
    )
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates stand in this file, and a test makes them all")
}

/// What takes less time needs no sign.
const PATIENCE: Duration = Duration::from_millis(300);
/// Between two turns.
const TURN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_says_its_percent() {
        assert_eq!(far(Path::new("m.gguf"), 430 << 20, 1000 << 20), "loading m.gguf 43 % (430.00 MiB of 1000.00 MiB)");
    }

    #[test]
    fn a_prompt_is_followed_until_its_first_token() {
        let mut bar = PromptBar::new(false);
        for (done, position) in [(0, 0), (512, 512), (4096, 4096)] {
            bar.update(PromptProgress { done, cached: 0, total: 4096 });
            let shown = &bar.0.as_ref().expect("it waits").bar;
            assert_eq!((shown.position(), shown.length()), (position, Some(4096)));
        }
        bar.clear();
        bar.update(PromptProgress { done: 1, cached: 0, total: 2 });
        assert!(bar.0.is_none(), "nothing comes back");
        drop(Waiting::load(Some(Path::new("/no/such/file")), true));
    }
}
