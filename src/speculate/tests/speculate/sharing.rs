//! A copy of another sequence's state drafts as a sequence that computed its prompt itself.

use engine::{EngineConfig, Event};
use test_support::*;

use text::TokenId;

const N: usize = 30;

fn pieces(n_sequences: usize) -> EngineConfig {
    EngineConfig { checkpoint_every: Some(64), n_batch: 64, n_batch_shared: 64, ..config(512, n_sequences) }
}

#[test]
fn a_copy_of_a_running_sequence_drafts_as_one_that_read_its_prompt() {
    let model = pocket();
    let prompt = some_tokens(200);
    let second: Vec<TokenId> = [&prompt[..150], &some_tokens(20)].concat();
    // Cut as the copy's prompt is, which is too short for a checkpoint near its end: that decides the bits of K-quants.
    let cut_alike = EngineConfig { checkpoint_every: Some(0), ..pieces(1) };
    let expected = generate(&drafting(&model, cut_alike), &second, greedy_exactly(N));
    let engine = drafting(&model, pieces(2));
    let mut first = submit(&engine, &prompt, greedy_exactly(250));
    while !matches!(first.next().expect("tokens"), Event::Tokens(_)) {}
    let got = generate(&engine, &second, greedy_exactly(N));
    assert_eq!(got.timings().cached_tokens, 128);
    assert!(expected.timings().accepted > 0 && expected.timings().accepted < expected.timings().drafted);
    assert_eq!((got.tokens, got.drafts), (expected.tokens, expected.drafts));
}

#[test]
fn answers_of_one_request_draft_alike() {
    let model = pocket();
    let prompt = some_tokens(200);
    let engine = drafting(&model, pieces(4));
    let answers = generate_all(&engine, vec![(prompt.clone(), greedy_exactly(N)); 4]);
    let expected = generate(&drafting(&model, pieces(1)), &prompt, greedy_exactly(N));
    for (i, answer) in answers.iter().enumerate() {
        assert_eq!(answer.timings().cached_tokens, if i == 0 { 0 } else { 199 }, "answer {i}");
        assert_eq!(answer.tokens, expected.tokens, "answer {i}");
        assert_eq!(answer.drafts, expected.drafts, "answer {i}");
    }
}
