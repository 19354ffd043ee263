//! What a training says while it runs: a bar on a terminal, a line for each measurement, a plot of them.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use plot::{Canvas, Curves, Series};
use program::sanitize;
use program::terminal::tell;

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
        self.bar.suspend(|| tell(&words));
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

/// Tokens of a pass with a draft of all depths, on average: the sum of the chances that a draft gets so far, and the pass's own.
pub fn length(right: &[f64]) -> f64 {
    let chances = right.iter().scan(1.0, |chance, right| {
        *chance *= right;
        Some(*chance)
    });
    1.0 + chances.sum::<f64>()
}

/// Shares of wrong drafts over the tokens learned from: near their end the right ones would all lie on one line.
pub fn drawn(measured: &[(usize, Vec<f64>)]) -> Canvas {
    let n_depths = measured.first().map_or(0, |(_, right)| right.len());
    let series = (0..n_depths).map(|k| Series {
        name: format!("draft token {}", k + 1),
        points: measured.iter().map(|(n, right)| ((*n as f64 / 1e3).round(), 100.0 * (1.0 - right[k]))).collect(),
        measured: true,
    });
    let mut canvas = Canvas::new(900.0, 380.0);
    Curves {
        title: "Drafts that are not the model's own choice, on texts held out".into(),
        x_name: "tokens learned from (thousands)".into(),
        y_name: "wrong (%)".into(),
        series: series.collect(),
        level: None,
    }
    .draw(&mut canvas, 0.0, 880.0);
    canvas
}
