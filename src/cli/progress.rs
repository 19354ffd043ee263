//! Signs of life on standard error while the model loads and while a long prompt is read. Shows nothing but on a terminal.

use std::time::Duration;

use engine::PromptProgress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A turning sign with words, until it is dropped.
pub struct Spinner(ProgressBar);

impl Spinner {
    /// Starts to turn where `shown`.
    pub fn start(words: String, shown: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, target(shown));
        bar.set_style(style("{spinner} {msg}"));
        bar.set_message(words);
        if shown {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Self(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The bar of a long prompt; short ones get none.
pub struct PromptBar {
    bar: Option<ProgressBar>,
    shown: bool,
}

impl PromptBar {
    /// No bar yet; it comes with the first report of a long prompt, where `shown`.
    pub fn new(shown: bool) -> Self {
        Self { bar: None, shown }
    }

    /// Takes a report of the engine.
    pub fn update(&mut self, progress: PromptProgress) {
        if !self.shown
            || progress.total - progress.cached.min(progress.total) < LONG_PROMPT
            || progress.done >= progress.total
        {
            self.clear();
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(progress.total as u64), target(true));
            bar.set_style(style("prompt {bar:30} {pos}/{len} tok  {eta}"));
            bar.set_position(progress.cached as u64);
            bar.reset_eta();
            bar
        });
        bar.set_position(progress.done as u64);
    }

    /// Takes the bar off the screen.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for PromptBar {
    fn drop(&mut self) {
        self.clear();
    }
}

fn target(shown: bool) -> ProgressDrawTarget {
    if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates stand in this file, and a test makes them all")
}

/// Prompts with fewer tokens to compute are done before a bar could be read.
const LONG_PROMPT: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_prompts_on_a_terminal_get_a_bar_and_it_goes_when_they_are_done() {
        let report = |done, cached, total| PromptProgress { done, cached, total };
        let mut bar = PromptBar::new(true);
        bar.update(report(10, 0, 100));
        assert!(bar.bar.is_none(), "short prompt");
        bar.update(report(4000, 3900, 4096));
        assert!(bar.bar.is_none(), "most of it is cached");
        bar.update(report(512, 0, 4096));
        assert_eq!(bar.bar.as_ref().map(ProgressBar::position), Some(512));
        bar.update(report(4096, 0, 4096));
        assert!(bar.bar.is_none(), "done");

        let mut hidden = PromptBar::new(false);
        hidden.update(report(512, 0, 4096));
        assert!(hidden.bar.is_none());
        drop(Spinner::start("loading".into(), false));
    }
}
