//! Two shares of a model (tensor parallelism), each on threads of its own, under an engine: several sequences, drafts and none.

use std::path::Path;
use std::sync::Arc;

use engine::{EngineHandle, Proposer, Scope};
use ggml::Device;
use model::{LoadOptions, Model, Placement, Split};
use speculate::{AsyncProposer, Depth, DraftVocabSize};
use test_support::*;
use text::TokenId;

const N: usize = 24;

fn both(name: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
    let gpus = vec![Device::cpu().expect("there is one"); 2];
    let placement = Placement { gpus, split: Split::Tensor, ..Placement::default() };
    Model::open(&path, &LoadOptions { placement, ..LoadOptions::default() }).expect("a model that two can share")
}

#[test]
fn shares_draft_what_they_say_without_drafts() {
    let model = both("pocket-moe-q8_0.gguf");
    assert_eq!(model.n_ranks(), 2);
    let prompts: Vec<Vec<TokenId>> = ["What is 20 + 15?", "Name a colour."].map(|words| question(&model, words)).into();
    let requests = || prompts.iter().map(|prompt| (prompt.clone(), greedy_exactly(N))).collect();
    let plain = generate_all(&spawn(&model, config(256, 2), None), requests());
    let config = config(256, 2);
    let head = || head(&model, &config, Depth::Fixed(3), DraftVocabSize::Full);
    // Two streams of work, each of two ranks.
    let beside = |ahead| AsyncProposer::new(head(), &model, 1, ahead).expect("a thread");
    let proposers: [(&str, Box<dyn Proposer>); 3] =
        [("fused", Box::new(head())), ("async", Box::new(beside(false))), ("ahead", Box::new(beside(true)))];
    for (way, proposer) in proposers {
        let drafted = generate_all(&spawn(&model, config.clone(), Some(proposer)), requests());
        for (plain, drafted) in plain.iter().zip(&drafted) {
            assert_eq!(drafted.tokens, plain.tokens, "{way}");
            assert!(drafted.timings().accepted > N / 4, "{way}: {} were accepted", drafted.timings().accepted);
        }
    }
}

#[test]
fn a_slot_of_shares_is_taken_up_again_and_no_other_model_takes_it() {
    let model = both("pocket-moe-q8_0.gguf");
    let prompt = question(&model, "What is 20 + 15?");
    let engine = drafting(&model, config(256, 1));
    let first = generate(&engine, &prompt, greedy_exactly(N));
    let longer: Vec<TokenId> = [&prompt[..], &first.tokens[..]].concat();
    let file = slot_bytes(&engine);
    let expected = generate(&engine, &longer, greedy_exactly(8)).tokens;
    let other = drafting(&model, config(256, 1));
    let taken =
        |engine: &EngineHandle| engine.read_slot(&file).and_then(|saved| engine.load_slot(0, saved, Scope::default()));
    taken(&other).expect("the same model, and as many shares");
    let again = generate(&other, &longer, greedy_exactly(8));
    assert!(again.timings().cached_tokens >= prompt.len(), "{} were there", again.timings().cached_tokens);
    assert_eq!(again.tokens, expected);
    assert!(taken(&drafting(&pocket_moe(), config(256, 1))).is_err());
}
