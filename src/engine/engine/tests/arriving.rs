//! Stored sequences that come back into slots between the steps of those that run.

use std::collections::HashMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;
use crate::event::Summary;

/// An engine of two slots in which one sequence of 120 tokens is stored, a generation runs, and a request waits that goes on with
/// the stored one; what was in its slot is too short to be stored.
fn with_a_sequence_that_comes_back() -> (Engine, EngineHandle, [Generation; 2]) {
    let (mut engine, handle, [running, mut other]) = with_a_sequence_that_must_leave();
    run_to_the_end(&mut engine, &mut other);
    let next = submit(&handle, 130);
    step_with_one_part(&mut engine);
    assert!(arriving(&engine).is_some(), "nothing is left to store");
    (engine, handle, [running, next])
}

/// What an engine gives that never had anything else.
fn alone(first: u32, n_prompt: u32, max_tokens: usize) -> Vec<TokenId> {
    let (mut fresh, handle) = engine(2);
    let mut alone = submit_from(&handle, first, n_prompt, max_tokens);
    serve(&mut fresh);
    read(&mut alone).0
}

/// Reads what is there, and gives the summary if that was all.
fn read_some(generation: &mut Generation, tokens: &mut Vec<TokenId>) -> Option<Summary> {
    while let Some(event) = generation.try_next() {
        match event {
            Event::Prompt(_) => {}
            Event::Tokens(pieces) => tokens.extend(pieces.iter().map(|p| p.token)),
            Event::Finished(summary) => return Some(*summary),
            Event::Failed(why) => panic!("{why}"),
        }
    }
    None
}

/// Makes steps until a reply is whole: its tokens, and how many of its prompt were not computed.
fn run_to_the_end(engine: &mut Engine, generation: &mut Generation) -> (Vec<TokenId>, usize) {
    let mut tokens = Vec::new();
    loop {
        if let Some(summary) = read_some(generation, &mut tokens) {
            return (tokens, summary.timings.cached_tokens);
        }
        // With nobody to serve it would wait for a command.
        engine.step();
    }
}

/// The slot that a sequence is on its way to.
fn arriving(engine: &Engine) -> Option<usize> {
    (0..engine.cache.n_slots()).find(|&i| engine.cache.is_arriving(i))
}

#[test]
fn a_stored_sequence_comes_back_between_the_steps_of_those_that_run() {
    let (mut engine, handle, [mut running, mut next]) = with_a_sequence_that_comes_back();
    let (n_before, mut n_waited) = (engine.stats.n_tokens, 0);
    while let Some(slot) = arriving(&engine) {
        assert_eq!((engine.waiting.len(), engine.cache.get(slot).tokens.len()), (1, 0));
        for busy in [
            engine.cache.clear(&mut engine.state.memory, slot).map(drop),
            engine.cache.save(&mut engine.state, slot, Scope::default()).map(drop),
        ] {
            assert!(matches!(busy, Err(SlotError::Busy { .. })), "{busy:?}");
        }
        step_with_one_part(&mut engine);
        n_waited += 1;
    }
    assert!(n_waited > 8, "it waited for {n_waited} steps");
    assert!(engine.stats.n_tokens - n_before >= n_waited, "the one that ran went on meanwhile");
    assert!(engine.waiting.is_empty());
    let (tokens, n_cached) = run_to_the_end(&mut engine, &mut next);
    assert!(n_cached >= 100);
    assert_eq!(tokens, alone(100, 130, 6));
    assert_eq!(run_to_the_end(&mut engine, &mut running).0, alone(400, 20, 200));
    assert_eq!(handle.n_waiting.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn one_that_nobody_waits_for_any_more_goes_back_and_its_slot_is_empty() {
    let (mut engine, handle, [_running, next]) = with_a_sequence_that_comes_back();
    let (slot, stored) = (arriving(&engine).expect("on its way"), engine.cache.stored_bytes());
    step_with_one_part(&mut engine);
    let taken = |engine: &Engine| engine.state.memory.taken_by(&engine.cache.get(slot).slot).expect("in use");
    assert!(taken(&engine) > 0);
    drop(next);
    engine.step();
    assert!(engine.waiting.is_empty() && arriving(&engine).is_none());
    assert_eq!((taken(&engine), engine.cache.get(slot).tokens.len()), (0, 0));
    assert!(engine.cache.stored_bytes() > stored, "it is stored again");
    let mut again = submit(&handle, 130);
    let (tokens, n_cached) = run_to_the_end(&mut engine, &mut again);
    assert!(n_cached >= 100);
    assert_eq!(tokens, alone(100, 130, 6));
}

#[test]
fn another_request_that_is_next_gets_the_slot() {
    let (mut engine, handle, [_running, next]) = with_a_sequence_that_comes_back();
    let slot = arriving(&engine).expect("on its way");
    let mut other = submit_from(&handle, 900, 25, 6);
    drop(next);
    engine.step();
    assert!(arriving(&engine).is_none());
    assert!(engine.sequences.iter().any(|s| s.slot == slot), "nothing was left to store or to bring");
    assert_eq!(run_to_the_end(&mut engine, &mut other).0, alone(900, 25, 6));
}

#[test]
fn when_nobody_runs_any_more_the_rest_comes_at_once() {
    let (mut engine, _handle, [running, mut next]) = with_a_sequence_that_comes_back();
    drop(running);
    engine.step();
    step_with_one_part(&mut engine);
    assert!(arriving(&engine).is_none() && engine.waiting.is_empty());
    assert_eq!(run_to_the_end(&mut engine, &mut next).0, alone(100, 130, 6));
}

#[test]
fn one_whose_slot_was_changed_comes_back_at_once() {
    let (mut engine, _handle, [_running, mut next]) = with_a_sequence_that_comes_back();
    let slot = arriving(&engine).expect("on its way");
    engine.state.memory.reset(&engine.cache.get(slot).slot).expect("cleared");
    step_with_one_part(&mut engine);
    assert!(arriving(&engine).is_none() && engine.waiting.is_empty());
    let (tokens, n_cached) = run_to_the_end(&mut engine, &mut next);
    assert!(n_cached >= 100);
    assert_eq!(tokens, alone(100, 130, 6));
}

/// A request of the test below: what it is, what came of it.
struct Asked {
    prompt: (u32, u32),
    generation: Generation,
    tokens: Vec<TokenId>,
}

impl Asked {
    /// Reads what is there; false when the reply is whole, which is compared then.
    fn goes_on(&mut self, expected: &HashMap<(u32, u32), Vec<TokenId>>, case: &str) -> bool {
        let is_whole = read_some(&mut self.generation, &mut self.tokens).is_some();
        assert!(!is_whole || self.tokens == expected[&self.prompt], "{case}: {:?}", self.prompt);
        !is_whole
    }
}

#[test]
fn whatever_comes_and_goes_in_parts_every_reply_is_what_it_would_be_alone() {
    const N_TOKENS: usize = 60;
    let prompts: Vec<(u32, u32)> =
        [100, 240, 380, 520, 660].into_iter().flat_map(|first| [90, 130].map(|n| (first, n))).collect();
    let expected: HashMap<_, _> = prompts.iter().map(|&(first, n)| ((first, n), alone(first, n, N_TOKENS))).collect();
    let (whole, _) = engine(1);
    let of_one = whole.state.memory.n_bytes();
    for seed in 0..4 {
        println!("seed {seed}");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut below = |n: usize| rng.next_u32() as usize % n;
        let kv_bytes = (seed % 2 == 0).then_some(of_one * 3 / 2);
        let config =
            EngineConfig { n_sequences: 2, store_bytes: 24 << 20, kv_bytes, n_batch: 32, ..Default::default() };
        let (mut engine, handle) = engine_of(config, None);
        let mut asked: Vec<Asked> = Vec::new();
        for step in 0..300 {
            let case = format!("seed {seed}, step {step}");
            if asked.len() < 4 && below(3) == 0 {
                let prompt = prompts[below(prompts.len())];
                let generation = submit_from(&handle, prompt.0, prompt.1, N_TOKENS);
                asked.push(Asked { prompt, generation, tokens: Vec::new() });
            } else if !asked.is_empty() && below(30) == 0 {
                asked.swap_remove(below(asked.len()));
            } else if engine.is_idle() {
                continue;
            }
            (engine.least_part, engine.step_took) = (Duration::from_micros(200), Duration::ZERO);
            engine.step();
            asked.retain_mut(|asked| asked.goes_on(&expected, &case));
        }
        while !engine.is_idle() {
            step_with_one_part(&mut engine);
            asked.retain_mut(|asked| asked.goes_on(&expected, "at the end"));
        }
        assert!(asked.is_empty() && arriving(&engine).is_none());
        assert!((0..2).all(|slot| !engine.cache.is_running(slot)));
    }
}
