//! Perplexity of a text: windows without overlap, the second half of each counts, so that every token has some context.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use engine::sample::logprobs;
use model::{Model, Pass, PassOutput, Rows};
use serde_json::json;
use text::{Special, TokenId};

use super::setup::{Setup, say};

/// Tokens of one forward pass.
const N_BATCH: usize = 512;

pub(super) fn run(setup: &Setup, file: &Path, n_ctx: usize, json: bool) -> anyhow::Result<()> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let text = String::from_utf8(bytes).with_context(|| format!("{}: is not UTF-8", file.display()))?;
    let model = setup.open()?;
    let ids = model.vocab().encode(&text, Special::Plain);
    let n_windows = ids.len() / n_ctx;
    ensure!(n_windows > 0, "{} tokens do not fill a window of {n_ctx}: give a longer text or a smaller -c", ids.len());
    let mut losses: Vec<f64> = Vec::new();
    // Of a window of n, the tokens from n / 2 on count.
    let of_window = n_ctx - n_ctx / 2;
    windows(setup, &model, &ids, n_ctx, |logits, next| {
        losses.push(-f64::from(logprobs(logits, next, 0).logprob));
        if !json && losses.len().is_multiple_of(of_window) {
            let (ppl, _) = estimate(&losses);
            eprintln!("window {} of {n_windows}: {ppl:.4}", losses.len() / of_window);
        }
        Ok(())
    })?;
    let (ppl, error) = estimate(&losses);
    if json {
        let value = json!({ "perplexity": ppl, "standard_error": error, "n_tokens": losses.len(), "n_ctx": n_ctx });
        say(value)
    } else {
        say(format_args!("perplexity {ppl:.4} +- {error:.4} over {} tokens, windows of {n_ctx}", losses.len()))
    }
}

/// Calls `row` with the logits before each token of the second half of every whole window, and with that token.
pub(super) fn windows(
    setup: &Setup,
    model: &Arc<Model>,
    ids: &[TokenId],
    n_ctx: usize,
    mut row: impl FnMut(&[f32], TokenId) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut runner, mut memory) = setup.runner(model, n_ctx)?;
    let slot = memory.acquire()?.context("a new memory has a free slot")?;
    let mut output = PassOutput::default();
    for window in ids.chunks_exact(n_ctx) {
        memory.reset(&slot)?;
        for (start, tokens) in window.chunks(N_BATCH).enumerate().map(|(i, tokens)| (i * N_BATCH, tokens)) {
            // Row `r` predicts token `r + 1`; the last row of the window predicts nothing that is there.
            let counted: Vec<usize> =
                (0..tokens.len()).filter(|r| start + r + 1 >= n_ctx / 2 && start + r + 1 < n_ctx).collect();
            let step = memory.begin(&[(&slot, tokens.len())], 1)?;
            runner.run(step.view(), &Pass { tokens, rows: Rows::Some(&counted), hidden: false }, &mut output)?;
            step.commit(&[tokens.len()])?;
            for (i, r) in counted.iter().enumerate() {
                row(output.logits(i), window[start + r + 1])?;
            }
        }
    }
    Ok(())
}

/// `exp` of the mean loss, with its standard error to first order.
fn estimate(losses: &[f64]) -> (f64, f64) {
    let n = losses.len().max(1) as f64;
    let mean = losses.iter().sum::<f64>() / n;
    let variance = losses.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let ppl = mean.exp();
    (ppl, ppl * (variance / n).sqrt())
}
