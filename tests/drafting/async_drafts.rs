//! The head on a thread of its own: the same answers whatever the hand-overs are delayed by, who goes away, and who fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::sample::SamplingParams;
use engine::{DraftRequest, EngineConfig, Proposer, RequestOptions};
use model::Model;
use speculate::{AsyncProposer, Depth, DraftVocabSize};
use test_support::{
    Completion, Random, Watched, config, generate_all, greedy_exactly, head, open_pocket, question, spawn, submit,
};
use text::TokenId;

/// Rows of Q8_0 have the same bits in any company, so that everything can be compared bit by bit.
const MODEL: &str = "pocket-moe-q8_0.gguf";

const TEXTS: [&str; 4] =
    ["Tell me a story about a robot.", "What is 17 + 25?", "List three planets.", "Write a poem about winter."];

/// The MTP layer on a thread of its own, with something done before each of its works; and how many drafts were there
/// already when they were asked for.
fn beside(
    model: &Arc<Model>,
    config: &EngineConfig,
    depth: Depth,
    drafts_ahead: bool,
    before: impl Fn() + Send + 'static,
) -> (Box<dyn Proposer>, Arc<AtomicUsize>) {
    let ready = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ready);
    let after = move |_: &[DraftRequest], drafts: &[Vec<TokenId>], n_runs| {
        if n_runs == 0 && drafts.iter().any(|draft| !draft.is_empty()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let watched = Watched::new(head(model, config, depth, DraftVocabSize::Full), before, after);
    (Box::new(AsyncProposer::new(watched, model, 1, drafts_ahead).expect("a thread")), ready)
}

/// Requests of which every second one is sampled.
fn requests(model: &Model, max_tokens: usize) -> Vec<(Vec<TokenId>, RequestOptions)> {
    let request = |(i, text): (usize, &&str)| {
        let sampling = SamplingParams { seed: Some(i as u64), ..SamplingParams::default() };
        let options = greedy_exactly(max_tokens);
        (question(model, text), if i % 2 == 0 { options } else { RequestOptions { sampling, ..options } })
    };
    TEXTS.iter().enumerate().map(request).collect()
}

fn plain(model: &Arc<Model>, requests: &[(Vec<TokenId>, RequestOptions)]) -> Vec<Completion> {
    generate_all(&spawn(model, config(192, 1), None), requests.to_vec())
}

fn assert_same(got: &[Completion], expected: &[Completion], what: &str) {
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.tokens, expected.tokens, "{what}, request {i}");
    }
}

fn share(answers: &[Completion]) -> f64 {
    let sum = |of: fn(&Completion) -> usize| answers.iter().map(of).sum::<usize>() as f64;
    sum(|a| a.timings().accepted) / sum(|a| a.timings().drafted)
}

#[test]
fn answers_are_those_of_the_model_and_drafts_as_good_as_between_passes() {
    let model = &open_pocket(MODEL);
    let requests = requests(model, 48);
    let expected = plain(model, &requests);
    for (depth, n_sequences) in
        [(Depth::Fixed(1), 1), (Depth::Fixed(3), 1), (Depth::Fixed(6), 1), (Depth::Fixed(2), 4), (Depth::Auto, 1)]
    {
        let config = config(192, n_sequences);
        let between = Box::new(head(model, &config, depth, DraftVocabSize::Full));
        let fused = generate_all(&spawn(model, config.clone(), Some(between)), requests.clone());
        for drafts_ahead in [false, true] {
            let what = format!("{depth:?}, {n_sequences} sequences, drafts ahead: {drafts_ahead}");
            let (proposer, ready) = beside(model, &config, depth, drafts_ahead, || {});
            let got = generate_all(&spawn(model, config.clone(), Some(proposer)), requests.clone());
            assert_same(&got, &expected, &what);
            if let (Depth::Fixed(_), false) = (depth, drafts_ahead) {
                let of = |answers: &[Completion]| {
                    answers.iter().map(|a| (a.timings().drafted, a.timings().accepted)).collect::<Vec<_>>()
                };
                assert_eq!(of(&got), of(&fused), "{what}: the same drafts");
            } else if let Depth::Fixed(_) = depth {
                // Drafted from drafts, some are worse.
                assert!(share(&got) > share(&fused) - 0.2, "{what}: {} after {}", share(&got), share(&fused));
            }
            let n_ready = ready.load(Ordering::Relaxed);
            match (depth, drafts_ahead) {
                (_, false) => assert_eq!(n_ready, 0, "{what}"),
                (Depth::Fixed(_), true) => assert!(n_ready > 0, "{what}: no draft came in time"),
                (Depth::Auto, true) => {}
            }
        }
    }
}

#[test]
fn delays_and_readers_that_go_away_change_no_other_answer() {
    let model = &open_pocket(MODEL);
    let requests = requests(model, 40);
    let expected = plain(model, &requests);
    for seed in 0..6 {
        let config = EngineConfig { max_queue: 32, ..config(192, 3) };
        let random = Mutex::new(Random::new(seed));
        let delay = move || {
            let wait = random.lock().expect("no test panics with it").below(4);
            match wait {
                0 => {}
                1 => std::thread::yield_now(),
                n => std::thread::sleep(Duration::from_micros(300 * n as u64)),
            }
        };
        let (proposer, _) = beside(model, &config, Depth::Fixed(1 + seed as usize % 4), seed % 2 == 0, delay);
        let engine = spawn(model, config, Some(proposer));
        let mut random = Random::new(100 + seed);
        let mut running = Vec::new();
        let mut n_left = 0;
        for round in 0..14 {
            let i = random.below(requests.len());
            let (prompt, options) = requests[i].clone();
            running.push((i, submit(&engine, &prompt, options)));
            // Some read a little, some go away in the middle.
            if round % 3 == 2 {
                let gone = random.below(running.len());
                let (_, mut generation) = running.swap_remove(gone);
                for _ in 0..random.below(12) {
                    generation.next();
                }
                n_left += 1;
            }
        }
        for (i, mut generation) in running {
            assert_eq!(Completion::read(&mut generation).tokens, expected[i].tokens, "seed {seed}, request {i}");
        }
        assert!(n_left > 0);
        // The engine ends with drafts under way.
        let (prompt, options) = requests[0].clone();
        submit(&engine, &prompt, options).next();
        drop(engine);
    }
}

#[test]
fn a_draft_thread_that_fails_leaves_plain_decoding() {
    let model = &open_pocket(MODEL);
    let requests = requests(model, 40);
    let expected = plain(model, &requests);
    for n_works in [0, 1, 9] {
        let config = config(192, 2);
        let left = AtomicUsize::new(n_works);
        let fail = move || {
            let left = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            assert!(left.is_ok(), "as this test wants it");
        };
        let (proposer, _) = beside(model, &config, Depth::Fixed(2), true, fail);
        let got = generate_all(&spawn(model, config, Some(proposer)), requests.clone());
        assert_same(&got, &expected, &format!("after {n_works} works"));
    }
}

#[test]
fn a_warm_up_reaches_the_thread_and_drafts_there_before_the_first_request() {
    let model = &open_pocket(MODEL);
    for warm_up in [false, true] {
        let config = EngineConfig { warm_up: Some(warm_up), ..config(192, 1) };
        let drafts = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&drafts);
        let after = move |requests: &[DraftRequest], made: &[Vec<TokenId>], _| {
            assert!(requests.iter().all(|r| r.warm_up), "nobody has asked for anything yet");
            seen.lock().expect("no test panics with it").extend(made.iter().map(Vec::len));
        };
        let watched = Watched::new(head(model, &config, Depth::Auto, DraftVocabSize::Full), || {}, after);
        let proposer = AsyncProposer::new(watched, model, 1, false).expect("a thread");
        let _engine = spawn(model, config, Some(Box::new(proposer)));
        let drafts = drafts.lock().expect("no test panics with it");
        assert_eq!(drafts.contains(&1), warm_up, "lengths of drafts: {drafts:?}");
    }
}
