//! Drafts beside LoRA adapters: whatever each sequence is computed with, its tokens are those of plain decoding with it.

use std::path::Path;
use std::sync::Arc;

use engine::{EngineConfig, EngineHandle, Proposer, RequestOptions};
use gguf::Header;
use model::{AdapterSet, LoadOptions, Model};
use speculate::{AsyncProposer, Depth, DraftVocabSize};
use tempfile::TempDir;
use test_support::*;
use text::TokenId;

use crate::lora::adapter_for;

const SETS: [&[(usize, f32)]; 4] = [&[], &[(0, 0.1)], &[(1, 0.1)], &[(0, 0.05), (1, -0.1)]];

/// A trained model with adapters on all of its matrices, those of the MTP layer included.
fn model(dir: &TempDir, name: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
    let bytes = std::fs::read(&path).expect("a model of the repository");
    let header = Header::parse(&bytes).expect("a sound file");
    let arch = header.metadata().require_str("general.architecture").expect("it has one");
    let write = |seed: u64| {
        let tensors = header.tensors().iter().map(|t| (t.name, t.dims()));
        adapter_for(arch, tensors, 8, seed, |_| true).write(&dir.path().join(format!("{seed}.gguf")))
    };
    let options = LoadOptions { adapters: vec![write(1), write(2)], ..LoadOptions::default() };
    Model::open(&path, &options).expect("a model of the repository")
}

fn requests(model: &Model) -> Vec<(Vec<TokenId>, RequestOptions)> {
    let prompt = question(model, "What is 20 + 15?");
    let options = |set: &&[(usize, f32)]| RequestOptions {
        adapters: AdapterSet::new(set.iter().copied(), 2).expect("finite"),
        ..greedy_exactly(20)
    };
    SETS.iter().map(|set| (prompt.clone(), options(set))).collect()
}

fn engines(model: &Arc<Model>, config: &EngineConfig) -> Vec<(&'static str, EngineHandle)> {
    let head = |vocab| head(model, config, Depth::Fixed(3), vocab);
    let async_proposer = |ahead| {
        let proposer = AsyncProposer::new(head(DraftVocabSize::Full), model, 1, ahead).expect("a thread");
        Some(Box::new(proposer) as Box<dyn Proposer>)
    };
    let fused = |vocab| Some(Box::new(head(vocab)) as Box<dyn Proposer>);
    vec![
        ("fused", spawn(model, config.clone(), fused(DraftVocabSize::Full))),
        ("part of the vocabulary", spawn(model, config.clone(), fused(DraftVocabSize::First(64)))),
        ("async", spawn(model, config.clone(), async_proposer(false))),
        ("ahead", spawn(model, config.clone(), async_proposer(true))),
    ]
}

#[test]
fn tokens_with_adapters_are_the_same_with_drafts_alone_and_side_by_side() {
    for name in ["pocket-q4_k_m.gguf", "pocket-moe-q8_0.gguf"] {
        let dir = TempDir::new().expect("a folder");
        let model = model(&dir, name);
        let config = config(256, SETS.len());
        let plain = spawn(&model, config.clone(), None);
        let expected: Vec<_> = requests(&model).into_iter().map(|(p, o)| generate(&plain, &p, o).tokens).collect();
        let different: std::collections::HashSet<_> = expected.iter().collect();
        assert_eq!(different.len(), SETS.len(), "{name}: the adapters change too little to tell");
        for (mode, engine) in engines(&model, &config) {
            let (mut drafted, mut accepted) = (0, 0);
            let alone = requests(&model).into_iter().map(|(p, o)| generate(&engine, &p, o));
            for replies in [alone.collect(), generate_all(&engine, requests(&model))] {
                for (i, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
                    assert_eq!(&reply.tokens, expected, "{name}, {mode}: {:?}", SETS[i]);
                    drafted += reply.timings().drafted;
                    accepted += reply.timings().accepted;
                }
            }
            assert!(accepted > 0 && accepted < drafted, "{name}, {mode}: {accepted} of {drafted} tell nothing");
        }
    }
}
