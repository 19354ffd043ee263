//! Speculation never changes an answer: with the NextN head, at every depth, and with proposers that lie.

mod support;

use std::sync::Arc;

use engine::sample::SamplingParams;
use engine::{Engine, EngineConfig, Event, FlashAttention, GenerateRequest, Proposer, RequestOptions, Timings};
use memory::CacheType;
use model::{LoadOptions, Model};
use speculate::{Depth, DraftVocabSize, NextN, NextNConfig};
use support::golden::{Counts, Golden, OpenModel, oracle_model};
use support::liar::Liar;
use support::tiny::Rng;
use text::TokenId;

fn exact(n_ctx: usize, n_sequences: usize) -> EngineConfig {
    EngineConfig {
        n_ctx: Some(n_ctx),
        n_sequences,
        threads: Some(1),
        cache_type_k: CacheType::F32,
        cache_type_v: CacheType::F32,
        flash_attention: FlashAttention::Off,
        ..EngineConfig::default()
    }
}

fn head(model: &Arc<Model>, config: &EngineConfig, depth: Depth, vocab: DraftVocabSize) -> Box<dyn Proposer> {
    let head = NextN::new(model, config, NextNConfig { depth, vocab }).expect("room for the head's cells");
    Box::new(head.expect("the model has a head"))
}

/// Answers of `n` tokens to all prompts at once, whatever ends them.
fn answers(
    model: &Arc<Model>,
    config: EngineConfig,
    proposer: Option<Box<dyn Proposer>>,
    prompts: &[Vec<u32>],
    n: usize,
) -> Vec<(Vec<u32>, Timings)> {
    let engine = Engine::spawn_with(Arc::clone(model), config, proposer).expect("an engine");
    let generations: Vec<_> = prompts
        .iter()
        .map(|ids| {
            let options = RequestOptions {
                max_tokens: Some(n),
                sampling: SamplingParams::greedy(),
                ignore_eos: true,
                ..RequestOptions::default()
            };
            let ids = ids.iter().map(|&id| TokenId(id)).collect();
            let request = GenerateRequest::new(ids, options, engine.limits()).expect("a request that fits");
            engine.submit(request).expect("a place in the queue")
        })
        .collect();
    let mut answers = Vec::new();
    for mut generation in generations {
        let mut tokens = Vec::new();
        let timings = loop {
            match generation.next().expect("an answer ends in an event") {
                Event::Prompt(_) => {}
                Event::Tokens(pieces) => tokens.extend(pieces.iter().map(|p| p.token.0)),
                Event::Finished(summary) => break summary.timings,
                Event::Failed(why) => panic!("{why}"),
            }
        };
        answers.push((tokens, timings));
    }
    answers
}

fn tokens(answers: Vec<(Vec<u32>, Timings)>) -> Vec<Vec<u32>> {
    answers.into_iter().map(|(tokens, _)| tokens).collect()
}

#[test]
fn text_and_counts_equal_the_reference_simulation_at_depths_1_to_3() {
    for name in ["dense-a", "moe-a"] {
        let OpenModel { model, .. } = &oracle_model(&format!("{name}.bf16"), true);
        let golden = Golden::oracle(name);
        for depth in 1..=3 {
            for s in &golden.sequences {
                let config = exact(s.ids.len() + s.greedy.len(), 1);
                let proposer = head(model, &config, Depth::Fixed(depth), DraftVocabSize::Full);
                let answer = answers(model, config, Some(proposer), std::slice::from_ref(&s.ids), s.greedy.len());
                let (tokens, t) = &answer[0];
                assert_eq!(*tokens, s.greedy, "{name} {}, depth {depth}: text", s.name);
                let counts = Counts { drafted: t.drafted, accepted: t.accepted };
                assert_eq!(counts, s.spec[&format!("std-{depth}")], "{name} {}, depth {depth}: counts", s.name);
            }
        }
    }
}

fn pocket(name: &str) -> Arc<Model> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
    Model::open(&path, &LoadOptions::default()).expect("a model of the repository")
}

fn prompts(model: &Model) -> Vec<Vec<u32>> {
    let texts =
        ["What is 17 + 25?", "List three planets.", "Write a function that adds two numbers.", "Tell me a joke."];
    let chat = |text: &&str| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n");
    let encode = |text: String| model.vocab().encode(&text, text::Special::Parse).iter().map(|id| id.0).collect();
    texts.iter().map(chat).map(encode).collect()
}

#[test]
fn every_depth_and_draft_vocabulary_gives_the_plain_answer() {
    for name in ["pocket-q4_k_m.gguf", "pocket-moe-q8_0.gguf"] {
        let model = &pocket(name);
        let prompts = prompts(model);
        let config = EngineConfig { n_ctx: Some(512), threads: Some(1), max_queue: 8, ..EngineConfig::default() };
        let plain = tokens(answers(model, config.clone(), None, &prompts, 96));
        let depths = [Depth::Fixed(1), Depth::Fixed(3), Depth::Fixed(6), Depth::Auto];
        for (depth, vocab) in depths.into_iter().zip([
            DraftVocabSize::Full,
            DraftVocabSize::First(2000),
            DraftVocabSize::Full,
            DraftVocabSize::First(500),
        ]) {
            let proposer = head(model, &config, depth, vocab);
            let drafted = answers(model, config.clone(), Some(proposer), &prompts, 96);
            if let Depth::Fixed(depth) = depth {
                let (right, all) = drafted.iter().fold((0, 0), |n, (_, t)| (n.0 + t.accepted, n.1 + t.drafted));
                println!("{name}, depth {depth}, {vocab}: {right} of {all}");
                assert!(right * 2 > all, "{name}, depth {depth}, {vocab}: {right} of {all} drafts right");
            }
            assert_eq!(tokens(drafted), plain, "{name}, {depth:?}, {vocab}");
        }
    }
}

#[test]
fn several_sequences_draft_together_without_reading_each_others_rows() {
    // Rows of Q8_0 have the same bits in any company; with K-quants a pass of 8 rows and more rounds differently.
    let model = &pocket("pocket-moe-q8_0.gguf");
    let prompts = prompts(model);
    let config = EngineConfig { n_ctx: Some(512), n_sequences: 4, threads: Some(1), ..EngineConfig::default() };
    let alone = EngineConfig { n_sequences: 1, ..config.clone() };
    let plain = tokens(answers(model, alone.clone(), None, &prompts, 64));
    let one =
        answers(model, alone.clone(), Some(head(model, &alone, Depth::Fixed(2), DraftVocabSize::Full)), &prompts, 64);
    let four =
        answers(model, config.clone(), Some(head(model, &config, Depth::Fixed(2), DraftVocabSize::Full)), &prompts, 64);
    for (i, ((one, together), plain)) in one.iter().zip(&four).zip(&plain).enumerate() {
        assert_eq!(&one.0, plain, "prompt {i}, alone");
        assert_eq!(&together.0, plain, "prompt {i}, in company");
        assert!(together.1.accepted * 10 >= one.1.accepted * 9, "prompt {i}: acceptance falls in company");
    }
}

#[test]
fn a_lying_proposer_never_changes_greedy_output() {
    for name in ["pocket-q4_k_m.gguf", "pocket-moe-q8_0.gguf"] {
        let model = &pocket(name);
        let prompts = prompts(model);
        let config = EngineConfig { n_ctx: Some(512), threads: Some(1), max_queue: 8, ..EngineConfig::default() };
        let plain = tokens(answers(model, config.clone(), None, &prompts, 64));
        let liar = Liar { rng: Rng::new(7), n_vocab: model.hparams().n_vocab };
        assert_eq!(tokens(answers(model, config, Some(Box::new(liar)), &prompts, 64)), plain, "{name}");
    }
}
