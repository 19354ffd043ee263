//! Look-up drafts: the same answers, in fewer steps where the context repeats; alone, with a head, and without any head.

mod support;

use std::sync::Arc;

use engine::sample::SamplingParams;
use engine::{EngineConfig, Proposer, RequestOptions};
use model::{LoadOptions, Model};
use speculate::{Depth, DraftVocabSize, NextN, NextNConfig, NextNgram, Ngram};
use support::answers::{Answer, answers, chat, config, pocket, spawn};
use support::tiny::Spec;
use text::TokenId;

fn ngram(model: &Model, config: &EngineConfig, depth: Depth) -> Box<dyn Proposer> {
    Box::new(Ngram::new(model, config, depth))
}

fn both(model: &Arc<Model>, config: &EngineConfig, depth: Depth) -> Box<dyn Proposer> {
    let config_of_head = NextNConfig { depth, vocab: DraftVocabSize::Full };
    let head = NextN::new(model, config, config_of_head).expect("room for the head's cells").expect("a head");
    Box::new(NextNgram::new(head, Ngram::new(model, config, depth)))
}

fn tokens_per_cycle(answers: &[Answer]) -> f64 {
    let sum = |f: fn(&Answer) -> usize| answers.iter().map(f).sum::<usize>() as f64;
    sum(|a| a.timings.generated_tokens - 1) / sum(|a| a.timings.cycles)
}

/// Greedy and sampled requests, some of whose answers repeat what the prompt has.
fn requests(model: &Arc<Model>, n: usize) -> Vec<(Vec<TokenId>, RequestOptions)> {
    let story = chat(model, "Tell me a short story about a dragon.");
    let options = RequestOptions {
        max_tokens: Some(n),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        logprobs: Some(1),
        ..RequestOptions::default()
    };
    let told = answers(&spawn(model, config(1024, 1), None), vec![(story.clone(), options.clone())]).remove(0);
    let again =
        [&story[..], &told.tokens, &model.vocab().encode("<|im_end|>\n", text::Special::Parse), &story].concat();
    let sampled = SamplingParams { seed: Some(3), ..SamplingParams::default() };
    vec![
        (story, options.clone()),
        (again.clone(), options.clone()),
        (again, RequestOptions { sampling: sampled, ..options.clone() }),
        (chat(model, "List three planets."), options),
    ]
}

#[test]
fn look_up_leaves_answers_as_they_are_and_needs_fewer_steps_where_the_text_repeats() {
    let model = &pocket("pocket-moe-q8_0.gguf");
    let requests = requests(model, 80);
    let plain = answers(&spawn(model, config(1024, 1), None), requests.clone());
    for depth in [Depth::Fixed(1), Depth::Fixed(4), Depth::Fixed(6), Depth::Auto] {
        for n_sequences in [1, 4] {
            let config = config(1024, n_sequences);
            for (what, proposer) in
                [("ngram", ngram(model, &config, depth)), ("nextn+ngram", both(model, &config, depth))]
            {
                let got = answers(&spawn(model, config.clone(), Some(proposer)), requests.clone());
                for (i, (a, b)) in plain.iter().zip(&got).enumerate() {
                    assert_eq!(a.seen(), b.seen(), "{what}, {depth:?}, {n_sequences} sequences, request {i}");
                }
                let of_repeat = tokens_per_cycle(&got[1..2]);
                println!("{what}, {depth:?}, {n_sequences}: {of_repeat:.2}, {:.2}", tokens_per_cycle(&got));
                // Seen with 4 and more: above 3.
                assert!(!matches!(depth, Depth::Fixed(4..)) || of_repeat > 2.5, "{what}, {depth:?}: {of_repeat}");
            }
        }
    }
}

#[test]
fn together_they_need_no_more_steps_than_the_head_alone() {
    let model = &pocket("pocket-moe-q8_0.gguf");
    let requests = requests(model, 80);
    let config = config(1024, 1);
    let depth = Depth::Fixed(4);
    let alone = support::answers::head(model, &config, depth, DraftVocabSize::Full);
    let alone = answers(&spawn(model, config.clone(), Some(alone)), requests.clone());
    let together = answers(&spawn(model, config.clone(), Some(both(model, &config, depth))), requests);
    let (alone, together) = (tokens_per_cycle(&alone), tokens_per_cycle(&together));
    println!("the head {alone:.2}, both {together:.2} tokens a cycle");
    assert!(together > 0.95 * alone, "the head {alone}, both {together} tokens a cycle");
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
        let options = RequestOptions {
            max_tokens: Some(120),
            sampling: SamplingParams::greedy(),
            ignore_eos: true,
            ..RequestOptions::default()
        };
        let requests = vec![((3..20).map(TokenId).collect(), options)];
        let plain = answers(&spawn(model, config.clone(), None), requests.clone());
        let proposer = ngram(model, &config, Depth::Fixed(5));
        let got = answers(&spawn(model, config.clone(), Some(proposer)), requests);
        assert_eq!(got[0].tokens, plain[0].tokens, "{arch}");
        println!("{arch}: {:.2} tokens a cycle, {:?}", tokens_per_cycle(&got), got[0].timings);
    }
}
