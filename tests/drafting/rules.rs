//! Drafts change nothing that a reader sees: tokens, text, log probabilities, ends, and what comes after.

use std::sync::Arc;

use engine::sample::SamplingParams;
use engine::{EngineConfig, FinishReason, Proposer, RequestOptions};
use model::Model;
use speculate::{Depth, DraftVocabSize};
use test_support::{
    Completion, Liar, MAX_DEPTH, Random, Script, config, every_draft, generate, generate_all, greedy_exactly, head,
    open_pocket, question, spawn,
};
use text::TokenId;

/// Rows of Q8_0 have the same bits in any company, so that everything can be compared bit by bit.
const MODEL: &str = "pocket-moe-q8_0.gguf";

/// Greedy, with log probabilities.
fn greedy(max_tokens: usize) -> RequestOptions {
    RequestOptions { logprobs: Some(3), ..greedy_exactly(max_tokens) }
}

/// Plain answers, one engine for all.
fn plain(model: &Arc<Model>, n_ctx: usize, requests: &[(Vec<TokenId>, RequestOptions)]) -> Vec<Completion> {
    generate_all(&spawn(model, config(n_ctx, 1), None), requests.to_vec())
}

#[test]
fn every_depth_and_every_number_of_right_drafts_leaves_answer_and_state_as_they_were() {
    let model = &open_pocket(MODEL);
    let prompt = question(model, "Tell me a short story about a dragon.");
    let options = greedy(110);
    let engine = spawn(model, config(256, 1), None);
    let expected = generate(&engine, &prompt, options.clone());

    let known = vec![(prompt.clone(), expected.tokens.clone())];
    let (script, tally) = Script::new(known, every_draft(), 1);
    let scripted = spawn(model, config(256, 1), Some(Box::new(script)));
    let got = generate(&scripted, &prompt, options.clone());
    assert_eq!(got.seen(), expected.seen());
    {
        let tally = tally.lock().expect("the engine waits");
        let missing: Vec<_> = every_draft().into_iter().filter(|d| !tally.seen.contains_key(d)).collect();
        assert!(missing.is_empty(), "drafts that were never made: {missing:?}");
        assert_eq!((got.timings().drafted, got.timings().accepted), (tally.drafted, tally.right));
    }

    // The state after drafts that were kept and dropped goes on as that of plain decoding does.
    let follow_up = [&prompt[..], &expected.tokens, &question(model, "What is the dragon called?")].concat();
    let (a, b) = (generate(&engine, &follow_up, greedy(20)), generate(&scripted, &follow_up, greedy(20)));
    assert_eq!(a.seen(), b.seen());
    assert!(a.timings().cached_tokens > prompt.len(), "{:?}", a.timings());
    assert_eq!(a.timings().cached_tokens, b.timings().cached_tokens);
}

#[test]
fn answers_end_where_they_end_without_drafts() {
    let model = &open_pocket(MODEL);
    let prompt = question(model, "What is 17 + 25?");
    let whole = generate(&spawn(model, config(128, 1), None), &prompt, greedy(40));
    // All right, as long as possible: every end falls inside a draft for some of the requests.
    let known = vec![(prompt.clone(), whole.tokens.clone())];
    let mut requests: Vec<(Vec<TokenId>, RequestOptions)> =
        (1..=2 * MAX_DEPTH + 3).map(|n| (prompt.clone(), greedy(n))).collect();
    // The model's own end, somewhere in the middle of what is drafted.
    requests.push((prompt.clone(), RequestOptions { ignore_eos: false, ..greedy(40) }));
    // Stop strings that begin and end anywhere in the text.
    let text = String::from_utf8_lossy(&whole.bytes()).into_owned();
    let chars: Vec<char> = text.chars().take(24).collect();
    for (at, n) in [(0, 1), (1, 3), (4, 2), (6, 5), (9, 1), (12, 4), (15, 6)] {
        let stop: String = chars[at.min(chars.len() - n)..][..n].iter().collect();
        requests.push((prompt.clone(), RequestOptions { stops: vec![stop, "never said".into()], ..greedy(40) }));
    }
    let expected = plain(model, 128, &requests);
    let (script, _) = Script::new(known.clone(), vec![(MAX_DEPTH, MAX_DEPTH)], 1);
    let got = generate_all(&spawn(model, config(128, 1), Some(Box::new(script))), requests.clone());
    for ((a, b), (_, options)) in expected.iter().zip(&got).zip(&requests) {
        assert_eq!(a.seen(), b.seen(), "max {:?}, stops {:?}", options.max_tokens, options.stops);
        assert_eq!(a.timings().generated_tokens, b.timings().generated_tokens);
        assert!(b.tokens.len() < 4 || b.timings().steps < a.timings().steps, "drafts were used: {:?}", b.timings());
    }
    let ends = |is: fn(&FinishReason) -> bool| expected.iter().filter(|a| is(a.reason())).count();
    assert_eq!(ends(|r| matches!(r, FinishReason::Length)), 2 * MAX_DEPTH + 3);
    assert_eq!(ends(|r| matches!(r, FinishReason::EndOfGeneration(_))), 1);
    assert_eq!(ends(|r| matches!(r, FinishReason::Stop(_))), 7);

    // The context's end, at every distance from the prompt.
    for room in 1..=MAX_DEPTH + 2 {
        let n_ctx = prompt.len() + room;
        let request = [(prompt.clone(), RequestOptions { max_tokens: None, ..greedy(1) })];
        let expected = plain(model, n_ctx, &request);
        let (script, _) = Script::new(known.clone(), vec![(MAX_DEPTH, MAX_DEPTH)], 1);
        let got = generate_all(&spawn(model, config(n_ctx, 1), Some(Box::new(script))), request.to_vec());
        assert_eq!(got[0].seen(), expected[0].seen(), "{room} tokens of room");
        assert_eq!((got[0].reason().clone(), got[0].tokens.len()), (FinishReason::Context, room));
    }
}

#[test]
fn drafts_that_are_too_short_are_not_used() {
    let model = &open_pocket(MODEL);
    let prompt = question(model, "Tell me a short story about a dragon.");
    let expected = generate(&spawn(model, config(256, 1), None), &prompt, greedy(60));
    let known = vec![(prompt.clone(), expected.tokens.clone())];
    let lengths = (1..=MAX_DEPTH).map(|n| (n, n)).collect();
    let (script, tally) = Script::new(known, lengths, 1);
    let engine = spawn(model, config(256, 1), Some(Box::new(script)));
    let got = generate(&engine, &prompt, RequestOptions { min_draft: 3, ..greedy(60) });
    assert_eq!(got.seen(), expected.seen());
    let by_depth = &got.timings().drafted_by_depth;
    assert!(by_depth[2] > 0 && by_depth[0] == by_depth[2], "no draft is shorter than 3: {by_depth:?}");
    assert!(tally.lock().expect("the engine waits").drafted > got.timings().drafted, "shorter ones were made");
    let none = generate(&engine, &prompt, RequestOptions { min_draft: 3, max_draft: Some(2), ..greedy(60) });
    assert_eq!((none.timings().drafted, none.seen().0), (0, expected.seen().0));
}

#[test]
fn sequences_with_drafts_of_different_lengths_do_not_disturb_each_other() {
    let model = &open_pocket(MODEL);
    let texts =
        ["What is 17 + 25?", "List three planets.", "Write a function that adds two numbers.", "Tell me a joke."];
    let request = |(i, text): (usize, &&str)| {
        let sampling = SamplingParams { seed: Some(i as u64), ..SamplingParams::default() };
        let options = greedy(48);
        // Every second one is sampled.
        (question(model, text), if i % 2 == 0 { options } else { RequestOptions { sampling, ..options } })
    };
    let requests: Vec<_> = texts.iter().enumerate().map(request).collect();
    let expected = plain(model, 128, &requests);

    let known = requests.iter().zip(&expected).map(|((prompt, _), a)| (prompt.clone(), a.tokens.clone())).collect();
    let mut plan = every_draft();
    // Neighbours that differ.
    plan.sort_by_key(|(n, right)| (7 * n + 5 * right) % 9);
    let (script, tally) = Script::new(known, plan, 4);
    let liar = Liar { random: Random::new(7), n_vocab: model.hparams().n_vocab };
    for proposer in [Box::new(script) as Box<dyn Proposer>, Box::new(liar)] {
        let got = generate_all(&spawn(model, config(128, 4), Some(proposer)), requests.clone());
        for (i, (a, b)) in expected.iter().zip(&got).enumerate() {
            assert_eq!(a.seen(), b.seen(), "{}", texts[i]);
        }
    }
    assert!(tally.lock().expect("the engine is gone").right > 50);
}

fn boxed(model: &Arc<Model>, config: &EngineConfig, depth: Depth) -> Box<dyn Proposer> {
    Box::new(head(model, config, depth, DraftVocabSize::First(500)))
}

#[test]
fn a_warm_up_leaves_nothing_behind() {
    let model = open_pocket("pocket-q4_k_m.gguf");
    let request = (question(&model, "Tell me a joke."), greedy(60));
    for depth in [Depth::Fixed(0), Depth::Fixed(2), Depth::Auto] {
        let run = |warm_up| {
            let config = EngineConfig { warm_up: Some(warm_up), ..config(256, 2) };
            let proposer = (depth != Depth::Fixed(0)).then(|| boxed(&model, &config, depth));
            let engine = spawn(&model, config, proposer);
            let stats = engine.stats().expect("it runs");
            let slots = engine.slots().expect("it runs");
            let answer = generate(&engine, &request.0, request.1.clone());
            (stats, slots, answer)
        };
        let ((cold, _, plain), (warm, slots, answer)) = (run(false), run(true));
        assert_eq!(cold.n_launches, 0);
        assert!(warm.n_launches > 3 && warm.n_builds > cold.n_builds, "nothing was computed: {warm:?}");
        assert_eq!((warm.n_steps, warm.n_tokens), (0, 0));
        assert!(slots.iter().all(|s| s.n_tokens == 0 && s.work.is_none()), "{slots:?}");
        assert_eq!(plain.seen(), answer.seen());
        assert_eq!(answer.timings().cached_tokens, 0);
        if let Depth::Fixed(_) = depth {
            assert_eq!(plain.timings().drafted, answer.timings().drafted);
            assert_eq!(plain.timings().accepted, answer.timings().accepted);
        }
    }
}
