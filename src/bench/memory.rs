//! What a model takes of its GPUs' memory, part by part: what the program counts beside what the devices have less.

use anyhow::{Context, ensure};
use ggml::Device;
use memory::MemoryConfig;
use model::{Draft, DraftOutput, Pass, PassOutput, Rows};
use serde_json::json;
use text::TokenId;

use super::setup::{Setup, say};

/// Tokens of the prompt that makes room for compute buffers.
const N_BATCH: usize = 512;
/// Tokens drafted, and snapshots kept for them.
const DEPTH: usize = 3;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    setup: Setup,
    /// Context size in tokens
    #[arg(short, long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1024..))]
    ctx_size: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// One part: its name, bytes that the program counts, bytes that all GPUs together have less since the part before.
struct Part(&'static str, usize, i64);

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let gpus = args.setup.gpus()?;
    ensure!(!gpus.is_empty(), "no GPU is chosen: --device names one, --backend-dir and --rpc add them");
    let free = || gpus.iter().map(|d| d.memory().0 as i64).sum::<i64>();
    let before = free();
    let mut last = before;
    let mut parts = Vec::new();
    let mut part = |name, counted| {
        let now = free();
        parts.push(Part(name, counted, last - now));
        last = now;
    };

    let model = args.setup.open()?;
    ensure!(
        !model.has_state_on_host(),
        "some layers stay in the host's memory, where nothing is counted: choose a smaller model, or keep experts there (--cpu-moe)"
    );
    let on_gpus = |bytes: &dyn Fn(Device) -> usize| gpus.iter().map(|&d| bytes(d)).sum::<usize>();
    part("weights", on_gpus(&|d| model.weight_bytes_on(d)));

    let n_ctx = args.ctx_size as usize;
    let (mut runner, mut state) = args.setup.runner_with(&model, n_ctx, DEPTH + 1)?;
    let at_start = state.taken_bytes();
    part("keys, values, planes; streams", at_start);
    let config = MemoryConfig { n_snapshots: 1, ..args.setup.engine(n_ctx).memory(&model) };
    let mut head = model.head_memory(config)?;
    part("the MTP layer's keys and values", head.as_ref().map_or(0, |head| head.taken_bytes()));

    let tokens = vec![TokenId(0); N_BATCH];
    let slot = state.acquire()?.context("a new memory has a free slot")?;
    drop(state.begin(&[(&slot, N_BATCH)], DEPTH)?);
    state.reset(&slot)?;
    part("the same of a prompt, as it is written", state.taken_bytes() - at_start);
    let mut output = PassOutput::default();
    for n in [N_BATCH, DEPTH + 1, 1] {
        let step = state.begin(&[(&slot, n)], DEPTH.min(n))?;
        let pass = Pass { tokens: &tokens[..n], rows: Rows::Some(&[n - 1]), hidden: true };
        runner.run(step.view(), &pass, &mut output)?;
        step.commit(&[n])?;
    }
    part("buffers of forward passes", on_gpus(&|d| runner.buffer_bytes_on(d)));
    if let Some(head) = &mut head {
        let counted = on_gpus(&|d| runner.buffer_bytes_on(d));
        let slot = head.acquire()?.context("a new memory has a free slot")?;
        let n_layers = model.n_mtp_layers();
        let depth = if n_layers > 1 { DEPTH.min(n_layers) } else { DEPTH };
        let step = head.begin(&[(&slot, DEPTH)], 1)?;
        let tokens = &tokens[..1];
        let draft = Draft { tokens, hidden: output.mtp_hidden(), n_entries: &[1], depth, ..Draft::default() };
        runner.draft(step.view(), &draft, &mut DraftOutput::default())?;
        step.commit(&[1])?;
        part("more buffers for drafts", on_gpus(&|d| runner.buffer_bytes_on(d)).saturating_sub(counted));
    }

    let all = Part("together", parts.iter().map(|p| p.1).sum(), before - last);
    let value = json!({
        "devices": gpus.iter().map(|d| d.name()).collect::<Vec<_>>(),
        "n_ctx": n_ctx,
        "free_before": before,
        "free_after": last,
        "parts": parts.iter().chain([&all]).map(|p| json!({ "part": p.0, "counted": p.1, "fell_by": p.2 })).collect::<Vec<_>>(),
    });
    if args.json {
        return say(value);
    }
    say("| part | counted, MiB | free memory fell by, MiB |\n|---|---|---|")?;
    for Part(name, counted, fell) in parts.iter().chain([&all]) {
        say(format!("| {name} | {:.1} | {:.1} |", *counted as f64 / MIB, *fell as f64 / MIB))?;
    }
    Ok(())
}

const MIB: f64 = (1 << 20) as f64;
