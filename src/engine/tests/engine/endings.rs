//! How generations end, and what comes with them: stop strings, lengths, the context, end of generation, log probabilities,
//! seeds.

use engine::sample::SamplingParams;
use engine::{EngineConfig, FinishReason, GenerateRequest, RequestError, RequestOptions};
use test_support::*;
use text::TokenId;

const STORY: &str = "Tell me a short story about a dragon.";

#[test]
fn a_stop_string_ends_the_text_before_it_wherever_tokens_are_cut() {
    let model = pocket();
    let (engine, _alone) = engine(&model, config(1024, 2));
    let prompt = question(&model, STORY);
    let whole = generate(&engine, &prompt, greedy_exactly(40));
    let text = whole.text();
    assert!(text.is_ascii() && text.len() > 60, "{text}");
    let mut n_across = 0;
    for start in (8..40).step_by(3) {
        let stop = text[start..start + 9].to_owned();
        let before = &text[..text.find(&stop).expect("it is cut out of the text")];
        let answer = generate(&engine, &prompt, RequestOptions { stops: vec![stop.clone()], ..greedy_exactly(40) });
        assert_eq!(answer.text(), before, "stop {stop:?}");
        assert_eq!(answer.reason(), &FinishReason::Stop(stop.clone()));
        let n = answer.tokens.len();
        assert_eq!(answer.tokens, whole.tokens[..n], "stop {stop:?}");
        // The last token completes it, and the one before does not.
        let generated = |n: usize| whole.pieces[..n].concat();
        assert!(find(&generated(n), &stop) && !find(&generated(n - 1), &stop), "stop {stop:?}");
        n_across += usize::from(!whole.pieces.iter().any(|p| find(p, &stop)));
    }
    assert_eq!(n_across, 11, "no token holds nine bytes of this text: all stops reach across");
}

fn find(bytes: &[u8], what: &str) -> bool {
    bytes.windows(what.len()).any(|w| w == what.as_bytes())
}

#[test]
fn bytes_held_back_for_a_stop_string_come_with_the_end() {
    let model = pocket();
    let (engine, _alone) = engine(&model, config(1024, 1));
    let prompt = question(&model, STORY);
    let whole = generate(&engine, &prompt, greedy_exactly(30)).text();
    let end = &whole[whole.len() - 7..];
    let never = vec![format!("{end}\u{1}"), "not in there".into()];
    let answer = generate(&engine, &prompt, RequestOptions { stops: never, ..greedy_exactly(30) });
    assert_eq!(answer.text(), whole);
    assert_eq!(answer.summary().rest, end.as_bytes());
    assert_eq!(answer.reason(), &FinishReason::Length);
}

#[test]
fn the_count_of_tokens_is_kept_and_timed() {
    let model = pocket();
    let (engine, _alone) = engine(&model, config(1024, 1));
    let prompt = question(&model, STORY);
    for n in [1, 2, 17] {
        let answer = generate(&engine, &prompt, RequestOptions { cache: false, ..greedy_exactly(n) });
        let timings = answer.timings();
        assert_eq!((answer.tokens.len(), answer.reason()), (n, &FinishReason::Length));
        assert_eq!((timings.generated_tokens, timings.steps), (n, n - 1), "one pass for each token after the first");
        assert_eq!((timings.prompt_tokens, timings.cached_tokens), (prompt.len(), 0));
        assert_eq!((timings.drafted, timings.accepted, timings.drafted_by_depth.len()), (0, 0, 0));
        assert!(timings.prompt_ms > 0.0 && (timings.generated_ms > 0.0) == (n > 1), "{timings:?}");
    }
}

#[test]
fn a_full_context_ends_the_answer() {
    let model = pocket();
    // Memory rounds 60 up to 256: what counts is 60.
    let (engine, _alone) = engine(&model, EngineConfig { n_ctx: Some(60), ..config(1024, 1) });
    assert_eq!(engine.limits().n_ctx, 60);
    let prompt: Vec<TokenId> = question(&model, STORY).into_iter().cycle().take(60).collect();
    let endless = RequestOptions { max_tokens: None, ..greedy_exactly(1) };
    for (n_prompt, n_answer) in [(40, 20), (58, 2), (59, 1)] {
        let answer = generate(&engine, &prompt[..n_prompt], endless.clone());
        assert_eq!((answer.tokens.len(), answer.reason()), (n_answer, &FinishReason::Context));
        let more = generate(&engine, &prompt[..n_prompt], greedy_exactly(n_answer + 1));
        assert_eq!((more.tokens, more.end.expect("complete").reason), (answer.tokens, FinishReason::Context));
        let exact = generate(&engine, &prompt[..n_prompt], greedy_exactly(n_answer));
        assert_eq!(exact.reason(), &FinishReason::Length, "as many as asked for: the context is not to blame");
    }
    let refused = GenerateRequest::new(prompt, endless, engine.limits());
    assert!(matches!(refused, Err(RequestError::PromptTooLong { n_prompt: 60, n_ctx: 60 })), "{refused:?}");
}

#[test]
fn the_last_position_of_the_memory_is_used() {
    let model = pocket();
    let (engine, _alone) = engine(&model, EngineConfig { n_ctx: Some(256), ..config(1024, 1) });
    let prompt: Vec<TokenId> = question(&model, STORY).into_iter().cycle().take(255).collect();
    let answer = generate(&engine, &prompt[..250], RequestOptions { max_tokens: None, ..greedy_exactly(1) });
    assert_eq!((answer.tokens.len(), answer.reason()), (6, &FinishReason::Context));
    let answer = generate(&engine, &prompt, RequestOptions { max_tokens: None, ..greedy_exactly(1) });
    assert_eq!((answer.tokens.len(), answer.reason()), (1, &FinishReason::Context));
}

#[test]
fn without_a_word_the_context_is_the_models() {
    for model in [pocket(), tiny()] {
        let (engine, _alone) = engine(&model, EngineConfig { n_ctx: None, ..config(1024, 1) });
        assert_eq!(engine.limits().n_ctx, model.hparams().n_ctx_train.min(8192));
    }
}

#[test]
fn every_end_of_generation_token_ends_and_is_no_text() {
    let model = pocket();
    let vocab = model.vocab();
    let ends = ["<|im_end|>", "<|endoftext|>"].map(|text| vocab.id(text).expect("a token of these models"));
    let (engine, _alone) = engine(&model, config(1024, 1));
    let prompt = question(&model, STORY);
    for end in ends {
        let sampling = SamplingParams { logit_bias: vec![(end, 1e4)], ..SamplingParams::greedy() };
        let answer = generate(&engine, &prompt, RequestOptions { sampling: sampling.clone(), ..greedy(5) });
        assert_eq!(answer.tokens, [end]);
        assert_eq!((answer.reason(), answer.text().as_str()), (&FinishReason::EndOfGeneration(end), ""));
        let answer = generate(&engine, &prompt, RequestOptions { sampling, ..greedy_exactly(5) });
        assert_eq!((answer.tokens, answer.end.expect("complete").reason), (vec![end; 5], FinishReason::Length));
    }
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let model = pocket();
    let (engine, _alone) = engine(&model, config(1024, 1));
    let prompt = question(&model, STORY);
    let answer = generate(&engine, &prompt, RequestOptions { logprobs: Some(5), ..greedy_exactly(30) });
    for (token, logprob) in answer.tokens.iter().zip(&answer.logprobs) {
        let logprob = logprob.as_ref().expect("they were asked for");
        assert_eq!((logprob.token, logprob.top.len()), (*token, 5));
        assert_eq!(logprob.top[0], (*token, logprob.logprob), "greedy takes the likeliest");
        assert!(logprob.top.windows(2).all(|w| w[0].1 >= w[1].1), "{logprob:?}");
        let sum: f32 = logprob.top.iter().map(|t| t.1.exp()).sum();
        assert!(logprob.logprob <= 0.0 && sum <= 1.0 + 1e-5, "{sum}: rounding of five f32 logarithms");
    }
    let none = generate(&engine, &prompt, greedy_exactly(3));
    assert!(none.logprobs.iter().all(Option::is_none));
    let alone = generate(&engine, &prompt, RequestOptions { logprobs: Some(0), ..greedy_exactly(3) });
    assert!(alone.logprobs.iter().flatten().all(|l| l.top.is_empty() && l.logprob <= 0.0));
    assert_eq!(alone.logprobs.iter().flatten().count(), 3);
}

#[test]
fn a_seed_gives_the_same_answer_and_another_another() {
    let model = pocket();
    let (engine, _alone) = engine(&model, config(1024, 1));
    let prompt = question(&model, STORY);
    let with_seed = |seed| {
        let sampling = SamplingParams { seed: Some(seed), temperature: 1.5, ..SamplingParams::default() };
        generate(&engine, &prompt, RequestOptions { sampling, cache: false, ..greedy_exactly(40) }).tokens
    };
    assert_eq!(with_seed(1), with_seed(1));
    assert_ne!(with_seed(1), with_seed(2));
}

#[test]
fn settings_that_make_no_engine_are_refused_by_name() {
    type Change = fn(&mut EngineConfig);
    let broken: [(&str, Change); 7] = [
        ("n_sequences: ", |c| c.n_sequences = 0),
        ("n_batch: ", |c| c.n_batch = 0),
        ("n_batch_shared: ", |c| c.n_batch_shared = 0),
        ("max_queue: ", |c| c.max_queue = 0),
        ("n_ctx: ", |c| c.n_ctx = Some(0)),
        ("n_ctx: ", |c| c.n_ctx = Some(usize::MAX)),
        ("9 sequences do not fit into batches of 8 tokens", |c| (c.n_sequences, c.n_batch) = (9, 8)),
    ];
    for (what, change) in broken {
        let mut config = config(1024, 1);
        change(&mut config);
        let error = engine::Engine::spawn(pocket(), config).err().expect("refused").to_string();
        assert!(error.contains(what), "{error}");
    }
}
