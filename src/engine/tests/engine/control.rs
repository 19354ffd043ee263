//! Generations that are steered from outside: cancelled, or told to stop thinking.

use engine::{EngineConfig, EngineHandle, Event, FinishReason, Generation, RequestOptions, Thinking};
use test_support::{Completion, config, drafting, engine, generate, greedy_exactly, pocket, question, submit, tiny};
use text::TokenId;

fn prompt(n: u32, first: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId((first + i * 7) % 250)).collect()
}

/// Reads until the first token is there; gives the tokens.
fn begin(generation: &mut Generation) -> Vec<TokenId> {
    loop {
        if let Event::Tokens(pieces) = generation.next().expect("a token") {
            return pieces.iter().map(|piece| piece.token).collect();
        }
    }
}

/// The rest of a generation: its tokens, and its end.
fn rest(generation: &mut Generation) -> (Vec<TokenId>, engine::Summary) {
    let mut tokens = Vec::new();
    loop {
        match generation.next().expect("an end before the channel closes") {
            Event::Tokens(pieces) => tokens.extend(pieces.iter().map(|piece| piece.token)),
            Event::Finished(summary) => return (tokens, *summary),
            event => assert!(matches!(event, Event::Prompt(_)), "{event:?}"),
        }
    }
}

fn n_busy(engine: &EngineHandle) -> usize {
    engine.slots().expect("it runs").iter().filter(|slot| slot.work.is_some()).count()
}

#[test]
fn a_cancelled_generation_ends_in_order_and_leaves_its_state_to_others() {
    let model = tiny();
    let (engine, _alone) = engine(&model, config(1024, 1));
    let whole = generate(&engine, &prompt(50, 0), RequestOptions { cache: false, ..greedy_exactly(900) }).tokens;
    let mut generation = submit(&engine, &prompt(50, 0), greedy_exactly(900));
    let mut tokens = begin(&mut generation);
    engine.cancel(generation.id());
    let (more, summary) = rest(&mut generation);
    tokens.extend(more);
    assert_eq!((summary.reason, summary.timings.generated_tokens), (FinishReason::Cancelled, tokens.len()));
    assert!(tokens.len() < 900 && whole.starts_with(&tokens), "what was generated is what would have been");
    assert!(generation.next().is_none());
    // Prompt and generation are there but for the last token, whoever was cancelled.
    let longer = [prompt(50, 0), tokens.clone()].concat();
    let next = generate(&engine, &longer, greedy_exactly(3));
    assert_eq!(next.timings().cached_tokens, longer.len() - 1);
    assert_eq!(next.tokens, whole[tokens.len()..tokens.len() + 3]);
    // Nobody is there any more.
    engine.cancel(generation.id());
    assert!(!engine.end_thinking(generation.id()));
}

#[test]
fn a_request_that_waits_is_cancelled_without_a_slot() {
    let model = tiny();
    let (engine, _alone) = engine(&model, EngineConfig { max_queue: 4, ..config(1024, 1) });
    let mut first = submit(&engine, &prompt(20, 0), greedy_exactly(400));
    begin(&mut first);
    let mut waiting: Vec<_> = (1..4).map(|i| submit(&engine, &prompt(20, i), greedy_exactly(5))).collect();
    engine.cancel(waiting[1].id());
    let (tokens, summary) = rest(&mut waiting[1]);
    assert!(tokens.is_empty() && summary.reason == FinishReason::Cancelled, "{summary:?}");
    assert_eq!(engine.n_waiting(), 2, "its place in the queue is free");
    engine.cancel(first.id());
    assert_eq!(rest(&mut first).1.reason, FinishReason::Cancelled);
    for i in [0, 2] {
        assert_eq!(rest(&mut waiting[i]).1.reason, FinishReason::Length);
    }
}

#[test]
fn a_prompt_is_cancelled_half_way_and_others_do_not_feel_it() {
    let model = tiny();
    let config = EngineConfig { n_batch: 8, n_batch_shared: 8, ..config(1024, 4) };
    let (engine, _alone) = engine(&model, config);
    let expected: Vec<_> = (0..3)
        .map(|i| generate(&engine, &prompt(20, i), RequestOptions { cache: false, ..greedy_exactly(40) }).tokens)
        .collect();
    for round in 0..20 {
        let mut others: Vec<_> = (0..3).map(|i| submit(&engine, &prompt(20, i), greedy_exactly(40))).collect();
        let mut long = submit(&engine, &prompt(900, 5), greedy_exactly(40));
        // After none, one, two chunks.
        for _ in 0..round % 3 {
            assert!(matches!(long.next(), Some(Event::Prompt(_))));
        }
        engine.cancel(long.id());
        let (tokens, summary) = rest(&mut long);
        assert!(tokens.is_empty() && summary.reason == FinishReason::Cancelled, "{summary:?}");
        for (generation, expected) in others.iter_mut().zip(&expected) {
            assert_eq!(&Completion::read(generation).tokens, expected, "round {round}");
        }
    }
    assert_eq!((n_busy(&engine), engine.n_waiting()), (0, 0), "no slot and no place is lost");
}

#[test]
fn a_reader_that_lags_gets_the_end_of_a_cancelled_generation_too() {
    let model = tiny();
    let (engine, _alone) = engine(&model, config(2048, 1));
    let mut slow = submit(&engine, &prompt(20, 0), greedy_exactly(1500));
    // Its events fill their queue, and the sequence is passed over.
    while engine.stats().expect("it runs").n_tokens < 270 {
        std::thread::yield_now();
    }
    engine.cancel(slow.id());
    // The slot is free before anything is read.
    assert_eq!(generate(&engine, &prompt(20, 3), greedy_exactly(4)).tokens.len(), 4);
    let (tokens, summary) = rest(&mut slow);
    assert_eq!((summary.reason, summary.timings.generated_tokens), (FinishReason::Cancelled, tokens.len()));
}

#[test]
fn thinking_is_ended_where_it_stands_with_drafts_and_without() {
    let model = pocket();
    let vocab = model.vocab();
    let [start, end] = ["<think>", "</think>"].map(|text| vocab.id(text).expect("the model thinks"));
    let thinking = |open| Thinking { max_tokens: usize::MAX, open, start, end, forced: vec![end, TokenId(100)] };
    let prompt = question(&model, "Tell me a short story about a dragon.");
    let (plain, _alone) = engine(&model, config(1024, 1));
    for engine in [&plain, &drafting(&model, config(1024, 1))] {
        let options = RequestOptions { thinking: Some(thinking(true)), ..greedy_exactly(400) };
        let mut generation = submit(engine, &prompt, options);
        let mut tokens = begin(&mut generation);
        assert!(engine.end_thinking(generation.id()));
        assert!(!engine.end_thinking(generation.id()) || !tokens.contains(&end), "it is ended once");
        let (more, summary) = rest(&mut generation);
        tokens.extend(more);
        assert_eq!((summary.reason, tokens.len()), (FinishReason::Length, 400));
        let at = tokens.iter().position(|&token| token == end).expect("the end of thinking");
        assert!(at < 200 && tokens[at + 1] == TokenId(100), "what is forced comes at once");
        // A reply that does not think is left alone.
        let options = RequestOptions { thinking: Some(thinking(false)), ..greedy_exactly(200) };
        let mut generation = submit(engine, &prompt, options.clone());
        begin(&mut generation);
        assert!(!engine.end_thinking(generation.id()));
        drop(generation);
    }
}
