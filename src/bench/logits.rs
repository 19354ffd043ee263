//! Logits and hidden states of every position.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use memory::StepView;
use model::{Draft, DraftOutput, Pass, PassOutput, Pictures, PlacedEntries, PlacedRows, Rows, Runner};
use serde_json::{Value, json};
use text::TokenId;

use super::conversation::Sees;
use super::npy;
use super::setup::{Input, Setup, argmax, say};

pub(super) fn run(
    setup: &Setup,
    (input, sees): (&Input, &Sees),
    depth: usize,
    n_batch: usize,
    full: Option<PathBuf>,
    hidden: Option<PathBuf>,
) -> anyhow::Result<()> {
    let model = setup.open()?;
    let prompt = input.prompt(sees, setup, &model)?;
    let ids = &prompt.tokens;
    let (mut runner, mut memory) = setup.runner(&model, ids.len())?;
    let slot = memory.acquire()?.context("a new memory has a free slot")?;
    let mut output = PassOutput::default();
    let (mut all_logits, mut all_hidden, mut all_mtp) = (Vec::new(), Vec::new(), Vec::new());
    let mut first = 0;
    while first < ids.len() {
        let end = (first + n_batch).min(ids.len());
        // A picture whose tokens see one another is one chunk's, whatever that takes.
        let end = match prompt.pictures.at(end).filter(|span| prompt.pictures.are_seen_both_ways() && span.start < end)
        {
            Some(span) => span.end,
            None => end,
        };
        let tokens = &ids[first..end];
        let step = memory.begin(&[(&slot, tokens.len())], 1)?;
        let placed = [PlacedRows { rows: 0..tokens.len(), first, pictures: &prompt.pictures }];
        let pass = Pass { tokens, rows: Rows::All, hidden: true };
        runner.run_placed(step.view(), &pass, &placed, &mut output)?;
        first = end;
        step.commit(&[tokens.len()])?;
        all_logits.extend_from_slice(&output.logits);
        all_hidden.extend_from_slice(&output.hidden);
        all_mtp.extend_from_slice(output.mtp_hidden());
    }
    let sizes = model.hparams();
    let mut printed = serde_json::Map::new();
    if !prompt.pictures.is_empty() {
        printed.insert("positions".into(), json!(prompt.positions()));
    }
    printed.insert("ids".into(), prompt.shown.iter().map(|id| id.0).collect());
    if depth > 0 {
        let next = argmax(&all_logits[all_logits.len() - sizes.n_vocab..]);
        let entries: Vec<TokenId> = ids[1..].iter().copied().chain([next]).collect();
        let drafts = if model.head_reads_target() {
            let hidden = &all_hidden[all_hidden.len() - sizes.n_embd..];
            drafts_at_end(&mut runner, memory.ends(&[&slot])?.view(), next, hidden, depth)?
        } else {
            drafts(setup, &mut runner, (&entries, &prompt.pictures), &all_mtp, (depth, n_batch))?
        };
        printed.insert("drafts".into(), drafts);
    }
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
    say(Value::Object(printed))
}

/// The MTP layers' drafts after the inputs of a whole prompt: token and logits of each draft.
fn drafts(
    setup: &Setup,
    runner: &mut Runner,
    (entries, pictures): (&[TokenId], &Pictures),
    hidden: &[f32],
    (depth, n_batch): (usize, usize),
) -> anyhow::Result<Value> {
    let n_embd = runner.model().hparams().n_embd;
    let config = setup.engine(entries.len() + depth).memory(runner.model());
    let mut memory = runner.model().head_memory(config)?.context("the model has no NextN layer")?;
    let slot = memory.acquire()?.context("a new memory has a free slot")?;
    let mut output = DraftOutput::default();
    let n_layers = runner.model().n_mtp_layers();
    ensure!(n_layers == 1 || depth <= n_layers, "{depth} drafts of a head of {n_layers} layers, which make one each");
    let (mut first, n_batch) = (0, n_batch.max(n_layers));
    while first < entries.len() {
        let rest = &entries[first..];
        let n = rest.len().min(n_batch);
        let (tokens, is_last) = (&rest[..n], n == rest.len());
        let hidden = &hidden[first * n_embd..][..n * n_embd];
        let depth = if is_last { depth } else { 0 };
        let n_chain = if n_layers == 1 { depth.saturating_sub(1) } else { 0 };
        let step = memory.begin(&[(&slot, n + n_chain)], 1)?;
        let n_entries = [n];
        let draft = Draft { tokens, hidden, n_entries: &n_entries, depth, verbose: true, ..Draft::default() };
        let placed = [Some(PlacedEntries { first, pictures })];
        runner.draft_placed(step.view(), &draft, &placed, &mut output)?;
        // The last ones of a chunk know no later tokens yet: the next chunk begins with them.
        let n_final = if is_last { n } else { n - (n_layers - 1) };
        step.commit(&[n_final])?;
        first += n_final;
    }
    Ok(listed(&output))
}

/// The drafts of a head that reads the model's cells, after the last token of the one sequence of `end`.
fn drafts_at_end(
    runner: &mut Runner,
    end: StepView<'_>,
    next: TokenId,
    hidden: &[f32],
    depth: usize,
) -> anyhow::Result<Value> {
    let mut output = DraftOutput::default();
    let (tokens, n_entries) = ([next], [1]);
    let draft = Draft { tokens: &tokens, hidden, n_entries: &n_entries, depth, verbose: true, ..Draft::default() };
    runner.draft_at_end(end, &draft, &mut output)?;
    Ok(listed(&output))
}

fn listed(output: &DraftOutput) -> Value {
    let guess = |(token, logits): (&TokenId, &Vec<f32>)| json!({ "token": token.0, "logits": logits });
    output.tokens[0].iter().zip(&output.logits).map(guess).collect()
}
