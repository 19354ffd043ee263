//! `image`: what a projector sees of a picture: its size after preprocessing, bytes, pixels, rows; and how fast that is.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use model::{Projector, ProjectorOptions};
use serde_json::{Value, json};
use session::options::{DeviceOptions, ImageLimitOptions};
use vision::{DecodeLimits, Patches, Picture, Processor};

use super::setup::say;

/// What to look at, and what to print of it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Projector (GGUF)
    #[arg(long, value_name = "FILE")]
    mmproj: PathBuf,
    /// PNG, JPEG, WebP or GIF file
    #[arg(long, value_name = "FILE")]
    image: PathBuf,
    /// Also compute and print the rows that the projector makes of it
    #[arg(long)]
    embeddings: bool,
    /// Also print the normalised pixels, in the order of the published processor
    #[arg(long)]
    pixels: bool,
    /// Print times of decoding, preprocessing and the tower instead, the best of N runs
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "3", conflicts_with_all = ["embeddings", "pixels"])]
    speed: Option<usize>,
    /// Number of CPU threads [default: one per physical core]
    #[arg(short, long, value_name = "N")]
    threads: Option<u16>,
    #[command(flatten)]
    limits: ImageLimitOptions,
    #[command(flatten)]
    device: DeviceOptions,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let projector = args.open()?;
    let encoded = std::fs::read(&args.image).with_context(|| args.image.display().to_string())?;
    let processor = projector.processor(&args.limits.limits())?;
    if let Some(n_runs) = args.speed {
        return say(speed(args, &projector, &processor, &encoded, n_runs.max(1))?);
    }
    let picture = decode(&encoded, &args.image)?;
    let (width, height) = processor.size(picture.width(), picture.height())?;
    let resized = picture.resized(processor.filter, width, height);
    let patches = processor.cut(&resized);
    let mut printed = json!({
        "size": [picture.width(), picture.height()],
        "resized": [width, height],
        "grid": patches.grid,
        "n_tokens": patches.n_tokens,
        "rgb": resized.rgb(),
    });
    if args.pixels {
        printed["pixels"] = as_published(&patches, &processor, projector.kind()).into();
    }
    if args.embeddings {
        printed["embeddings"] = projector.embed(&patches)?.rows.into();
    }
    say(printed)
}

impl Args {
    fn open(&self) -> anyhow::Result<Projector> {
        self.device.load_backends()?;
        let options = ProjectorOptions {
            device: self.device.chosen()?.first().copied(),
            n_threads: self.n_threads(),
            lock: self.device.mlock,
            ..ProjectorOptions::default()
        };
        Projector::open(&self.mmproj, &options).map_err(|error| anyhow::anyhow!(error.in_file(&self.mmproj)))
    }

    fn n_threads(&self) -> usize {
        let compute = session::options::ComputeOptions { threads: self.threads, ..Default::default() };
        compute.engine_config().n_threads()
    }
}

fn decode(encoded: &[u8], path: &Path) -> anyhow::Result<Picture> {
    Picture::decode(encoded, &DecodeLimits::default()).with_context(|| path.display().to_string())
}

/// Times of each part in milliseconds, the best of several runs.
fn speed(
    args: &Args,
    projector: &Projector,
    processor: &Processor,
    encoded: &[u8],
    n_runs: usize,
) -> anyhow::Result<Value> {
    let mut best = [f64::INFINITY; 3];
    let mut seen = None;
    for _ in 0..n_runs {
        let start = Instant::now();
        let picture = decode(encoded, &args.image)?;
        let decoded = Instant::now();
        let patches = processor.patches(&picture)?;
        let cut = Instant::now();
        projector.embed(&patches)?;
        let times = [decoded - start, cut - decoded, cut.elapsed()];
        best.iter_mut().zip(times).for_each(|(best, time)| *best = best.min(time.as_secs_f64() * 1e3));
        seen = Some((patches.grid, patches.n_tokens));
    }
    let (grid, n_tokens) = seen.context("there is at least one run")?;
    let [decode_ms, preprocess_ms, tower_ms] = best.map(|ms| (ms * 100.0).round() / 100.0);
    Ok(json!({
        "projector": projector.describe().name,
        "kind": projector.kind(),
        "type": projector.describe().quantization,
        "device": projector.weights().device().name(),
        "threads": args.n_threads(),
        "grid": grid,
        "n_tokens": n_tokens,
        "runs": n_runs,
        "decode_ms": decode_ms,
        "preprocess_ms": preprocess_ms,
        "tower_ms": tower_ms,
        "tokens_per_s": (n_tokens as f64 / tower_ms * 1e4).round() / 10.0,
    }))
}

/// Pixels in the order of the published processors. Qwen's has each channel of a patch twice, once for each of two frames;
/// Gemma's goes through patches row by row, and through a patch with the channel as fastest dimension.
fn as_published(patches: &Patches, processor: &Processor, kind: &str) -> Vec<f32> {
    let n_area = processor.patch * processor.patch;
    let each = patches.pixels.chunks_exact(3 * n_area);
    if kind == "qwen3vl_merger" {
        return each.flat_map(|patch| patch.chunks_exact(n_area).flat_map(|c| [c, c].concat())).collect();
    }
    let mut placed: Vec<((usize, usize), &[f32])> = patches.places().zip(each).collect();
    placed.sort_by_key(|&(place, _)| place);
    let turned = |patch: &[f32]| (0..3 * n_area).map(|i| patch[i % 3 * n_area + i / 3]).collect::<Vec<f32>>();
    placed.into_iter().flat_map(|(_, patch)| turned(patch)).collect()
}
