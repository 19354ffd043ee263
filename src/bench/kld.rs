//! `nextn-bench kld`: how far a model's predictions are from those of a better file of the same model.
//! First the better file saves its log probabilities over a text, then the other is compared with them.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use text::{Special, TokenId};

use super::perplexity::windows;
use super::setup::{Setup, argmax, say};
use super::stats;

/// Options of `nextn-bench kld`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    setup: Setup,
    /// UTF-8 text (with --save)
    #[arg(short, long, value_name = "FILE", required_unless_present = "base")]
    file: Option<PathBuf>,
    /// Save this model's predictions to a file
    #[arg(long, value_name = "FILE", conflicts_with = "base")]
    save: Option<PathBuf>,
    /// Compare with saved predictions
    #[arg(long, value_name = "FILE", required_unless_present = "save", conflicts_with = "file")]
    base: Option<PathBuf>,
    /// Window in tokens; the second half of each counts
    #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    ctx_size: u32,
    /// Most windows to evaluate
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The file begins with this.
const MAGIC: &[u8; 8] = b"nextnkl1";

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match (&args.save, &args.base) {
        (Some(save), _) => {
            let file = args.file.as_deref().context("give a text with -f FILE")?;
            self::save(args, file, save)
        }
        (None, Some(base)) => compare(args, base),
        (None, None) => bail!("give --save FILE for the better model, then --base FILE for the other"),
    }
}

/// Log probabilities of a row, rounded so that a file of them stays small: steps of 1/2048, 32 at most.
fn pack(logits: &[f32], out: &mut Vec<u8>) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - most).exp()).sum();
    let log_sum = sum.ln() as f32;
    for &l in logits {
        let below = -(l - most - log_sum);
        out.extend(((below * STEPS).round().clamp(0.0, f32::from(u16::MAX)) as u16).to_le_bytes());
    }
}

/// Steps of a saved log probability.
const STEPS: f32 = 2048.0;

fn save(args: &Args, text: &Path, path: &Path) -> anyhow::Result<()> {
    let at = || path.display().to_string();
    let bytes = std::fs::read(text).with_context(|| text.display().to_string())?;
    let text = String::from_utf8(bytes).with_context(|| format!("{}: is not UTF-8", text.display()))?;
    let model = args.setup.open()?;
    let n_ctx = args.ctx_size as usize;
    let mut ids = model.vocab().encode(&text, Special::Plain);
    let n_windows = (ids.len() / n_ctx).min(args.windows as usize);
    ensure!(n_windows > 0, "{} tokens do not fill a window of {n_ctx}: give a longer text or a smaller -c", ids.len());
    ids.truncate(n_windows * n_ctx);
    let mut out = BufWriter::new(File::create(path).with_context(at)?);
    out.write_all(MAGIC).with_context(at)?;
    for n in [model.hparams().n_vocab, n_ctx, n_windows] {
        out.write_all(&(n as u32).to_le_bytes()).with_context(at)?;
    }
    for id in &ids {
        out.write_all(&id.0.to_le_bytes()).with_context(at)?;
    }
    let mut row = Vec::new();
    let mut n_rows = 0usize;
    windows(&args.setup, &model, &ids, n_ctx, |logits, _| {
        row.clear();
        pack(logits, &mut row);
        n_rows += 1;
        out.write_all(&row).with_context(at)
    })?;
    out.flush().with_context(at)?;
    say(json!({ "file": path, "n_rows": n_rows, "n_windows": n_windows, "n_ctx": n_ctx }))
}

/// Sums over all rows.
#[derive(Default)]
struct Sums {
    divergences: Vec<f64>,
    /// The likeliest token is the same.
    n_same: usize,
    /// Probability of the true token: ours minus the base's, squared.
    squares: f64,
    loss: f64,
    base_loss: f64,
}

impl Sums {
    fn add(&mut self, logits: &[f32], base: &[f32], next: TokenId) {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let log_sum = logits.iter().map(|&l| f64::from(l - most).exp()).sum::<f64>().ln();
        let ours = |i: usize| f64::from(logits[i] - most) - log_sum;
        let mut divergence = 0.0;
        for (i, &b) in base.iter().enumerate() {
            let b = f64::from(b);
            // Less likely than e^-20: nothing that counts.
            if b > -20.0 {
                divergence += b.exp() * (b - ours(i));
            }
        }
        self.divergences.push(divergence);
        self.n_same += usize::from(argmax(logits) == argmax(base));
        let next = next.0 as usize;
        self.squares += (ours(next).exp() - f64::from(base[next]).exp()).powi(2);
        self.loss -= ours(next);
        self.base_loss -= f64::from(base[next]);
    }
}

fn compare(args: &Args, path: &Path) -> anyhow::Result<()> {
    let at = || path.display().to_string();
    let file = File::open(path).with_context(at)?;
    let n_bytes = file.metadata().with_context(at)?.len();
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut magic = [0; 8];
    file.read_exact(&mut magic).with_context(at)?;
    ensure!(&magic == MAGIC, "{}: not a file that `nextn-bench kld --save` wrote", path.display());
    let mut number = || -> anyhow::Result<usize> {
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).with_context(at)?;
        Ok(u32::from_le_bytes(bytes) as usize)
    };
    let (n_vocab, n_ctx, n_windows) = (number()?, number()?, number()?);
    let model = args.setup.open()?;
    let ours = model.hparams().n_vocab;
    ensure!(ours == n_vocab, "{}: {n_vocab} words, the model has {ours}: not the same model", path.display());
    // Row r of a window predicts token r + 1; those count whose token is in the second half.
    let counted = n_ctx.saturating_sub(n_ctx / 2) as u64;
    let expected = 20 + n_windows as u64 * (4 * n_ctx as u64 + 2 * n_vocab as u64 * counted);
    ensure!(n_bytes == expected, "{}: {expected} bytes expected, {n_bytes} found: cut off?", path.display());
    let ids = (0..n_windows * n_ctx).map(|_| Ok(TokenId(number()? as u32))).collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(id) = ids.iter().find(|id| id.0 as usize >= n_vocab) {
        bail!("{}: token {} is outside the vocabulary of {n_vocab}", path.display(), id.0);
    }

    let mut sums = Sums::default();
    let (mut packed, mut base) = (vec![0; 2 * n_vocab], vec![0.0; n_vocab]);
    windows(&args.setup, &model, &ids, n_ctx, |logits, next| {
        file.read_exact(&mut packed).with_context(at)?;
        for (b, bytes) in base.iter_mut().zip(packed.as_chunks::<2>().0) {
            *b = -f32::from(u16::from_le_bytes(*bytes)) / STEPS;
        }
        sums.add(logits, &base, next);
        Ok(())
    })?;

    let n = sums.divergences.len();
    let mean = sums.divergences.iter().sum::<f64>() / n as f64;
    let variance = sums.divergences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n as f64 - 1.0).max(1.0);
    let error = (variance / n as f64).sqrt();
    let mut sorted = sums.divergences.clone();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[((n - 1) as f64 * share).round() as usize];
    let (ppl, base_ppl) = ((sums.loss / n as f64).exp(), (sums.base_loss / n as f64).exp());
    let (low, high) = stats::wilson(sums.n_same, n);
    let same = sums.n_same as f64 / n as f64;
    let rms = (sums.squares / n as f64).sqrt();
    if args.json {
        return say(json!({
            "kld": mean,
            "standard_error": error,
            "median": at(0.5),
            "p90": at(0.9),
            "p99": at(0.99),
            "max": at(1.0),
            "same_top": same,
            "same_top_interval": [low, high],
            "rms_probability": rms,
            "perplexity": ppl,
            "base_perplexity": base_ppl,
            "n_tokens": n,
        }));
    }
    say(format_args!("divergence {mean:.6} +- {error:.6} nats over {n} tokens"))?;
    say(format_args!("median {:.6}, 90 % {:.6}, 99 % {:.6}, largest {:.6}", at(0.5), at(0.9), at(0.99), at(1.0)))?;
    let percent = |share: f64| 100.0 * share;
    say(format_args!(
        "the same likeliest token in {:.2} % (95 %: {:.2} to {:.2})",
        percent(same),
        percent(low),
        percent(high)
    ))?;
    say(format_args!("probability of the true token differs by {:.3} % (root of the mean square)", percent(rms)))?;
    say(format_args!("perplexity {ppl:.4}, of the base {base_ppl:.4}"))
}
