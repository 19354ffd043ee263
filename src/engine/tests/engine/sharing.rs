//! What is computed once serves several: prompts that begin as a running sequence, generations of one request, edited prompts.
//! Every generation is that of an engine which computed all of its prompt.

use std::sync::Arc;

use engine::{EngineConfig, EngineHandle, Event, Exact, Generation, RequestOptions};
use model::Model;
use test_support::*;
use text::TokenId;

use crate::n_computed;

/// Long enough that copies pay, of words that the model knows.
fn long(model: &Model) -> Vec<TokenId> {
    let text = "Once upon a time there was a clever fox who lived in a forest with a kind bear. \
                Every morning the fox walked to the river to look for fish, and the bear slept in the sun. \
                One day a small bird came to the river and asked the fox for help with a broken wing. ";
    let tokens = model.vocab().encode(&text.repeat(4), text::Special::Plain);
    assert!(tokens.len() > 200, "{} tokens", tokens.len());
    tokens
}

fn plus(tokens: &[TokenId], more: &[u32]) -> Vec<TokenId> {
    tokens.iter().copied().chain(more.iter().map(|&id| TokenId(id))).collect()
}

fn every(n: usize, config: EngineConfig) -> EngineConfig {
    // Whole pieces of one length: where a prompt is cut decides the bits of K-quants.
    EngineConfig { checkpoint_every: Some(n), n_batch: 64, n_batch_shared: 64, ..config }
}

/// The generation of an engine that knows nothing else.
fn fresh(model: &Arc<Model>, config: &EngineConfig, prompt: &[TokenId], n: usize) -> Vec<TokenId> {
    let engine = engine::Engine::spawn(Arc::clone(model), config.clone()).expect("an engine");
    generate(&engine, prompt, greedy_exactly(n)).tokens
}

/// A generation that has its first token, and is not read on: it stays in its slot.
fn running(engine: &EngineHandle, prompt: &[TokenId], options: RequestOptions) -> Generation {
    let mut generation = submit(engine, prompt, options);
    while !matches!(generation.next().expect("tokens"), Event::Tokens(_)) {}
    generation
}

#[test]
fn stored_sequences_have_their_beginning_in_common_and_come_back_as_they_were() {
    for model in [pocket(), pocket_moe()] {
        let config = every(64, EngineConfig { store_bytes: 256 << 20, ..config(2048, 1) });
        let (engine, _alone) = engine(&model, config.clone());
        let base = plus(&long(&model).repeat(3), &[9]);
        let prompt = |i: u32| plus(&base, &(0..90).map(|k| 20 + (7 * i + k) % 150).collect::<Vec<_>>());
        let stored = || engine.stats().expect("it runs").stored_bytes;
        let answers: Vec<_> = (0..2).map(|i| generate(&engine, &prompt(i), greedy_exactly(40)).tokens).collect();
        let one = stored();
        assert!(one > 0);
        let more: Vec<_> = (2..8).map(|i| generate(&engine, &prompt(i), greedy_exactly(40)).tokens).collect();
        assert!(stored() < 7 * one / 2, "{model:?}: seven take {} bytes, one {one}", stored());
        for (i, answer) in (0..).zip(answers.iter().chain(&more)) {
            let again = generate(&engine, &prompt(i), greedy_exactly(40));
            assert!(again.n_cached() > base.len(), "{model:?}, {i}: {} tokens came back", again.n_cached());
            assert_eq!(again.tokens, *answer, "{model:?}, {i}");
        }
        assert_eq!(more[5], fresh(&model, &config, &prompt(7), 40), "{model:?}");
    }
}

#[test]
fn a_second_request_takes_up_what_a_running_one_has_computed() {
    for model in [pocket(), pocket_moe(), tiny()] {
        let config = every(64, config(1024, 2));
        let (engine, _alone) = engine(&model, config.clone());
        let prompt: Vec<TokenId> =
            if model.vocab().len() > 1000 { long(&model) } else { (0..200).map(|i| TokenId(i * 7 % 200)).collect() };
        let first = running(&engine, &prompt, greedy_exactly(400));
        let second = plus(&prompt[..180], &[5, 6, 7]);
        let answer = generate(&engine, &second, greedy_exactly(24));
        let expected_cached = if model.state_layout().is_recurrent() { 128 } else { 180 };
        assert_eq!(answer.n_cached(), expected_cached, "{model:?}");
        assert_eq!(answer.tokens, fresh(&model, &config, &second, 24), "{model:?}");
        drop(first);
    }
}

#[test]
fn a_request_that_leaves_nothing_to_others_is_not_copied_from() {
    let model = tiny();
    let (engine, _alone) = engine(&model, every(64, config(1024, 2)));
    let prompt: Vec<_> = (0..200).map(|i| TokenId(i * 7 % 200)).collect();
    let _private = running(&engine, &prompt, RequestOptions { cache: false, ..greedy_exactly(400) });
    assert_eq!(generate(&engine, &prompt, greedy_exactly(4)).n_cached(), 0);
    let uncached = RequestOptions { cache: false, ..greedy_exactly(4) };
    assert_eq!(generate(&engine, &prompt, uncached).n_cached(), 0, "nor does it copy");
}

#[test]
fn a_conversation_keeps_its_slot_when_another_begins_as_it_does() {
    let model = pocket();
    let config = every(64, config(1024, 2));
    let (engine, _alone) = engine(&model, config.clone());
    let prompt = long(&model);
    let first = generate(&engine, &prompt, greedy_exactly(8));
    let other = plus(&prompt[..70], &[5, 6, 7]);
    // Most of the first would be lost in its own slot: the other one gets a copy.
    assert_eq!(generate(&engine, &other, greedy_exactly(8)).n_cached(), 64);
    let more = plus(&prompt, &[]).into_iter().chain(first.tokens).chain([TokenId(5)]).collect::<Vec<_>>();
    assert_eq!(generate(&engine, &more, greedy_exactly(8)).n_cached(), prompt.len() + 7);
}

#[test]
fn answers_of_one_request_compute_their_prompt_once() {
    for model in [pocket(), pocket_moe()] {
        let config = every(64, config(1024, 4));
        let (engine, _alone) = engine(&model, config.clone());
        let prompt = long(&model);
        let expected = fresh(&model, &config, &prompt, 12);
        let before = n_computed(&engine);
        let mut all: Vec<_> = (0..4).map(|_| submit(&engine, &prompt, greedy_exactly(12))).collect();
        let answers: Vec<_> = all.iter_mut().map(Completion::read).collect();
        for (i, answer) in answers.iter().enumerate() {
            assert_eq!(answer.tokens, expected, "{model:?}, answer {i}");
            assert_eq!(answer.n_cached(), if i == 0 { 0 } else { prompt.len() - 1 }, "{model:?}, answer {i}");
        }
        // The prompt once, its last token for each of the others, and the generations' tokens.
        assert_eq!(n_computed(&engine) - before, (prompt.len() + 3 + 4 * 11) as u64, "{model:?}");
    }
}

#[test]
fn those_that_wait_go_on_when_the_one_before_them_goes_away() {
    let model = pocket();
    let (engine, _alone) =
        engine(&model, EngineConfig { n_batch: 16, n_batch_shared: 16, ..every(64, config(1024, 3)) });
    let prompt = long(&model);
    let mut first = submit(&engine, &prompt, greedy_exactly(4));
    let mut others: Vec<_> = (0..2).map(|_| submit(&engine, &prompt, greedy_exactly(12))).collect();
    assert!(matches!(first.next(), Some(Event::Prompt(_))));
    drop(first);
    let answers: Vec<_> = others.iter_mut().map(Completion::read).collect();
    assert_eq!(answers[0].tokens, answers[1].tokens);
    assert_eq!(answers[0].tokens.len(), 12);
}

#[test]
fn an_edited_prompt_without_boundaries_goes_on_at_its_last_checkpoint() {
    for model in [pocket(), pocket_moe()] {
        let config = every(64, config(1024, 1));
        let (engine, _alone) = engine(&model, config.clone());
        let prompt = long(&model);
        assert_eq!(generate(&engine, &prompt, greedy_exactly(8)).n_cached(), 0);
        for (n, cached) in [(200, 192), (150, 128), (90, 64), (40, 0)] {
            let edited = plus(&prompt[..n], &[5, 6, 7, 8]);
            let answer = generate(&engine, &edited, greedy_exactly(24));
            assert_eq!(answer.n_cached(), cached, "{model:?}, edited at {n}");
            assert_eq!(answer.tokens, fresh(&model, &config, &edited, 24), "{model:?}, edited at {n}");
        }
    }
}

#[test]
fn without_an_interval_checkpoints_are_at_boundaries_only() {
    let model = pocket();
    let (engine, _alone) = engine(&model, every(0, config(1024, 1)));
    let prompt = long(&model);
    generate(&engine, &prompt, greedy_exactly(8));
    assert_eq!(generate(&engine, &plus(&prompt[..200], &[5]), greedy_exactly(1)).n_cached(), 0);
}

#[test]
fn exact_answers_do_not_take_up_what_others_are_computing() {
    let model = pocket();
    let (engine, _alone) = engine(&model, EngineConfig { exact: Exact::On, ..every(64, config(1024, 2)) });
    let prompt = long(&model);
    let _first = running(&engine, &prompt, greedy_exactly(400));
    assert_eq!(generate(&engine, &prompt, greedy_exactly(1)).n_cached(), 0);
}

#[test]
fn checkpoints_stay_within_their_budget() {
    let model = pocket();
    let of_state = {
        let memory = model.memory(config(1024, 1).memory(&model)).expect("memory");
        memory.shape().recurrent_bytes()
    };
    for room in [0, 1, 2, 5] {
        let budget = room * of_state + of_state / 2;
        let config = EngineConfig { checkpoint_bytes: budget, ..every(16, config(1024, 2)) };
        let (engine, _alone) = engine(&model, EngineConfig { n_batch: 16, n_batch_shared: 16, ..config });
        let prompt = long(&model);
        for i in 0..4u32 {
            generate(
                &engine,
                &plus(&[TokenId(900 + i)], &prompt.iter().map(|t| t.0).collect::<Vec<_>>()),
                greedy_exactly(1),
            );
            let n_bytes = engine.stats().expect("it runs").checkpoint_bytes;
            assert!(n_bytes <= budget, "{n_bytes} bytes, at most {budget}");
        }
        let n_bytes = engine.stats().expect("it runs").checkpoint_bytes;
        assert!(n_bytes >= room.min(2) * of_state, "{n_bytes} bytes where {room} fit");
    }
}
