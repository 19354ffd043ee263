//! Logits and hidden rows of every position.

use std::path::PathBuf;

use anyhow::Context;
use model::{Pass, PassOutput, Rows};
use serde_json::json;

use super::npy;
use super::setup::{Input, Setup};

/// Rows of one pass.
const N_BATCH: usize = 512;

pub(super) fn run(setup: &Setup, input: &Input, full: Option<PathBuf>, hidden: Option<PathBuf>) -> anyhow::Result<()> {
    let ids = input.ids()?;
    let model = setup.open()?;
    let (mut runner, mut memory) = setup.runner(&model, ids.len())?;
    let slot = memory.acquire()?.context("a new memory has a free slot")?;
    let mut output = PassOutput::default();
    let (mut all_logits, mut all_hidden) = (Vec::new(), Vec::new());
    for tokens in ids.chunks(N_BATCH) {
        let step = memory.begin(&[(&slot, tokens.len())], 1)?;
        runner.run(step.view(), &Pass { tokens, rows: Rows::All, hidden: true }, &mut output)?;
        step.commit(&[tokens.len()])?;
        all_logits.extend_from_slice(&output.logits);
        all_hidden.extend_from_slice(&output.hidden);
    }
    let sizes = model.hparams();
    let mut printed = serde_json::Map::new();
    let parts = [("logits", all_logits, sizes.n_vocab, full), ("hidden", all_hidden, sizes.n_embd, hidden)];
    for (name, values, n, file) in parts {
        match file {
            Some(path) => {
                npy::write_f32(&path, &values, ids.len()).with_context(|| path.display().to_string())?;
                printed.insert(name.into(), json!({ "file": path, "shape": [ids.len(), n] }));
            }
            None => {
                printed.insert(name.into(), values.chunks(n).collect());
            }
        }
    }
    println!("{}", serde_json::Value::Object(printed));
    Ok(())
}
