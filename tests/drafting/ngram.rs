//! Prompt lookup: the same answers, in fewer steps where the context repeats; alone, with a head, and without any head.

use std::sync::Arc;

use engine::sample::SamplingParams;
use engine::{EngineConfig, Proposer, RequestOptions};
use model::{LoadOptions, Model};
use speculate::{CombinedProposer, Depth, DraftVocabSize, NextN, NextNConfig, Ngram};
use test_support::{Completion, config, generate_all, greedy_exactly, head, open_pocket, question, spawn};
use text::TokenId;

use crate::support::tiny::Spec;

fn ngram(model: &Model, config: &EngineConfig, depth: Depth) -> Box<dyn Proposer> {
    Box::new(CombinedProposer::alone(Ngram::new(model, config, depth)))
}

fn combined(model: &Arc<Model>, config: &EngineConfig, depth: Depth) -> Box<dyn Proposer> {
    let head = head(model, config, depth, DraftVocabSize::Full);
    Box::new(CombinedProposer::new(Box::new(head), Ngram::new(model, config, depth)))
}

fn tokens_per_step(answers: &[Completion]) -> f64 {
    let sum = |f: fn(&Completion) -> usize| answers.iter().map(f).sum::<usize>() as f64;
    sum(|a| a.timings().generated_tokens - 1) / sum(|a| a.timings().steps)
}

/// Greedy and sampled requests, some of whose answers repeat what the prompt has.
fn requests(model: &Arc<Model>, n: usize) -> Vec<(Vec<TokenId>, RequestOptions)> {
    let story = question(model, "Tell me a short story about a dragon.");
    let options = RequestOptions { logprobs: Some(1), ..greedy_exactly(n) };
    let told = generate_all(&spawn(model, config(1024, 1), None), vec![(story.clone(), options.clone())]).remove(0);
    let again =
        [&story[..], &told.tokens, &model.vocab().encode("<|im_end|>\n", text::Special::Parse), &story].concat();
    let sampled = SamplingParams { seed: Some(3), ..SamplingParams::default() };
    vec![
        (story, options.clone()),
        (again.clone(), options.clone()),
        (again, RequestOptions { sampling: sampled, ..options.clone() }),
        (question(model, "List three planets."), options),
    ]
}

#[test]
fn look_up_leaves_answers_as_they_are_and_needs_fewer_steps_where_the_text_repeats() {
    let model = &open_pocket("pocket-moe-q8_0.gguf");
    let requests = requests(model, 80);
    let plain = generate_all(&spawn(model, config(1024, 1), None), requests.clone());
    for depth in [Depth::Fixed(1), Depth::Fixed(4), Depth::Fixed(6), Depth::Auto] {
        for n_sequences in [1, 4] {
            let config = config(1024, n_sequences);
            for (what, proposer) in
                [("ngram", ngram(model, &config, depth)), ("nextn+ngram", combined(model, &config, depth))]
            {
                let got = generate_all(&spawn(model, config.clone(), Some(proposer)), requests.clone());
                for (i, (a, b)) in plain.iter().zip(&got).enumerate() {
                    assert_eq!(a.seen(), b.seen(), "{what}, {depth:?}, {n_sequences} sequences, request {i}");
                }
                let of_repeat = tokens_per_step(&got[1..2]);
                println!("{what}, {depth:?}, {n_sequences}: {of_repeat:.2}, {:.2}", tokens_per_step(&got));
                // Seen with 4 and more: above 3.
                assert!(!matches!(depth, Depth::Fixed(4..)) || of_repeat > 2.5, "{what}, {depth:?}: {of_repeat}");
            }
        }
    }
}

#[test]
fn together_they_need_no_more_steps_than_the_head_alone() {
    let model = &open_pocket("pocket-moe-q8_0.gguf");
    let requests = requests(model, 80);
    let config = config(1024, 1);
    let depth = Depth::Fixed(4);
    let alone = Box::new(head(model, &config, depth, DraftVocabSize::Full));
    let alone = generate_all(&spawn(model, config.clone(), Some(alone)), requests.clone());
    let together = generate_all(&spawn(model, config.clone(), Some(combined(model, &config, depth))), requests);
    let (alone, together) = (tokens_per_step(&alone), tokens_per_step(&together));
    println!("the head {alone:.2}, both {together:.2} tokens a step");
    assert!(together > 0.95 * alone, "the head {alone}, both {together} tokens a step");
}

#[test]
fn a_model_without_a_head_drafts_by_look_up() {
    let dir = tempfile::tempdir().expect("a folder");
    for arch in ["llama", "qwen3", "qwen35"] {
        let path = Spec::of(arch).document().write(&dir.path().join(format!("{arch}.gguf")));
        let model = &Model::open(&path, &LoadOptions::default()).expect("a tiny model");
        let config = config(256, 1);
        let of_head = NextN::new(model, &config, NextNConfig::default()).expect("nothing to make room for");
        assert!(of_head.is_none(), "{arch}");
        let requests = vec![((3..20).map(TokenId).collect(), greedy_exactly(120))];
        let plain = generate_all(&spawn(model, config.clone(), None), requests.clone());
        let proposer = ngram(model, &config, Depth::Fixed(5));
        let got = generate_all(&spawn(model, config.clone(), Some(proposer)), requests);
        assert_eq!(got[0].tokens, plain[0].tokens, "{arch}");
        println!("{arch}: {:.2} tokens a step, {:?}", tokens_per_step(&got), got[0].timings());
    }
}
