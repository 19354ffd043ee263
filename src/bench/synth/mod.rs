//! `nextn-bench synth`: model files of real dimensions with made-up weights, whose drafts are accepted as often as asked.
//! Owns the command; the files are for measuring, and say nothing that means anything.

mod encode;
mod projector;
pub(crate) mod random;
pub(crate) mod shapes;
mod successor;
pub(crate) mod table;
pub(crate) mod tensors;
pub(crate) mod types;
mod vocab;
mod wiring;
mod write;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use super::setup::say;
use projector::{TOWERS, TowerShape};
use shapes::Shape;
use successor::{MAX_RATES, Successor};
use types::Mix;
use vocab::Words;
use write::Synthetic;

/// Options of `nextn-bench synth`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Published model whose dimensions to use; `list` names them
    #[arg(long, value_name = "NAME")]
    shape: String,
    /// Types of the weights: f32, f16, bf16, q8_0, q4_0, q4_k, q4_k_m, q5_k, q5_k_m, q6_k
    #[arg(long = "type", value_name = "TYPE", default_value = "q8_0")]
    mix: Mix,
    /// Acceptance rate, 0 to 1; several values: by position in the draft
    #[arg(long, value_name = "A,A,...", value_delimiter = ',', default_value = "0.8", value_parser = share)]
    accept: Vec<f64>,
    /// Share of frequent tokens (low ids) in the text
    #[arg(long, value_name = "C", default_value = "0.97", value_parser = share)]
    cover: f64,
    /// Seed of the weights and of the order of tokens
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Number of CPU threads [default: one per physical core]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: Option<u16>,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

fn share(s: &str) -> Result<f64, String> {
    let value: f64 = s.parse().map_err(|_| format!("`{s}` is not a number"))?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(format!("{value} is not between 0 and 1")) }
}

impl Synthetic {
    /// A model of `shape`: nothing is written yet.
    pub(crate) fn new(shape: Shape, mix: Mix, rates: &[f64], cover: f64, seed: u64) -> Self {
        let words = Words::new(&shape);
        let successor = Successor::new(&shape.speaker(), seed, cover, words.n_text, rates).narrowed(shape.n_embd);
        let tensors = tensors::tensors(&shape, &mix);
        Self { shape, mix, seed, rates: rates.to_vec(), words, successor, tensors }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if args.shape == "list" {
        return list(&args.mix);
    }
    if let Some(tower) = TowerShape::find(&args.shape) {
        return write_projector(args, tower);
    }
    let names = || table::all().iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
    let shape = Shape::find(&args.shape).with_context(|| format!("`{}` is not one of {}", args.shape, names()))?;
    let output = args.output.as_deref().context("where does the file go? give -o FILE")?;
    ensure!(args.cover >= 0.5, "--cover {}: at least 0.5 expected", args.cover);
    ensure!(args.accept.len() <= MAX_RATES, "--accept: {} depths at most, {} found", MAX_RATES, args.accept.len());
    let model = Synthetic::new(shape, args.mix, &args.accept, args.cover, args.seed);
    let n_bytes = model.tensors.iter().map(tensors::Tensor::n_bytes).sum();
    check_room(output, n_bytes)?;
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(n_bytes) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")?);
    let start = Instant::now();
    let n_threads = args
        .threads
        .map_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get), usize::from);
    model.write(output, n_threads, |written| bar.set_position(written))?;
    bar.finish_and_clear();
    let took = start.elapsed().as_secs_f64();
    let (n_tensors, gb) = (model.tensors.len(), n_bytes as f64 / 1e9);
    let path = output.display();
    say(format_args!("{path}: {n_tensors} tensors, {gb:.2} GB in {took:.1} s ({:.2} GB/s)", gb / took))
}

/// A projector, which has neither words nor successors: of the options only type, seed and file count.
fn write_projector(args: &Args, tower: TowerShape) -> anyhow::Result<()> {
    let output = args.output.as_deref().context("where does the file go? give -o FILE")?;
    let (n_bytes, start) = (tower.n_bytes(&args.mix), Instant::now());
    check_room(output, n_bytes)?;
    let n_tensors = tower.write(output, &args.mix, args.seed)?;
    let (took, gb) = (start.elapsed().as_secs_f64(), n_bytes as f64 / 1e9);
    say(format_args!("{}: {n_tensors} tensors, {gb:.2} GB in {took:.1} s ({:.2} GB/s)", output.display(), gb / took))
}

/// # Errors
/// A disk with less room than the tensors take; one that does not tell is believed to have it.
fn check_room(output: &Path, n_bytes: u64) -> anyhow::Result<()> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let free = program::free_bytes(folder).unwrap_or(u64::MAX);
    let gb = |n: u64| n as f64 / 1e9;
    ensure!(
        free > n_bytes,
        "{}: {:.2} GB are needed, {:.2} GB are free: make room, or choose a smaller --type",
        output.display(),
        gb(n_bytes),
        gb(free)
    );
    Ok(())
}

fn list(mix: &Mix) -> anyhow::Result<()> {
    say(format_args!("| shape | width | layers | parameters | size as {mix} |\n|---|---|---|---|---|"))?;
    for shape in table::all() {
        let tensors = tensors::tensors(&shape, mix);
        let n_params: u64 = tensors.iter().map(|t| t.ne.iter().product::<u64>()).sum();
        let n_bytes: u64 = tensors.iter().map(tensors::Tensor::n_bytes).sum();
        let (params, gb) = (n_params as f64 / 1e9, n_bytes as f64 / 1e9);
        say(format_args!("| {} | {} | {} | {params:.2} B | {gb:.2} GB |", shape.name, shape.n_embd, shape.n_layer))?;
    }
    for tower in TOWERS {
        let (params, gb) = (tower.n_params(mix) as f64 / 1e9, tower.n_bytes(mix) as f64 / 1e9);
        let (n_embd, n_layer) = tower.size();
        say(format_args!("| {} | {n_embd} | {n_layer} | {params:.2} B | {gb:.2} GB |", tower.name))?;
    }
    Ok(())
}
