//! `nextn-bench speed`: prompts, generation, forward passes over a few tokens, drafts and several sequences, in one run.
//! Owns the options and the order of the tests; how each is done and shown is in the files beside.

mod headline;
mod measured;
mod passes;
mod picture;
mod sequences;
mod show;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::draft;
use super::machine::{self, Machine};
use super::setup::warn;
pub(super) use measured::{Args, Findings, tokens};

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let picture = args.plot.as_deref().map(plot::Format::of).transpose()?;
    let found = measure(args)?;
    show::show(args, &found)?;
    if let (Some(path), Some(format)) = (&args.plot, picture) {
        ensure!(
            found.tests.iter().any(|t| t.drafted.is_some()),
            "there is nothing to draw: --plot shows drafts, give -d 1,2,3"
        );
        let bytes = picture::draw(&found, format)?;
        std::fs::write(path, bytes).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Runs all tests.
pub(super) fn measure(args: &Args) -> anyhow::Result<Findings> {
    let model = args.setup.open()?;
    let args = &args.with_defaults(model.nextn().is_bound());
    warn(draft::without_effect(&args.draft, args.draft_vocab, &model));
    let weight = args.setup.weight()?;
    let n_threads = args.setup.n_threads();
    let bandwidth =
        (args.is_detailed() && !args.no_bandwidth).then(|| machine::bandwidth(n_threads, machine::BANDWIDTH_BYTES));
    let own = [args.setup.caches()];
    let caches = if args.cache_types.is_empty() { &own[..] } else { &args.cache_types };
    let mut tests = Vec::new();
    for &cache in caches {
        let setup = args.setup.with_caches(cache);
        for &n_ctx in &args.depth_ctx {
            tests.extend(passes::run(args, &setup, &model, &weight, n_ctx)?);
            tests.extend(sequences::run(args, &setup, &model, n_ctx)?);
        }
    }
    let d = model.describe();
    Ok(Findings {
        model: serde_json::json!({
            "name": d.name,
            "architecture": d.architecture,
            "quantization": d.quantization,
            "n_bytes": d.n_bytes,
            "n_params": d.n_params,
            "bytes_per_token": weight.pass(1),
        }),
        line: d.to_string(),
        n_threads,
        repeat: args.repeat,
        machine: Machine::this(),
        bandwidth,
        tests,
    })
}

/// What was found, as one JSON object.
pub(super) fn json(found: &Findings) -> Value {
    show::json(found)
}

/// What was found, as a table.
pub(super) fn table(found: &Findings) -> String {
    show::table(found)
}
