//! Two hundred random requests at once: all are answered or were cancelled, nothing hangs, nothing grows.

use std::collections::VecDeque;

use engine::sample::SamplingParams;
use engine::{EngineConfig, Event, FinishReason, GenerateRequest, RequestOptions};
use test_support::*;
use text::{Special, TokenId};

const SEED: u64 = 20_260_417;
const N_REQUESTS: usize = 200;

#[test]
fn two_hundred_random_requests_are_all_answered() {
    let model = pocket();
    let config = EngineConfig { n_ctx: Some(200), n_batch: 48, n_batch_shared: 16, max_queue: 8, ..config(1024, 3) };
    let (engine, _alone) = engine(&model, config);
    println!("seed {SEED}");
    // Two streams: how often a queue is full depends on time, and what is asked for must not.
    let (mut random, mut fate) = (Random::new(SEED), Random::new(SEED + 1));
    let sea = "The ship sails on the wide blue sea, and the captain counts the stars. ".repeat(12);
    let words = model.vocab().encode(&sea, Special::Plain);
    let before = engine.stats().expect("it runs");
    let mut running = VecDeque::new();
    let (mut n_done, mut n_cancelled, mut n_full) = (0, 0, 0);
    let (mut n_stopped, mut n_by_context) = (0, 0);
    let mut finish = |mut generation: engine::Generation, random: &mut Random, n_max: usize| {
        if random.below(5) == 0 {
            // Cancelled after a few events, or before the first.
            (0..random.below(4)).for_each(|_| drop(generation.next()));
            n_cancelled += 1;
            return;
        }
        let progress = match generation.next() {
            Some(Event::Prompt(progress)) => vec![progress],
            other => panic!("the prompt comes first: {other:?}"),
        };
        let answer = Completion::read_on(&mut generation, progress);
        assert!((1..=n_max).contains(&answer.tokens.len()), "{} of {n_max} tokens", answer.tokens.len());
        n_stopped += usize::from(matches!(answer.reason(), FinishReason::Stop(_)));
        n_by_context += usize::from(*answer.reason() == FinishReason::Context);
        n_done += 1;
    };
    for _ in 0..N_REQUESTS {
        let start = random.below(3) * 10;
        let longest = if random.below(8) == 0 { 199 } else { 60 };
        let n_prompt = 1 + random.below(longest);
        let prompt: Vec<TokenId> = words[start..start + n_prompt.min(words.len() - start)].to_vec();
        let stops = if random.below(4) == 0 { vec!["a".to_owned(), " the".to_owned()] } else { Vec::new() };
        let options = RequestOptions {
            max_tokens: (random.below(4) > 0).then(|| 1 + random.below(24)),
            sampling: SamplingParams { seed: Some(random.below(9) as u64), ..SamplingParams::default() },
            stops,
            ignore_eos: random.below(2) == 0,
            logprobs: (random.below(6) == 0).then_some(3),
            checkpoint_boundaries: if n_prompt > 20 { vec![10, 20] } else { Vec::new() },
            cache: random.below(6) > 0,
            ..RequestOptions::default()
        };
        let request = GenerateRequest::new(prompt, options, engine.limits()).expect("within the limits");
        let n_max = request.max_tokens();
        loop {
            match engine.submit(request.clone()) {
                Ok(generation) => break running.push_back((generation, n_max)),
                Err(engine::SubmitError::Full { .. }) => {
                    n_full += 1;
                    let (generation, n_max) = running.pop_front().expect("a full queue means that some are running");
                    finish(generation, &mut fate, n_max);
                }
                Err(error) => panic!("{error}"),
            }
        }
        if running.len() > 6 && fate.below(3) == 0 {
            let (generation, n_max) = running.remove(fate.below(running.len())).expect("below the length");
            finish(generation, &mut fate, n_max);
        }
    }
    for (generation, n_max) in running {
        finish(generation, &mut fate, n_max);
    }
    println!(
        "{n_done} done ({n_stopped} by stops, {n_by_context} by the context), {n_cancelled} cancelled, {n_full} full"
    );
    assert_eq!(n_done + n_cancelled, N_REQUESTS);
    assert!(n_done > 100 && n_cancelled > 10 && n_stopped > 10 && n_by_context > 0 && n_full > 0);

    let after = engine.stats().expect("it runs");
    assert_eq!(after.state_bytes, before.state_bytes);
    assert_eq!(after.compute_bytes, before.compute_bytes, "the room made at the start is enough for every step");
    assert!(after.compute <= after.step && after.n_tokens >= after.n_steps);
    // Every sequence and every place in the queue is free again, once the engine has seen what was cancelled last.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while engine.n_waiting() > 0 {
        assert!(std::time::Instant::now() < patience, "{} requests wait for ever", engine.n_waiting());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let prompt = words[..20].to_vec();
    let mut all: Vec<_> = (0..8).map(|_| submit(&engine, &prompt, greedy_exactly(12))).collect();
    assert!(all.iter_mut().all(|g| Completion::read(g).tokens.len() == 12));
}
