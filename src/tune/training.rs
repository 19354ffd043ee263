//! The loop over batches: it measures on the way, keeps the best numbers, and where it stands on disk. Knows no files but those.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use candle_core::Tensor;

use crate::Stopped;
use crate::batches::{Batches, Part, Sizes};
use crate::data::Text;
use crate::head_args::Args;
use crate::loss::Worth;
use crate::optimizer::share_of_rate;
use crate::progress::{Shown, length, shares};
use crate::state::{self, Progress};
use crate::train::Trainer;

/// Seconds between two states on disk.
const SAVE_EVERY: f64 = 60.0;

/// The loop over batches.
pub(crate) struct Training<'a> {
    pub(crate) args: &'a Args,
    pub(crate) texts: &'a [Text],
    pub(crate) n_learned: usize,
    pub(crate) held: &'a [Part],
    pub(crate) folder: &'a Path,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) rate: f64,
    /// Of batches.
    pub(crate) sizes: Sizes,
}

/// Where a training's state was kept.
pub(crate) enum Kept {
    /// Beside the head that it makes.
    InFolder,
    /// Among the temporary files, and why.
    Elsewhere(tempfile::TempDir, String),
}

impl Training<'_> {
    /// Trains until the tokens or minutes are over, or nothing gets better; the head is the best one then.
    pub(crate) fn run(&self, trainer: &mut Trainer, identity: String) -> anyhow::Result<(Progress, Kept)> {
        let mut progress = Progress { identity, ..Progress::default() };
        let mut best: HashMap<String, Tensor> = HashMap::new();
        if let Some(saved) = state::load(self.folder)? {
            ensure!(
                saved.progress.identity == progress.identity,
                "{}: a training with other options or texts; --force begins anew",
                self.folder.display()
            );
            progress = saved.progress.clone();
            (trainer.optimizer, best) = saved.restore(trainer.head())?;
        }
        let learned = &self.texts[..self.n_learned];
        let mut batches = Batches::new(learned, self.sizes, self.args.seed);
        // Where it was: the order of batches is that of the seed.
        (0..progress.n_steps).for_each(|_| drop(batches.next_batch()));
        let length = self.args.minutes.map_or(self.args.tokens, |m| (m * 60.0) as u64);
        let shown = Shown::new(length, if self.args.minutes.is_some() { "s" } else { "tokens" });
        let n: usize = learned.iter().map(Text::n_counted).sum();
        shown.line(&format!(
            "{} texts, {n} tokens to learn from; {} texts held out",
            self.n_learned,
            self.texts.len() - self.n_learned
        ));
        if self.held.is_empty() {
            shown.line("note: nothing is held out, so drafts are not measured, and there is nothing to plot");
        }
        if progress.measured.is_empty() {
            self.measure(trainer, (&mut progress, &mut best), &shown)?;
        }
        // What has no room is said before hours are spent on it.
        state::save(self.folder, trainer.head(), &trainer.optimizer, &best, &progress)?;
        let (begun, before) = (Instant::now(), progress.seconds);
        let mut saved_at = before;
        while self.share(&progress) < 1.0 {
            if self.stop.load(Ordering::Relaxed) {
                trainer.settle()?;
                match self.keep(trainer, &best, &progress)? {
                    Kept::InFolder => shown.line("--resume goes on from here"),
                    Kept::Elsewhere(dir, why) => shown.line(&format!("{why}; {}", self.taken_up(dir))),
                }
                anyhow::bail!(Stopped);
            }
            // Where measurements stand depends on nothing but how far it is.
            let n_measured = |share: f64| (share * f64::from(self.args.measurements)).floor();
            let n_before = n_measured(self.share(&progress));
            let batch = batches.next_batch();
            let rate = self.rate * share_of_rate(self.share(&progress));
            progress.n_tokens += trainer.learn(learned, &batch, rate)?;
            progress.n_steps += 1;
            progress.seconds = before + begun.elapsed().as_secs_f64();
            let position = if self.args.minutes.is_some() { progress.seconds as u64 } else { progress.n_tokens as u64 };
            shown.at(position.min(length), format!("right: {}", shares(trainer.latest())));
            if n_measured(self.share(&progress)) > n_before {
                self.measure(trainer, (&mut progress, &mut best), &shown)?;
                progress.seconds = before + begun.elapsed().as_secs_f64();
                if self.is_over(&progress) {
                    shown.line("nothing better was found for a while: this is the end");
                    break;
                }
            }
            if progress.seconds - saved_at > SAVE_EVERY {
                trainer.settle()?;
                // Room may be there in a minute; what was kept before stays.
                if let Err(error) = state::save(self.folder, trainer.head(), &trainer.optimizer, &best, &progress) {
                    shown.line(&format!("note: {error:#}"));
                }
                saved_at = progress.seconds;
            }
        }
        trainer.settle()?;
        progress.seconds = before + begun.elapsed().as_secs_f64();
        // Where the file cannot be written, --resume has nothing left to do but that.
        let kept = self.keep(trainer, &best, &progress)?;
        if !best.is_empty() {
            state::put(trainer.head(), &best)?;
        }
        let spent = trainer.spent;
        shown.line(&format!(
            "{:.0} tokens a second; seconds: the model's passes {:.0}, the head {:.0}, steps {:.0}",
            progress.n_tokens as f64 / progress.seconds.max(1e-3),
            spent.target,
            spent.head,
            spent.steps
        ));
        Ok((progress, kept))
    }

    /// Keeps where the training stands, for `--resume`; where its folder has no room, among the temporary files.
    fn keep(&self, trainer: &Trainer, best: &HashMap<String, Tensor>, progress: &Progress) -> anyhow::Result<Kept> {
        let save = |folder: &Path| state::save(folder, trainer.head(), &trainer.optimizer, best, progress);
        let Err(error) = save(self.folder) else { return Ok(Kept::InFolder) };
        let elsewhere = tempfile::Builder::new().prefix("nextn-tune-").tempdir().context("no other folder")?;
        save(elsewhere.path())?;
        Ok(Kept::Elsewhere(elsewhere, format!("{error:#}")))
    }

    /// Leaves the folder there, and says what brings the training back from it.
    pub(crate) fn taken_up(&self, dir: tempfile::TempDir) -> String {
        let (from, to) = (dir.keep(), self.folder.display());
        format!("the training is kept in {}: move what is there to {to}, and --resume goes on with it", from.display())
    }

    /// How much of the work is done.
    fn share(&self, progress: &Progress) -> f64 {
        match self.args.minutes {
            Some(minutes) => progress.seconds / (minutes * 60.0),
            None => progress.n_tokens as f64 / self.args.tokens.max(1) as f64,
        }
    }

    /// Measures on what is held out, if anything is, and keeps the numbers if they are the best so far.
    fn measure(
        &self,
        trainer: &mut Trainer,
        (progress, best): (&mut Progress, &mut HashMap<String, Tensor>),
        shown: &Shown,
    ) -> anyhow::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let worth = trainer.measure(self.texts, self.held)?;
        let right: Vec<f64> = worth.iter().map(Worth::right).collect();
        if progress.measured.iter().all(|(_, before)| length(before) < length(&right)) {
            *best = state::named(trainer.head())
                .into_iter()
                .map(|(name, x)| Ok((name, x.copy()?)))
                .collect::<candle_core::Result<_>>()?;
        }
        shown.line(&format!(
            "{:>9} tokens {:>6.0} s   right: {}   tokens per step: {:.2}",
            progress.n_tokens,
            progress.seconds,
            shares(&worth),
            length(&right)
        ));
        progress.measured.push((progress.n_tokens, right));
        Ok(())
    }

    /// The latest measurements were not better than those before them.
    fn is_over(&self, progress: &Progress) -> bool {
        let lengths: Vec<f64> = progress.measured.iter().map(|(_, right)| length(right)).collect();
        let best = lengths.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i);
        lengths.len() > best + usize::from(self.args.patience)
    }
}

/// The best of what was measured on the way, and after how many tokens: of equals the first.
pub(crate) fn best(progress: &Progress) -> Option<&(usize, Vec<f64>)> {
    progress.measured.iter().rev().max_by(|a, b| length(&a.1).total_cmp(&length(&b.1)))
}
