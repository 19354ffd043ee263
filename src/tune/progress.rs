//! What a training says while it runs: a bar on a terminal, a line for each measurement.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use program::sanitize;

use crate::loss::Worth;

/// The bar, and lines above it.
pub struct Shown {
    bar: ProgressBar,
}

impl Shown {
    /// A bar of so many units, if standard error is a terminal.
    pub fn new(length: u64, unit: &str) -> Self {
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new(length) } else { ProgressBar::hidden() };
        let style = format!("{{msg}} {{wide_bar}} {{human_pos}}/{{human_len}} {unit}  {{eta}} left");
        let style = ProgressStyle::with_template(&style).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("##-"));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar }
    }

    /// How far it is.
    pub fn at(&self, position: u64, words: String) {
        self.bar.set_position(position);
        self.bar.set_message(words);
    }

    /// A line that stays.
    pub fn line(&self, words: &str) {
        let words = sanitize::clean(words);
        self.bar.suspend(|| eprintln!("{words}"));
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Shares of right drafts, first depth first: `0.975 0.968 0.951`.
pub fn shares(worth: &[Worth]) -> String {
    worth.iter().map(|worth| format!("{:.3}", worth.right())).collect::<Vec<_>>().join(" ")
}
