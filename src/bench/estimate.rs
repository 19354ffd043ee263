//! `nextn-bench estimate`: what this machine could do at best with a file, or with a shape that has no file yet.
//! Arithmetic on bytes: the time of a forward pass is what it reads over what memory gives. Owns the formulas.

use std::path::Path;

use anyhow::{Context, bail};
use memory::CacheType;
use serde_json::{Value, json};
use speculate::DraftVocabSize;

use super::machine::{self, GIB, Machine};
use super::setup::say;
use super::synth::shapes::Shape;
use super::synth::table;
use super::synth::types::Mix;
use super::weigh::Weight;

/// Options of `nextn-bench estimate`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// GGUF file, or a shape from `synth --shape list`
    #[arg(value_name = "FILE|SHAPE")]
    what: String,
    /// Weight types of a shape
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m")]
    mix: Mix,
    /// Positions of one sequence
    #[arg(short, long, default_value_t = 8192)]
    ctx_size: u64,
    /// Number of sequences decoded in parallel
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    parallel: u64,
    /// Acceptance rates to assume, 0 to 1
    #[arg(long, value_delimiter = ',', default_value = "0.6,0.7,0.8,0.9", value_parser = share)]
    accept: Vec<f64>,
    /// Draft vocabulary: auto, full, or the first N token ids plus the tokens in context
    #[arg(long, default_value_t)]
    draft_vocab: DraftVocabSize,
    /// Number of CPU threads [default: one per physical core]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: Option<u16>,
    /// Memory bandwidth in GB/s [default: measured]
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    bandwidth: Option<f64>,
    /// Memory to fit into, in GiB [default: what is free]
    #[arg(long, value_name = "GIB", value_parser = positive)]
    memory: Option<f64>,
    /// Type of the cached keys: f32, f16, q8_0, q5_1, q5_0, q4_1, iq4_nl, q4_0, turbo4, turbo3
    #[arg(long, default_value_t)]
    cache_type_k: CacheType,
    /// Type of the cached values: f32, f16, q8_0, q5_1, q5_0, q4_1, iq4_nl, q4_0, turbo4, turbo3
    #[arg(long, default_value_t)]
    cache_type_v: CacheType,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn positive(s: &str) -> Result<f64, String> {
    s.parse().ok().filter(|v: &f64| v.is_finite() && *v > 0.0).ok_or_else(|| format!("`{s}` is not above 0"))
}

fn share(s: &str) -> Result<f64, String> {
    s.parse().ok().filter(|v| (0.0..1.0).contains(v)).ok_or_else(|| format!("`{s}` is not from 0 to below 1"))
}

/// Drafts deeper than this are not made.
const MAX_DEPTH: u64 = 6;

/// Contexts that are shown beside the one that was asked for, as parts of it.
const PARTS: [f64; 3] = [0.0, 0.5, 1.0];

/// What a machine gives and a model takes.
struct Estimate {
    weight: Weight,
    /// Bytes a second.
    bandwidth: f64,
    type_k: CacheType,
    type_v: CacheType,
    /// Rows of the output matrix that a draft reads.
    n_words: u64,
}

impl Estimate {
    /// Seconds of a forward pass over `n_rows` tokens of one sequence after `n_ctx` positions. Recurrent state is read once and
    /// written for every token that may be the last.
    fn pass(&self, n_rows: u64, n_ctx: f64) -> f64 {
        let w = &self.weight;
        let cells = n_ctx * w.position(self.type_k, self.type_v);
        (w.pass(n_rows) + cells + (1 + n_rows) as f64 * w.state as f64) / self.bandwidth
    }

    /// Seconds of a draft of `depth` tokens: MTP inputs for the accepted tokens, then a chain.
    fn draft(&self, depth: u64, n_ctx: f64) -> f64 {
        let w = &self.weight;
        let cells = n_ctx * w.head_position(self.type_k, self.type_v);
        let first = w.draft_step(self.n_words) + cells;
        (first + (depth.saturating_sub(1)) as f64 * (w.draft_step(self.n_words) + cells)) / self.bandwidth
    }

    /// Tokens a second with drafts of `depth`, of which each is accepted with chance `a`.
    fn rate(&self, depth: u64, a: f64, n_ctx: f64) -> f64 {
        if depth == 0 {
            return 1.0 / self.pass(1, n_ctx);
        }
        let tokens: f64 = (0..=depth as i32).map(|i| a.powi(i)).sum();
        tokens / (self.pass(depth + 1, n_ctx) + self.draft(depth, n_ctx))
    }

    /// The depth with the most tokens a second.
    fn best(&self, a: f64, n_ctx: f64) -> u64 {
        let deepest = if self.weight.has_draft() { MAX_DEPTH } else { 0 };
        let by_rate = |x: &u64, y: &u64| self.rate(*x, a, n_ctx).total_cmp(&self.rate(*y, a, n_ctx));
        (0..=deepest).max_by(by_rate).unwrap_or(0)
    }
}

/// Bytes that have to be there at the same time.
struct Needed {
    weights: f64,
    cells: f64,
    /// Recurrent state with the snapshots of the deepest draft.
    state: f64,
    /// Activations of the largest forward pass, about.
    compute: f64,
}

impl Needed {
    fn of(weight: &Weight, args: &Args) -> Self {
        let sequences = args.parallel as f64;
        let planes = if weight.has_draft() { MAX_DEPTH + 1 } else { 1 };
        let head = if weight.has_draft() { weight.head_position(args.cache_type_k, args.cache_type_v) } else { 0.0 };
        let position = weight.position(args.cache_type_k, args.cache_type_v) + head;
        // Tokens of a chunk with a handful of the widest activations, and logits of a few tokens.
        let rows = 512.0 * 4.0 * (4.0 * weight.n_widest as f64 + 4.0 * weight.n_embd as f64);
        Self {
            weights: weight.n_bytes as f64,
            cells: sequences * args.ctx_size as f64 * position,
            state: sequences * (planes * weight.state) as f64,
            compute: rows + 8.0 * 4.0 * weight.n_vocab as f64,
        }
    }

    fn total(&self) -> f64 {
        self.weights + self.cells + self.state + self.compute
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let weight = weight(args)?;
    let machine = Machine::this();
    let n_threads = args.threads.map_or(machine.n_cores, usize::from);
    let bandwidth = match args.bandwidth {
        Some(gb) => gb * 1e9,
        None => machine::bandwidth(n_threads, machine::BANDWIDTH_BYTES),
    };
    let n_words = match args.draft_vocab {
        DraftVocabSize::Full => weight.n_vocab,
        DraftVocabSize::First(n) => n as u64,
        // As the draft vocabulary chooses by itself (docs/NEXTN.md).
        DraftVocabSize::Auto => {
            let rows = if weight.n_embd <= 2048 { 32_768 } else { 65_536 };
            if weight.n_vocab < 2 * rows { weight.n_vocab } else { rows }
        }
    };
    let needed = Needed::of(&weight, args);
    let free = args.memory.map_or(machine.available_bytes.map(|n| n as f64), |gib| Some(gib * GIB));
    let e = Estimate { weight, bandwidth, type_k: args.cache_type_k, type_v: args.cache_type_v, n_words };
    if args.json {
        return say(json(args, &e, &needed, free, n_threads));
    }
    show(args, &e, &needed, free, &machine, n_threads)
}

fn weight(args: &Args) -> anyhow::Result<Weight> {
    if let Some(shape) = Shape::find(&args.what) {
        return Ok(Weight::of_shape(&shape, &args.mix));
    }
    let path = Path::new(&args.what);
    if !path.exists() {
        let names = table::all().iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
        bail!("{}: no such file, and no shape of that name; shapes: {names}", args.what);
    }
    Weight::of_file(path).context("estimate")
}

fn show(
    args: &Args,
    e: &Estimate,
    needed: &Needed,
    free: Option<f64>,
    machine: &Machine,
    n_threads: usize,
) -> anyhow::Result<()> {
    let w = &e.weight;
    let gb = |bytes: f64| format!("{:.2} GB", bytes / 1e9);
    say(format_args!("{}: {:.2} B parameters, {}", w.name, w.n_params as f64 / 1e9, gb(w.n_bytes as f64)))?;
    let from = if args.bandwidth.is_some() { "given" } else { "measured" };
    let rate = e.bandwidth / 1e9;
    say(format_args!("{}\nmemory reads at {rate:.1} GB/s with {n_threads} threads ({from})", machine.line()))?;

    say("\nA token reads:")?;
    say(format_args!("  weights {}, of that the vocabulary's matrix {}", gb(w.pass(1)), gb(w.head as f64)))?;
    let at = |part: f64| part * args.ctx_size as f64;
    let full = at(1.0) * w.position(e.type_k, e.type_v);
    say(format_args!("  cached positions {} at {} positions", gb(full), args.ctx_size))?;
    say(format_args!("  recurrent state {}, read and written", gb(2.0 * w.state as f64)))?;
    if w.has_draft() {
        let words = gb(w.draft_step(e.n_words));
        say(format_args!("  a drafted token reads {words} over {} of {} words", e.n_words.min(w.n_vocab), w.n_vocab))?;
    }

    say("\nCeiling in tokens a second, if nothing but memory took time:\n")?;
    say("| context | plain | drafts right in | best depth | tokens/s | to plain |\n|---|---|---|---|---|---|")?;
    for part in PARTS {
        let n_ctx = at(part);
        let plain = e.rate(0, 0.0, n_ctx);
        if !w.has_draft() {
            say(format_args!("| {n_ctx} | {plain:.2} | no MTP layer | 0 | {plain:.2} | 1.00 |"))?;
            continue;
        }
        for &a in &args.accept {
            let depth = e.best(a, n_ctx);
            let rate = e.rate(depth, a, n_ctx);
            let percent = 100.0 * a;
            let ratio = rate / plain;
            say(format_args!("| {n_ctx} | {plain:.2} | {percent:.0} % | {depth} | {rate:.2} | {ratio:.2} |"))?;
        }
    }

    let gib = |bytes: f64| format!("{:.2} GiB", bytes / GIB);
    let (n_seq, n_ctx) = (args.parallel, args.ctx_size);
    say(format_args!("\nMemory for {n_seq} sequence(s) of {n_ctx} positions:"))?;
    say(format_args!(
        "  weights {} (pages of the file, shared and dropped when others need them)",
        gib(needed.weights)
    ))?;
    say(format_args!("  cells {}, recurrent state with snapshots {}", gib(needed.cells), gib(needed.state)))?;
    say(format_args!("  activations about {}", gib(needed.compute)))?;
    let total = needed.total();
    match free {
        Some(free) if total <= free => say(format_args!("  together {}: fits into {}", gib(total), gib(free))),
        Some(free) if total - needed.weights <= free => say(format_args!(
            "  together {}: DOES NOT FIT into {}. It would run from disk, at the disk's speed",
            gib(total),
            gib(free)
        )),
        Some(free) => say(format_args!("  together {}: DOES NOT FIT into {}", gib(total), gib(free))),
        None => say(format_args!("  together {}; free memory is not known here, give --memory", gib(total))),
    }
}

fn json(args: &Args, e: &Estimate, needed: &Needed, free: Option<f64>, n_threads: usize) -> Value {
    let w = &e.weight;
    let ceilings = PARTS.iter().flat_map(|part| {
        let n_ctx = part * args.ctx_size as f64;
        args.accept.iter().map(move |&a| {
            let depth = e.best(a, n_ctx);
            json!({
                "context": n_ctx,
                "plain": e.rate(0, a, n_ctx),
                "accept": a,
                "best_depth": depth,
                "tokens_per_second": e.rate(depth, a, n_ctx),
                "by_depth": (0..=MAX_DEPTH).map(|d| e.rate(d, a, n_ctx)).collect::<Vec<_>>(),
            })
        })
    });
    json!({
        "name": w.name,
        "n_params": w.n_params,
        "n_bytes": w.n_bytes,
        "bytes_per_token": w.pass(1),
        "bytes_per_draft": w.draft_step(e.n_words),
        "head_bytes": w.head,
        "position_bytes": w.position(e.type_k, e.type_v),
        "state_bytes": w.state,
        "nextn": w.has_draft(),
        "threads": n_threads,
        "bandwidth": e.bandwidth,
        "ceilings": ceilings.collect::<Vec<_>>(),
        "memory": {
            "weights": needed.weights,
            "cells": needed.cells,
            "state": needed.state,
            "compute": needed.compute,
            "total": needed.total(),
            "free": free,
            "fits": free.map(|free| needed.total() <= free),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(shape: &str, n_words: u64) -> Estimate {
        let shape = Shape::find(shape).expect("a known shape");
        let weight = Weight::of_shape(&shape, &"q4_k_m".parse().expect("a known type"));
        Estimate { weight, bandwidth: 30e9, type_k: CacheType::F16, type_v: CacheType::F16, n_words }
    }

    #[test]
    fn the_best_depth_grows_with_acceptance_and_falls_to_none() {
        let e = estimate("27b", 65_536);
        let best: Vec<u64> = [0.0, 0.6, 0.9].iter().map(|&a| e.best(a, 0.0)).collect();
        assert_eq!(best[0], 0);
        assert!(best[1] >= 1 && best[2] >= best[1], "{best:?}");
        // By bytes alone, a large dense model gains most of what its drafts give.
        let gain = e.rate(3, 0.8, 0.0) / e.rate(0, 0.0, 0.0);
        assert!((2.2..2.8).contains(&gain), "{gain}");
    }

    #[test]
    fn cached_positions_cost_time() {
        let e = estimate("27b", 65_536);
        assert!(e.rate(0, 0.0, 32_768.0) < 0.95 * e.rate(0, 0.0, 0.0));
    }
}
