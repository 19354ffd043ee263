//! Speculation never changes an answer: with the NextN head, at every depth, and with proposers that lie.

use std::sync::Arc;

use engine::{EngineConfig, FlashAttention, Proposer};
use memory::CacheType;
use model::Model;
use speculate::{Depth, DraftVocabSize};
use test_support::{
    Completion, Liar, Random, config, generate_all, greedy_exactly, head, open_pocket, question, spawn,
};
use text::TokenId;

use crate::support::golden::{Counts, Golden, OpenModel, oracle_model, plain_model};

fn exact(n_ctx: usize, n_sequences: usize) -> EngineConfig {
    EngineConfig {
        cache_type_k: CacheType::F32,
        cache_type_v: CacheType::F32,
        flash_attention: FlashAttention::Off,
        ..config(n_ctx, n_sequences)
    }
}

fn mtp(model: &Arc<Model>, config: &EngineConfig, depth: Depth, vocab: DraftVocabSize) -> Option<Box<dyn Proposer>> {
    Some(Box::new(head(model, config, depth, vocab)))
}

/// `n` tokens after each of the prompts at once, whatever ends them.
fn run(
    model: &Arc<Model>,
    config: EngineConfig,
    proposer: Option<Box<dyn Proposer>>,
    prompts: &[Vec<TokenId>],
    n: usize,
) -> Vec<Completion> {
    generate_all(&spawn(model, config, proposer), prompts.iter().map(|ids| (ids.clone(), greedy_exactly(n))).collect())
}

fn tokens(completions: Vec<Completion>) -> Vec<Vec<TokenId>> {
    completions.into_iter().map(|c| c.tokens).collect()
}

#[test]
fn text_and_counts_equal_the_reference_simulation_at_depths_1_to_3() {
    let oracle = |name: &'static str| (name, oracle_model(&format!("{name}.bf16"), true), Golden::oracle(name));
    let plain = |name: &'static str| (name, plain_model(name, name), Golden::plain(name, name));
    for (name, OpenModel { model, .. }, golden) in [oracle("dense-a"), oracle("moe-a"), plain("glm4moe")] {
        let model = &model;
        for depth in 1..=3 {
            for s in &golden.sequences {
                let config = exact(s.ids.len() + s.greedy.len(), 1);
                let proposer = mtp(model, &config, Depth::Fixed(depth), DraftVocabSize::Full);
                let prompt = s.ids.iter().map(|&id| TokenId(id)).collect();
                let completion = run(model, config, proposer, &[prompt], s.greedy.len()).remove(0);
                let (ids, t) = (completion.tokens.iter().map(|id| id.0).collect::<Vec<_>>(), completion.timings());
                assert_eq!(ids, s.greedy, "{name} {}, depth {depth}: text", s.name);
                let counts = Counts { drafted: t.drafted, accepted: t.accepted };
                assert_eq!(counts, s.spec[&format!("std-{depth}")], "{name} {}, depth {depth}: counts", s.name);
            }
        }
    }
}

fn prompts(model: &Model) -> Vec<Vec<TokenId>> {
    let texts =
        ["What is 17 + 25?", "List three planets.", "Write a function that adds two numbers.", "Tell me a joke."];
    texts.iter().map(|text| question(model, text)).collect()
}

#[test]
fn every_depth_and_draft_vocabulary_gives_the_plain_answer() {
    for name in ["pocket-q4_k_m.gguf", "pocket-moe-q8_0.gguf"] {
        let model = &open_pocket(name);
        let prompts = prompts(model);
        let config = config(512, 1);
        let plain = tokens(run(model, config.clone(), None, &prompts, 96));
        let depths = [Depth::Fixed(1), Depth::Fixed(3), Depth::Fixed(6), Depth::Auto];
        for (depth, vocab) in depths.into_iter().zip([
            DraftVocabSize::Full,
            DraftVocabSize::First(2000),
            DraftVocabSize::Full,
            DraftVocabSize::First(500),
        ]) {
            let proposer = mtp(model, &config, depth, vocab);
            let drafted = run(model, config.clone(), proposer, &prompts, 96);
            if let Depth::Fixed(depth) = depth {
                let (right, all) =
                    drafted.iter().fold((0, 0), |n, c| (n.0 + c.timings().accepted, n.1 + c.timings().drafted));
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
    let model = &open_pocket("pocket-moe-q8_0.gguf");
    let prompts = prompts(model);
    let (config, alone) = (config(512, 4), config(512, 1));
    let plain = tokens(run(model, alone.clone(), None, &prompts, 64));
    let drafted = |config: EngineConfig| {
        let proposer = mtp(model, &config, Depth::Fixed(2), DraftVocabSize::Full);
        run(model, config, proposer, &prompts, 64)
    };
    let (one, four) = (drafted(alone), drafted(config));
    for (i, ((one, together), plain)) in one.iter().zip(&four).zip(&plain).enumerate() {
        assert_eq!(&one.tokens, plain, "prompt {i}, alone");
        assert_eq!(&together.tokens, plain, "prompt {i}, in one batch");
        let (one, together) = (one.timings().accepted, together.timings().accepted);
        assert!(together * 10 >= one * 9, "prompt {i}: acceptance falls in one batch");
    }
}

#[test]
fn a_lying_proposer_never_changes_greedy_output() {
    for name in ["pocket-q4_k_m.gguf", "pocket-moe-q8_0.gguf"] {
        let model = &open_pocket(name);
        let prompts = prompts(model);
        let config = config(512, 1);
        let plain = tokens(run(model, config.clone(), None, &prompts, 64));
        let liar = Liar { random: Random::new(7), n_vocab: model.hparams().n_vocab };
        assert_eq!(tokens(run(model, config, Some(Box::new(liar)), &prompts, 64)), plain, "{name}");
    }
}
