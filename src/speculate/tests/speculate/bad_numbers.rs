//! A sequence whose numbers are not finite leaves nothing in the MTP layer's cells: the slot's next user gets the drafts
//! that a fresh engine makes.

use std::sync::{Arc, Mutex};

use engine::{DraftRequest, EngineConfig, EngineHandle, Proposer};
use model::{LoadOptions, Model};
use speculate::{AsyncProposer, Depth, DraftVocabSize};
use test_support::{Watched, generate_tokens, head, spawn};
use text::TokenId;

use crate::tiny::Spec;

/// The token whose embedding is NaN.
const BAD: usize = 70;

type Log = Arc<Mutex<Vec<Vec<TokenId>>>>;

/// A proposer whose drafts are written down.
fn logged(proposer: impl Proposer + 'static, log: &Log) -> Box<dyn Proposer> {
    let log = Arc::clone(log);
    let write = move |_: &[DraftRequest], drafts: &[Vec<TokenId>], _| {
        log.lock().expect("no panic holds it").extend_from_slice(drafts);
    };
    Box::new(Watched::new(proposer, || {}, write))
}

/// Where a model goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The embedding of `BAD` is NaN.
    Embedding,
    /// The last layer makes infinity of `BAD`, which no other row of the trunk sees: only the head does.
    LastLayer,
}

fn model(arch: &'static str, fault: Fault) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let spec = Spec { nextn: true, ..Spec::of(arch) };
    let mut document = spec.document();
    let mut set = |name: &str, first: usize, step: usize, n: usize, value: f32| {
        let Some(tensor) = document.tensors.iter_mut().find(|t| t.name == name) else { return };
        for i in 0..n {
            tensor.data[4 * (first + i * step)..][..4].copy_from_slice(&value.to_le_bytes());
        }
    };
    let d = spec.n_embd;
    match fault {
        Fault::Embedding => set("token_embd.weight", BAD * d, 1, d, f32::NAN),
        Fault::LastLayer => {
            // Element 0 of the stream is that of the embedding up to the end, and only this token has something there.
            set("token_embd.weight", 0, d, spec.n_vocab, 0.0);
            set("token_embd.weight", BAD * d, 1, 1, 30.0);
            let d_value = spec.n_v_heads * spec.d_state;
            for il in 0..spec.n_layer {
                set(&format!("blk.{il}.attn_output.weight"), 0, 1, spec.d_head * spec.n_head, 0.0);
                set(&format!("blk.{il}.ssm_out.weight"), 0, 1, d_value, 0.0);
                set(&format!("blk.{il}.ffn_down.weight"), 0, 1, spec.n_ff, 0.0);
            }
            set(&format!("blk.{}.ffn_up.weight", spec.n_layer - 1), 0, d, spec.n_ff, 3e38);
        }
    }
    Model::open(&document.write(&dir.path().join("tiny.gguf")), &LoadOptions::default()).expect("a sound file")
}

fn ask(engine: &EngineHandle, prompt: &[u32]) -> Result<Vec<TokenId>, String> {
    generate_tokens(engine, &prompt.iter().map(|&id| TokenId(id)).collect::<Vec<_>>(), 16)
}

#[test]
fn drafts_after_a_sequence_that_ended_badly_are_those_of_a_fresh_engine() {
    let good: Vec<u32> = (0..20).map(|i| 90 + i * 7).collect();
    // Long, so that cells of the head are written in its prompt.
    let mut bad: Vec<u32> = (0..320).map(|i| 80 + i * 13 % 150).collect();
    bad[200] = BAD as u32;
    for (arch, fault) in [("qwen35", Fault::Embedding), ("qwen35moe", Fault::Embedding), ("qwen35", Fault::LastLayer)] {
        let model = model(arch, fault);
        let config = EngineConfig { n_ctx: Some(512), threads: Some(1), n_batch: 64, ..EngineConfig::default() };
        for beside in [false, true] {
            let what = format!("{arch}, {fault:?}, on a thread of its own: {beside}");
            let head = head(&model, &config, Depth::Fixed(3), DraftVocabSize::Full);
            let log = Log::default();
            let proposer = match beside {
                false => logged(head, &log),
                true => logged(AsyncProposer::new(head, &model, 1, true).expect("a thread"), &log),
            };
            let engine = spawn(&model, config.clone(), Some(proposer));
            let take = || std::mem::take(&mut *log.lock().expect("no panic holds it"));
            let expected = (ask(&engine, &good).expect("good numbers"), take());
            assert!(expected.1.iter().any(|draft| draft.len() == 3), "{what}: {:?}", expected.1);
            let end = ask(&engine, &bad);
            match fault {
                Fault::Embedding => assert!(end.is_err_and(|why| why.contains("not finite")), "{what}"),
                Fault::LastLayer => assert!(end.is_ok(), "{what}: the answer does not depend on that row"),
            }
            take();
            let again = (ask(&engine, &good).expect("good numbers"), take());
            assert_eq!(again, expected, "{what}");
        }
    }
}
