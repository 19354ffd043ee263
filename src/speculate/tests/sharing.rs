//! A copy of another sequence's state drafts as a sequence that computed its prompt itself.

mod support;

use engine::{EngineConfig, Event, GenerateRequest};
use support::*;
use text::TokenId;

const N: usize = 30;

fn pieces(n_sequences: usize) -> EngineConfig {
    EngineConfig { checkpoint_every: Some(64), n_batch: 64, n_batch_shared: 64, ..config(n_sequences) }
}

#[test]
fn a_copy_of_a_running_sequence_drafts_as_one_that_read_its_prompt() {
    let model = pocket();
    let prompt = words(200);
    let second: Vec<TokenId> = [&prompt[..150], &words(20)].concat();
    let expected = ask(&drafting(&model, pieces(1)), &second, N);
    let engine = drafting(&model, pieces(2));
    let request = GenerateRequest::new(prompt, greedy(250), engine.limits()).expect("a request that fits");
    let mut first = engine.submit(request).expect("a place in the queue");
    while !matches!(first.next().expect("tokens"), Event::Tokens(_)) {}
    let got = ask(&engine, &second, N);
    assert_eq!(got.timings.cached_tokens, 128);
    assert!(expected.timings.accepted > 0 && expected.timings.accepted < expected.timings.drafted);
    assert_eq!((got.tokens, got.guesses), (expected.tokens, expected.guesses));
}

#[test]
fn answers_of_one_request_draft_alike() {
    let model = pocket();
    let prompt = words(200);
    let engine = drafting(&model, pieces(4));
    let request = || GenerateRequest::new(prompt.clone(), greedy(N), engine.limits()).expect("a request that fits");
    let all: Vec<_> = (0..4).map(|_| engine.submit(request()).expect("a place in the queue")).collect();
    let answers: Vec<_> = all.into_iter().map(read).collect();
    let expected = ask(&drafting(&model, pieces(1)), &prompt, N);
    for (i, answer) in answers.iter().enumerate() {
        assert_eq!(answer.timings.cached_tokens, if i == 0 { 0 } else { 199 }, "answer {i}");
        assert_eq!(answer.tokens, expected.tokens, "answer {i}");
        assert_eq!(answer.guesses, expected.guesses, "answer {i}");
    }
}
