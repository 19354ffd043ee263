//! Prompt lookup as a part of `auto`: the text is that of plain decoding, a head that guesses badly gives way where the text
//! repeats itself, and no state grows for it. Counted, not timed.

use std::path::Path;
use std::sync::Arc;

use engine::sample::SamplingParams;
use engine::{EngineConfig, EngineHandle, Proposer, RequestOptions};
use model::{Facts, LoadOptions, Model};
use speculate::{Depth, Mode, SpecConfig, memory_plan, proposer};
use test_support::*;
use text::TokenId;

use crate::tiny::Spec;
use crate::two_heads::{pocket_file, spoiled, tokens_per_step};

fn drafts(model: &Arc<Model>, config: &EngineConfig, mode: Mode, depth: Depth) -> Option<Box<dyn Proposer>> {
    proposer(model, config, SpecConfig { mode, depth, ..SpecConfig::default() }).expect("room")
}

fn drafting(model: &Arc<Model>, config: EngineConfig, mode: Mode, depth: Depth) -> EngineHandle {
    let drafts = drafts(model, &config, mode, depth);
    spawn(model, config, drafts)
}

fn open(path: &Path) -> Arc<Model> {
    Model::open(path, &LoadOptions::default()).expect("a sound file")
}

fn model(spec: &Spec) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    open(&spec.document().write(&dir.path().join("model.gguf")))
}

/// A question, what the model answers, and the question again, so that the answer is there to be looked up.
fn told_before(model: &Arc<Model>) -> Vec<TokenId> {
    let story = question(model, "Tell me a short story about a dragon.");
    let told = generate(&spawn(model, config(1024, 1), None), &story, greedy_exactly(80));
    let end = model.vocab().encode("<|im_end|>\n", text::Special::Parse);
    [&story[..], &told.tokens, &end, &story].concat()
}

/// Greedy and sampled.
fn both_ways(prompt: &[TokenId], n: usize) -> [(Vec<TokenId>, RequestOptions); 2] {
    let sampling = SamplingParams { seed: Some(3), temperature: 0.8, ..SamplingParams::default() };
    [greedy_exactly(n), RequestOptions { sampling, ..greedy_exactly(n) }].map(|options| (prompt.to_vec(), options))
}

fn assert_same_text(model: &Arc<Model>, requests: &[(Vec<TokenId>, RequestOptions)], n_least: usize) {
    let plain = generate_all(&spawn(model, config(1024, 1), None), requests.to_vec());
    for depth in [Depth::Fixed(3), Depth::Auto] {
        for n_sequences in [1, 3] {
            let engine = drafting(model, config(1024, n_sequences), Mode::Auto, depth);
            let what = format!("{model:?}, {depth}, {n_sequences} sequences");
            for round in 0..2 {
                let got = generate_all(&engine, requests.to_vec());
                for (i, (a, b)) in plain.iter().zip(&got).enumerate() {
                    assert_eq!(a.tokens, b.tokens, "{what}, request {i}, round {round}");
                }
                let n_accepted: usize = got.iter().map(|a| a.timings().accepted).sum();
                assert!(depth == Depth::Auto || n_accepted >= n_least, "{what}: {n_accepted} drafts accepted");
            }
        }
    }
}

#[test]
fn text_is_that_of_plain_decoding_beside_a_head() {
    let model = pocket_moe();
    let new = both_ways(&question(&model, "List three planets."), 40);
    let requests: Vec<_> = both_ways(&told_before(&model), 60).into_iter().chain(new).collect();
    assert_same_text(&model, &requests, 60);
}

#[test]
fn text_is_that_of_plain_decoding_without_a_head() {
    for arch in ["llama", "qwen35"] {
        let model = model(&Spec::of(arch));
        let line: Vec<TokenId> = (3..20).map(TokenId).collect();
        assert_same_text(&model, &both_ways(&line.repeat(3), 60), 0);
    }
}

#[test]
fn a_head_that_guesses_badly_gives_way_where_the_text_repeats() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let (good, bad) = (open(&pocket_file()), open(&spoiled(dir.path())));
    let prompt = told_before(&good);
    let of = |model: &Arc<Model>, mode| {
        let engine = drafting(model, config(1024, 1), mode, Depth::Fixed(4));
        tokens_per_step(&[generate(&engine, &prompt, greedy_exactly(80))])
    };
    let (alone, both) = (of(&bad, Mode::NextN), of(&bad, Mode::Auto));
    assert!(both > 2.0 * alone, "{both} tokens a step, {alone} by the bad head alone");
    let (alone, both) = (of(&good, Mode::NextN), of(&good, Mode::Auto));
    assert!(both > 0.95 * alone, "{both} tokens a step, {alone} by the good head alone");
}

#[test]
fn no_draft_is_longer_than_the_state_was_planned_for() {
    let planned = |mode, facts: &Facts| {
        let plan = memory_plan(&config(256, 2), &SpecConfig { mode, ..SpecConfig::default() }, facts);
        let bytes = plan.bytes(facts).expect("small").state();
        (plan.state.n_snapshots, bytes)
    };
    for (n_mtp, depth) in [(1, 6), (3, 3)] {
        let model = model(&Spec { nextn: true, n_mtp, ..Spec::of("qwen35") });
        assert_eq!(planned(Mode::Auto, model.facts()), planned(Mode::NextN, model.facts()), "{n_mtp} layers");
        let drafts = drafts(&model, &config(256, 2), Mode::Auto, Depth::Auto).expect("a head");
        assert_eq!(drafts.info().max_depth, depth, "{n_mtp} layers");
    }
    for arch in ["qwen35", "llama"] {
        let model = model(&Spec::of(arch));
        assert_eq!(planned(Mode::Auto, model.facts()), planned(Mode::Off, model.facts()), "{arch}");
        assert!(drafts(&model, &config(256, 2), Mode::Auto, Depth::Auto).is_none(), "{arch}: nothing drafts");
    }
}
