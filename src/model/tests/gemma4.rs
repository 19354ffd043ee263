//! A tiny Gemma 4 and its assistant give the logits of an independent reference (`scripts/gemma4_golden.py`), prompts behind
//! the window included.
//! `NEXTN_WRITE_TINY=FOLDER cargo test -p nextn-model --test all gemma4` writes the files that the script reads.

use std::path::Path;
use std::sync::Arc;

use crate::support::{rig, tiny, unpacked};
use memory::MemoryConfig;
use model::{Draft, DraftOutput, LoadOptions, Model, Runner};
use rig::{Rig, exact};
use serde::Deserialize;
use text::TokenId;
use tiny::Spec;

/// What the reference computes after a prompt.
#[derive(Deserialize)]
struct Sequence {
    ids: Vec<u32>,
    /// Of the last token.
    logits: Vec<f32>,
    hidden: Vec<f32>,
    /// After the likeliest token.
    drafts: Vec<DraftToken>,
}

#[derive(Deserialize)]
struct DraftToken {
    token: u32,
    logits: Vec<f32>,
}

/// Orders of sums; measured at most: see the test's output.
const CLOSE: f32 = 1e-3;

fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|x| x.is_finite()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn logits_and_drafts_are_those_of_the_reference() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let out = std::env::var_os("NEXTN_WRITE_TINY");
    let folder = out.as_deref().map_or(dir.path(), Path::new);
    let path = Spec::of("gemma4").document().write(&folder.join("gemma4.gguf"));
    let head = Spec::assistant().document().write(&folder.join("gemma4-assistant.gguf"));
    if out.is_some() {
        return;
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gemma4/gemma4.json.z");
    let golden = unpacked(&golden);
    let golden: Vec<Sequence> = serde_json::from_slice(&golden).expect("JSON of the script");
    assert!(golden.len() >= 3);
    let options = LoadOptions { head: Some(head), ..LoadOptions::default() };
    let model = Model::open(&path, &options).expect("sound files");
    for v_transposed in [false, true] {
        for sequence in &golden {
            let worst = compare(&model, sequence, MemoryConfig { v_transposed, ..exact(1, 256) });
            println!("{} tokens, v_transposed {v_transposed}: {worst}", sequence.ids.len());
            assert!(worst <= CLOSE, "{} tokens: a number differs by {worst}", sequence.ids.len());
        }
    }
}

/// The largest difference in logits, hidden state and logits of drafts.
fn compare(model: &Arc<Model>, sequence: &Sequence, config: MemoryConfig) -> f32 {
    let sizes = model.hparams();
    let mut rig = Rig::new(model, config);
    let slot = rig.slot();
    let logits = rig.step(&[(&slot, &sequence.ids)]);
    let logits = &logits[logits.len() - sizes.n_vocab..];
    let hidden = rig.hidden()[rig.hidden().len() - sizes.n_embd..].to_vec();
    let next = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("logits");
    let (tokens, n_entries, depth) = ([TokenId(next as u32)], [1], sequence.drafts.len());
    let (tokens, n_entries) = (&tokens[..], &n_entries[..]);
    let draft = Draft { tokens, hidden: &hidden, n_entries, depth, verbose: true, ..Draft::default() };
    let mut output = DraftOutput::default();
    let mut runner = Runner::new(Arc::clone(model), 1).expect("the CPU is there");
    runner.draft_at_end(rig.memory.ends(&[&slot]).expect("a sequence").view(), &draft, &mut output).expect("drafts");
    let found: Vec<u32> = output.tokens[0].iter().map(|id| id.0).collect();
    let expected: Vec<u32> = sequence.drafts.iter().map(|draft| draft.token).collect();
    assert_eq!(found, expected, "draft tokens after {} tokens", sequence.ids.len());
    let drafts = output.logits.iter().zip(&sequence.drafts).map(|(found, draft)| difference(found, &draft.logits));
    drafts.fold(difference(logits, &sequence.logits).max(difference(&hidden, &sequence.hidden)), f32::max)
}
