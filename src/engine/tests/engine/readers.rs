//! Readers that are slow, gone or too many: none of them holds up another, and none is left without an end.
//!
//! A reader may be 256 events behind before its sequence is passed over (`handle.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{EngineConfig, EngineHandle, Event, GenerateRequest, SubmitError};
use test_support::*;
use text::TokenId;

use crate::n_computed;

const STORY: &str = "Tell me a short story about a dragon.";
/// Events that wait for a reader at most.
const EVENT_QUEUE: u64 = 256;

/// Asks the engine until `done`; a minute without is a hang.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::yield_now();
    }
}

/// A request that is not read, once it has run as far as it may: its prompt is one event, so 255 tokens are waiting in
/// the channel and one in the engine, the last of them not computed yet.
fn stuck(engine: &EngineHandle, prompt: &[TokenId]) -> engine::Generation {
    let before = n_computed(engine);
    let generation = submit(engine, prompt, greedy_exactly(600));
    until("a reader lags behind", || n_computed(engine) - before == prompt.len() as u64 + EVENT_QUEUE - 1);
    generation
}

#[test]
fn a_slow_reader_holds_up_nobody_and_loses_nothing() {
    let model = pocket();
    let prompt = question(&model, STORY);
    let (engine, _alone) = engine(&model, config(1024, 2));
    let expected = generate(&engine, &prompt, greedy_exactly(600)).tokens;
    let mut slow = submit(&engine, &prompt, greedy_exactly(600));
    let before = n_computed(&engine);
    for _ in 0..3 {
        assert_eq!(generate(&engine, &question(&model, "Who are you?"), greedy_exactly(200)).tokens.len(), 200);
    }
    let n_others = n_computed(&engine) - before;
    assert!(n_others < 4 * 300 + EVENT_QUEUE, "{n_others} rows: the slow reader's sequence went on by itself");
    let answer = Completion::read(&mut slow);
    assert_eq!(answer.tokens.len(), 600);
    // The passes shared with others add up in another order, so only as far as it was alone for sure.
    assert_eq!(answer.tokens[0], expected[0]);
    assert_eq!(answer.timings().generated_tokens, 600);
}

#[test]
fn a_sequence_that_waits_for_its_reader_computes_nothing_and_then_all_of_it() {
    let model = pocket();
    let prompt = question(&model, STORY);
    let (engine, _alone) = engine(&model, config(1024, 1));
    let expected = generate(&engine, &prompt, greedy_exactly(600)).tokens;
    let mut slow = stuck(&engine, &prompt);
    let (rows, steps) = (n_computed(&engine), engine.stats().expect("it runs").n_steps);
    for _ in 0..50 {
        assert_eq!((n_computed(&engine), engine.stats().expect("it runs").n_steps), (rows, steps));
    }
    assert_eq!(Completion::read(&mut slow).tokens, expected);
}

#[test]
fn a_complete_answer_that_nobody_reads_keeps_no_sequence() {
    let model = pocket();
    let prompt = question(&model, STORY);
    let (engine, _alone) = engine(&model, config(1024, 1));
    // One event of the prompt and 256 tokens: the last one and the end do not fit into the channel.
    let mut slow = submit(&engine, &prompt, greedy_exactly(EVENT_QUEUE as usize));
    let other = generate(&engine, &prompt, greedy_exactly(5));
    let answer = Completion::read(&mut slow);
    assert_eq!(answer.tokens.len(), EVENT_QUEUE as usize);
    assert_eq!(other.tokens, answer.tokens[..5]);
}

#[test]
fn a_lost_reader_gives_its_sequence_back() {
    let model = pocket();
    let prompt = question(&model, STORY);
    let (engine, _alone) = engine(&model, config(1024, 1));
    // While it runs, and while it waits for its reader.
    let mut running = submit(&engine, &prompt, greedy_exactly(900));
    assert!(matches!(running.next(), Some(Event::Prompt(_))));
    assert!(matches!(running.next(), Some(Event::Tokens(_))));
    drop(running);
    assert_eq!(generate(&engine, &prompt, greedy_exactly(3)).tokens.len(), 3);
    drop(stuck(&engine, &prompt));
    assert_eq!(generate(&engine, &prompt, greedy_exactly(3)).tokens.len(), 3);
    let rows = n_computed(&engine);
    assert_eq!(n_computed(&engine), rows, "nothing is computed for those who left");
}

#[test]
fn others_go_on_when_one_is_cancelled() {
    let model = pocket();
    let prompt = question(&model, STORY);
    // Fused attention and passes of a few rows: see `greedy.rs` on bits in company.
    let alike =
        EngineConfig { n_batch: 7, n_batch_shared: 3, flash_attention: engine::FlashAttention::On, ..config(1024, 3) };
    let (engine, _alone) = engine(&model, alike);
    let expected = generate(&engine, &prompt, greedy_exactly(120)).tokens;
    let mut one = submit(&engine, &prompt, greedy_exactly(120));
    let two = submit(&engine, &question(&model, "Who are you?"), greedy_exactly(600));
    let mut three = submit(&engine, &prompt, greedy_exactly(120));
    let Some(Event::Prompt(progress)) = three.next() else { panic!("the prompt comes first") };
    drop(two);
    assert_eq!(Completion::read(&mut one).tokens, expected);
    assert_eq!(Completion::read_on(&mut three, vec![progress]).tokens, expected);
}

#[test]
fn places_are_reserved_all_or_none_and_count_as_waiting() {
    let model = pocket();
    let prompt = question(&model, STORY);
    let (engine, _alone) = engine(&model, EngineConfig { max_queue: 3, ..config(1024, 1) });
    let request =
        || GenerateRequest::new(prompt.clone(), greedy_exactly(2), engine.limits()).expect("within the limits");
    let mut two = engine.reserve(2).expect("room for two");
    let full = engine.reserve(2).expect_err("room for one");
    assert!(matches!(full, SubmitError::Full { n_waiting: 2, max_queue: 3 }), "{full}");
    assert_eq!(engine.n_waiting(), 2, "none of them was taken");
    assert!(matches!(engine.reserve(4), Err(SubmitError::TooMany { n: 4, max_queue: 3 })), "never");
    let third = engine.reserve(1).expect("room for one");
    assert!(matches!(engine.submit(request()), Err(SubmitError::Full { .. })));
    // A place that is not used comes back; one that is used leads to a generation.
    drop(third);
    let mut answer = two.pop().expect("two").submit(request()).expect("it has its place");
    drop(two);
    assert_eq!(Completion::read(&mut answer).tokens.len(), 2);
    assert_eq!(engine.n_waiting(), 0);
}

#[test]
fn a_full_queue_says_so_and_places_come_back() {
    let model = pocket();
    let prompt = question(&model, STORY);
    let (engine, _alone) = engine(&model, EngineConfig { max_queue: 2, ..config(1024, 1) });
    let request =
        || GenerateRequest::new(prompt.clone(), greedy_exactly(2), engine.limits()).expect("within the limits");
    for round in 0..3 {
        let first = stuck(&engine, &prompt);
        let cancelled = engine.submit(request()).expect("the first place");
        let mut second = engine.submit(request()).expect("the second place");
        for _ in 0..3 {
            let full = engine.submit(request()).expect_err("no third place");
            assert!(matches!(full, SubmitError::Full { n_waiting: 2, max_queue: 2 }), "round {round}: {full}");
        }
        // One that leaves the queue unserved makes room, without any sequence becoming free.
        drop(cancelled);
        let mut third = None;
        until("the place of a cancelled request", || {
            third = engine.submit(request()).ok();
            third.is_some()
        });
        assert!(second.try_next().is_none(), "the first still has the only sequence");
        drop(first);
        assert_eq!(Completion::read(&mut second).tokens.len(), 2);
        assert_eq!(Completion::read(&mut third.expect("submitted")).tokens.len(), 2);
    }
}

#[test]
fn without_handles_the_engine_finishes_and_ends() {
    let model = own_pocket();
    let prompt = question(&model, STORY);
    let (engine, _alone) = engine(&model, config(1024, 2));
    let copy = engine.clone();
    let mut running: Vec<_> = (0..4).map(|_| submit(&engine, &prompt, greedy_exactly(300))).collect();
    let n_users = Arc::strong_count(&model);
    drop(engine);
    assert!(copy.stats().is_ok(), "one handle is left");
    drop(copy);
    for generation in &mut running {
        assert_eq!(Completion::read(generation).tokens.len(), 300);
    }
    // State and runner of the thread hold the model too.
    until("the thread lets go of the model", || Arc::strong_count(&model) + 4 <= n_users);
}

#[test]
fn an_engine_without_handles_ends_when_its_last_reader_leaves() {
    let model = own_pocket();
    let prompt = question(&model, STORY);
    let (engine, _alone) = engine(&model, config(1024, 1));
    let n_users = Arc::strong_count(&model);
    let slow = stuck(&engine, &prompt);
    drop(engine);
    drop(slow);
    until("the thread lets go of the model", || Arc::strong_count(&model) + 3 <= n_users);
}

#[test]
fn a_request_for_another_engine_is_refused() {
    let model = pocket();
    let (engine, _alone) = engine(&model, config(1024, 1));
    let limits = engine::Limits { n_ctx: 4096, ..engine.limits() };
    let request = GenerateRequest::new(question(&model, STORY), greedy(1), limits).expect("within those limits");
    let refused = engine.submit(request).expect_err("refused").to_string();
    assert!(refused.contains("4096") && refused.contains("1024"), "{refused}");
}
