//! The head on a thread of its own: the same answers whatever the hand-overs are delayed by, who goes away, and who fails.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::sample::SamplingParams;
use engine::{Ask, EngineConfig, Event, GenerateRequest, Observed, Proposer, RequestOptions};
use model::{Model, RunError, Runner};
use speculate::{Aside, Depth, DraftVocabSize, GuessOn, NextN, NextNConfig};
use support::answers::{Answer, answers, chat, config, greedy, pocket, spawn};
use support::tiny::Rng;
use text::TokenId;

/// Rows of Q8_0 have the same bits in any company, so that everything can be compared bit by bit.
const MODEL: &str = "pocket-moe-q8_0.gguf";

const TEXTS: [&str; 4] =
    ["Tell me a story about a robot.", "What is 17 + 25?", "List three planets.", "Write a poem about winter."];

/// The head, with something done before each of its works.
struct Watched {
    head: NextN,
    before: Arc<dyn Fn() + Send + Sync>,
    /// Drafts that were there already when they were asked for.
    ready: Arc<AtomicUsize>,
}

impl Watched {
    fn new(model: &Arc<Model>, config: &EngineConfig, depth: Depth) -> Self {
        let of_head = NextNConfig { depth, vocab: DraftVocabSize::Full };
        let head = NextN::new(model, config, of_head).expect("room for the head's cells").expect("a head");
        Self { head, before: Arc::new(|| {}), ready: Arc::default() }
    }
}

impl Proposer for Watched {
    fn max_depth(&self) -> usize {
        self.head.max_depth()
    }

    fn wants_hidden(&self) -> bool {
        self.head.wants_hidden()
    }

    fn begin(&mut self, slot: usize, tokens: &[TokenId], hidden: Option<&[f32]>) -> Result<(), RunError> {
        self.head.begin(slot, tokens, hidden)
    }

    fn hidden(&self, slot: usize) -> Option<&[f32]> {
        self.head.hidden(slot)
    }

    fn observe(&mut self, runner: &mut Runner, seen: &[Observed<'_>], took: Option<Duration>) -> Result<(), RunError> {
        (self.before)();
        self.head.observe(runner, seen, took)
    }

    fn propose(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        (self.before)();
        let n_runs = runner.stats().n_runs;
        let drafts = self.head.propose(runner, asks)?;
        if runner.stats().n_runs == n_runs && drafts.iter().any(|d| !d.is_empty()) {
            self.ready.fetch_add(1, Ordering::Relaxed);
        }
        Ok(drafts)
    }
}

impl GuessOn for Watched {
    fn prepare(&mut self) {
        self.head.prepare();
    }

    fn guess_on(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<(), RunError> {
        (self.before)();
        self.head.guess_on(runner, asks)
    }
}

fn aside(model: &Arc<Model>, head: Watched, guesses_on: bool) -> Box<dyn Proposer> {
    Box::new(Aside::new(head, model, 1, guesses_on).expect("a thread"))
}

/// Requests of which every second one is sampled.
fn requests(model: &Model, max_tokens: usize) -> Vec<(Vec<TokenId>, RequestOptions)> {
    let request = |(i, text): (usize, &&str)| {
        let sampling = SamplingParams { seed: Some(i as u64), ..SamplingParams::default() };
        let options = greedy(max_tokens);
        (chat(model, text), if i % 2 == 0 { options } else { RequestOptions { sampling, ..options } })
    };
    TEXTS.iter().enumerate().map(request).collect()
}

fn plain(model: &Arc<Model>, requests: &[(Vec<TokenId>, RequestOptions)]) -> Vec<Answer> {
    answers(&spawn(model, config(192, 1), None), requests.to_vec())
}

fn assert_same(got: &[Answer], expected: &[Answer], what: &str) {
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.tokens, expected.tokens, "{what}, request {i}");
    }
}

fn share(answers: &[Answer]) -> f64 {
    let sum = |of: fn(&Answer) -> usize| answers.iter().map(of).sum::<usize>() as f64;
    sum(|a| a.timings.accepted) / sum(|a| a.timings.drafted)
}

#[test]
fn answers_are_those_of_the_model_and_drafts_as_good_as_between_passes() {
    let model = &pocket(MODEL);
    let requests = requests(model, 48);
    let expected = plain(model, &requests);
    for (depth, n_sequences) in
        [(Depth::Fixed(1), 1), (Depth::Fixed(3), 1), (Depth::Fixed(6), 1), (Depth::Fixed(2), 4), (Depth::Auto, 1)]
    {
        let config = config(192, n_sequences);
        let between = Box::new(Watched::new(model, &config, depth));
        let fused = answers(&spawn(model, config.clone(), Some(between)), requests.clone());
        for guesses_on in [false, true] {
            let what = format!("{depth:?}, {n_sequences} sequences, guesses on: {guesses_on}");
            let head = Watched::new(model, &config, depth);
            let ready = Arc::clone(&head.ready);
            let got = answers(&spawn(model, config.clone(), Some(aside(model, head, guesses_on))), requests.clone());
            assert_same(&got, &expected, &what);
            if let (Depth::Fixed(_), false) = (depth, guesses_on) {
                let of = |answers: &[Answer]| {
                    answers.iter().map(|a| (a.timings.drafted, a.timings.accepted)).collect::<Vec<_>>()
                };
                assert_eq!(of(&got), of(&fused), "{what}: the same drafts");
            } else if let Depth::Fixed(_) = depth {
                // Guessed from guesses, some are worse.
                assert!(share(&got) > share(&fused) - 0.2, "{what}: {} after {}", share(&got), share(&fused));
            }
            let n_ready = ready.load(Ordering::Relaxed);
            match (depth, guesses_on) {
                (_, false) => assert_eq!(n_ready, 0, "{what}"),
                (Depth::Fixed(_), true) => assert!(n_ready > 0, "{what}: no guess came in time"),
                (Depth::Auto, true) => {}
            }
        }
    }
}

#[test]
fn delays_and_readers_that_go_away_change_no_other_answer() {
    let model = &pocket(MODEL);
    let requests = requests(model, 40);
    let expected = plain(model, &requests);
    for seed in 0..6 {
        let config = EngineConfig { max_queue: 32, ..config(192, 3) };
        let mut head = Watched::new(model, &config, Depth::Fixed(1 + seed as usize % 4));
        let rng = Mutex::new(Rng::new(seed));
        head.before = Arc::new(move || {
            let wait = rng.lock().expect("no test panics with it").below(4);
            match wait {
                0 => {}
                1 => std::thread::yield_now(),
                n => std::thread::sleep(Duration::from_micros(300 * n as u64)),
            }
        });
        let engine = spawn(model, config, Some(aside(model, head, seed % 2 == 0)));
        let mut rng = Rng::new(100 + seed);
        let mut running = Vec::new();
        let mut n_left = 0;
        for round in 0..14 {
            let i = rng.below(requests.len());
            let (prompt, options) = requests[i].clone();
            let request = GenerateRequest::new(prompt, options, engine.limits()).expect("a request that fits");
            running.push((i, engine.submit(request).expect("a place in the queue"), Vec::new()));
            // Some read a little, some go away in the middle.
            if round % 3 == 2 {
                let gone = rng.below(running.len());
                let (_, mut generation, _) = running.swap_remove(gone);
                for _ in 0..rng.below(12) {
                    generation.next();
                }
                n_left += 1;
            }
        }
        for (i, mut generation, mut tokens) in running {
            while let Some(event) = generation.next() {
                match event {
                    Event::Tokens(pieces) => tokens.extend(pieces.iter().map(|p| p.token)),
                    Event::Failed(why) => panic!("seed {seed}: {why}"),
                    Event::Prompt(_) | Event::Finished(_) => {}
                }
            }
            assert_eq!(tokens, expected[i].tokens, "seed {seed}, request {i}");
        }
        assert!(n_left > 0);
        // The engine ends with drafts under way.
        let (prompt, options) = requests[0].clone();
        let request = GenerateRequest::new(prompt, options, engine.limits()).expect("a request that fits");
        let mut generation = engine.submit(request).expect("a place in the queue");
        generation.next();
        drop(engine);
    }
}

#[test]
fn a_draft_thread_that_fails_leaves_plain_decoding() {
    let model = &pocket(MODEL);
    let requests = requests(model, 40);
    let expected = plain(model, &requests);
    for n_works in [0, 1, 9] {
        let config = config(192, 2);
        let mut head = Watched::new(model, &config, Depth::Fixed(2));
        let left = AtomicUsize::new(n_works);
        head.before = Arc::new(move || {
            let left = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            assert!(left.is_ok(), "as this test wants it");
        });
        let got = answers(&spawn(model, config, Some(aside(model, head, true))), requests.clone());
        assert_same(&got, &expected, &format!("after {n_works} works"));
    }
}
