//! Greedy text is the model's own, whatever shares its batches and however its prompt is cut.
//!
//! Bits of a token depend on the other tokens of its batch where ggml changes kernels: K-quants at 8 tokens, F16 keys in
//! unfused attention and F32 matrices (a router's) at 2. So the tests that share batches bit for bit run the dense model
//! with fused attention, one thread and passes of up to 7 rows, where every row is computed alike. The others ask questions
//! whose answers are certain, so that rounding decides nothing.

use std::sync::Arc;

use engine::sample::SamplingParams;
use engine::{EngineConfig, FinishReason, FlashAttention, RequestOptions};
use model::Model;
use test_support::*;
use text::TokenId;

use crate::uncached;

const QUESTIONS: [&str; 7] = [
    "Tell me a short story about a dragon.",
    "What is 412 - 187?",
    "Write a Rust function that reverses a string.",
    "What is the capital of France?",
    "Who are you?",
    "Count from 1 to 20.",
    "Write a poem about the sea.",
];

const CERTAIN: [&str; 5] =
    ["What is 412 - 187?", "What is the capital of France?", "Count from 1 to 20.", "Who are you?", "What is 7 x 8?"];

#[test]
fn the_engine_says_what_a_plain_loop_says() {
    for model in [pocket(), pocket_moe(), tiny()] {
        let config = config(1024, 1);
        let prompt = if model.chat_template().is_some() { question(&model, QUESTIONS[0]) } else { ids(40, 1) };
        let expected = plain_loop(&model, &config, &prompt, 80, &|_, _| ());
        let (engine, _alone) = engine(&model, config);
        let answer = generate(&engine, &prompt, greedy_exactly(80));
        assert_eq!(answer.tokens, expected, "{model:?}");
        assert_eq!(answer.reason(), &FinishReason::Length);
    }
}

#[test]
fn a_real_answer_reads_as_text() {
    let model = pocket();
    let (engine, _alone) = engine(&model, config(1024, 1));
    let answer = generate(&engine, &question(&model, "Who are you?"), greedy(60));
    assert!(answer.text().contains("Pocket"), "{}", answer.text());
    assert!(matches!(answer.reason(), FinishReason::EndOfGeneration(_)));
}

#[test]
fn each_of_several_requests_gets_what_it_gets_alone() {
    let model = pocket();
    let alike = |n_sequences| EngineConfig {
        n_batch: 7,
        n_batch_shared: 3,
        flash_attention: FlashAttention::On,
        ..config(1024, n_sequences)
    };
    let prompts: Vec<_> = QUESTIONS.iter().map(|q| question(&model, q)).collect();
    let alone: Vec<_> = {
        let (engine, _alone) = engine(&model, alike(1));
        prompts.iter().map(|p| generate(&engine, p, uncached(greedy_exactly(80))).tokens).collect()
    };
    let mut n_steps = u64::MAX;
    for n_sequences in [1, 2, 4] {
        let (engine, _alone) = engine(&model, alike(n_sequences));
        // All are in the queue before the first is done: 7 requests for up to 4 sequences.
        let mut running: Vec<_> = prompts.iter().map(|p| submit(&engine, p, uncached(greedy_exactly(80)))).collect();
        for (i, generation) in running.iter_mut().enumerate() {
            assert_eq!(Completion::read(generation).tokens, alone[i], "{n_sequences} sequences, question {i}");
        }
        let stats = engine.stats().expect("it runs");
        assert!(stats.n_steps < n_steps, "{n_sequences} sequences share passes: {} steps", stats.n_steps);
        n_steps = stats.n_steps;
    }
}

#[test]
fn certain_answers_stay_in_any_company() {
    for model in [pocket(), pocket_moe()] {
        let prompts: Vec<_> = CERTAIN.iter().map(|q| question(&model, q)).collect();
        let alone: Vec<_> = {
            let (engine, _alone) = engine(&model, config(1024, 1));
            prompts.iter().map(|p| generate(&engine, p, uncached(greedy(100))).text()).collect()
        };
        assert!(alone[0].contains("225"), "{}", alone[0]);
        for n_sequences in [2, 4] {
            let (engine, _alone) = engine(&model, config(1024, n_sequences));
            let mut running: Vec<_> = prompts.iter().map(|p| submit(&engine, p, uncached(greedy(100)))).collect();
            for (i, generation) in running.iter_mut().enumerate() {
                let text = Completion::read(generation).text();
                assert_eq!(text, alone[i], "{model:?}, {n_sequences} sequences, question {i}");
            }
        }
    }
}

#[test]
fn the_pieces_of_a_prompt_do_not_change_the_answer() {
    for model in [pocket(), pocket_moe()] {
        let mut messages = Vec::new();
        for (question, answer) in [("What is 20 + 15?", "20 + 15 = 35."), ("Hi, my name is Clara.", "Hello, Clara!")] {
            for _ in 0..3 {
                messages.push(user(question));
                messages.push(serde_json::json!({ "role": "assistant", "content": answer }));
            }
        }
        messages.push(user("What is 412 - 187?"));
        let prompt = chat(&model, messages, false).tokens;
        assert!(prompt.len() > 130, "the prompt has {} tokens: too few to be cut", prompt.len());
        let texts = [8, 64, 512].map(|n_batch| {
            let (engine, _alone) = engine(&model, EngineConfig { n_batch, ..config(1024, 1) });
            let answer = generate(&engine, &prompt, greedy(100));
            // And one more, for the checkpoint near the end.
            assert_eq!(answer.progress.len(), (prompt.len() - 4).div_ceil(n_batch) + 1, "pieces of {n_batch}");
            assert_eq!(answer.progress.last().map(|p| (p.done, p.total)), Some((prompt.len(), prompt.len())));
            answer.text()
        });
        assert!(texts[0].contains("225"), "{}", texts[0]);
        assert_eq!(texts[0], texts[1], "{model:?}: pieces of 8 and of 64");
        assert_eq!(texts[1], texts[2], "{model:?}: pieces of 64 and of 512");
    }
}

#[test]
fn a_long_prompt_is_cut_smaller_while_answers_run() {
    let model = pocket();
    let long = question(&model, &"One two three four five six seven. ".repeat(40));
    let settings = EngineConfig { n_batch: 512, n_batch_shared: 32, n_sequences: 2, ..config(1024, 2) };
    let (engine, _alone) = engine(&model, settings);
    let mut first = submit(&engine, &question(&model, QUESTIONS[0]), greedy_exactly(200));
    // Its prompt is done and its answer runs: 200 tokens last longer than the long prompt's pieces.
    let Some(engine::Event::Prompt(progress)) = first.next() else { panic!("the prompt comes first") };
    let second = generate(&engine, &long, greedy(1));
    assert!(long.len() > 200, "{} tokens", long.len());
    // And one more, for the checkpoint near the end.
    assert_eq!(second.progress.len(), (long.len() - 4).div_ceil(32) + 1);
    assert_eq!(Completion::read_on(&mut first, vec![progress]).tokens.len(), 200);
}

#[test]
fn penalties_count_prompt_and_answer_once() {
    let model = pocket();
    let prompt = question(&model, QUESTIONS[0]);
    let penalty = 2.0;
    let count = |logits: &mut [f32], all: &[TokenId]| {
        all.iter().for_each(|id| logits[id.0 as usize] -= penalty);
    };
    let expected = plain_loop(&model, &config(1024, 1), &prompt, 60, &count);
    assert_ne!(expected, plain_loop(&model, &config(1024, 1), &prompt, 60, &|_, _| ()), "the penalty changes nothing");
    let sampling = SamplingParams { frequency_penalty: penalty, penalty_last_n: -1, ..SamplingParams::greedy() };
    let (engine, _alone) = engine(&model, config(1024, 1));
    let answer = generate(&engine, &prompt, RequestOptions { sampling, ..greedy_exactly(60) });
    assert_eq!(answer.tokens, expected);
}

fn ids(n: u32, seed: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId((i * 37 + seed * 11) % 200)).collect()
}

#[test]
fn these_models_have_what_the_tests_rely_on() {
    let state = |model: &Arc<Model>| model.state_layout().is_recurrent();
    assert!(state(&pocket()) && state(&pocket_moe()) && !state(&tiny()));
    assert!(pocket_moe().hparams().n_expert_used > 0 && tiny().hparams().n_vocab > 200);
    assert!(!config(1024, 1).memory(&pocket()).transactional && config(1024, 1).memory(&pocket()).v_transposed);
}
