//! Prompts that give vectors: pooled hidden states, and what a rank head makes of them, against a plain forward pass.

use std::sync::Arc;

use engine::{EngineConfig, EngineHandle, GenerateRequest, Pooling, RequestError, RequestOptions};
use model::{LoadOptions, Model, Pass, PassOutput, Rows, Runner};
use test_support::{Completion, config, engine, pocket, spawn, submit, tiny};
use text::TokenId;

use crate::tiny::{Document, Meta, Rng, Spec, Tensor};

const ALL: [Pooling; 4] = [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last];

fn embed(pooling: Pooling) -> RequestOptions {
    RequestOptions { embed: Some(pooling), ..RequestOptions::default() }
}

fn vector(engine: &EngineHandle, prompt: &[TokenId], options: RequestOptions) -> Vec<f32> {
    let done = Completion::read(&mut submit(engine, prompt, options));
    assert!(done.tokens.is_empty() && done.timings().prompt_tokens == prompt.len());
    done.summary().embedding.clone().expect("it was asked for")
}

fn prompt(n: u32, first: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId((first + i * 7) % 250)).collect()
}

/// The hidden states of all tokens, from one forward pass.
fn hidden(model: &Arc<Model>, config: &EngineConfig, prompt: &[TokenId]) -> Vec<f32> {
    let mut memory = model.memory(config.memory(model)).expect("memory");
    let slot = memory.acquire().expect("memory").expect("a free slot");
    let mut runner = Runner::new(Arc::clone(model), 1).expect("a runner");
    let mut output = PassOutput::default();
    let step = memory.begin(&[(&slot, prompt.len())], 1).expect("room");
    let pass = Pass { tokens: prompt, rows: Rows::None, hidden: true };
    runner.run(step.view(), &pass, &mut output).expect("a pass");
    output.hidden
}

fn pooled(hidden: &[f32], n_embd: usize, pooling: Pooling) -> Vec<f32> {
    let rows: Vec<&[f32]> = hidden.chunks_exact(n_embd).collect();
    match pooling {
        Pooling::None => hidden.to_vec(),
        Pooling::Mean => (0..n_embd).map(|i| rows.iter().map(|row| row[i]).sum::<f32>() / rows.len() as f32).collect(),
        Pooling::Cls => rows[0].to_vec(),
        Pooling::Last | Pooling::Rank => rows[rows.len() - 1].to_vec(),
    }
}

/// Numbers agree within what other orders of sums and chunks of another width make of F16 cells.
fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_within(2e-3, found, expected, what);
}

fn assert_within(tolerance: f32, found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * largest, "{what}: {a} for {b} at {i}");
    }
}

#[test]
fn vectors_are_the_pooled_hidden_states_of_one_pass_however_long_the_prompt() {
    // Activations of the quantised model are rounded to 8 bits.
    for (model, tolerance) in [(tiny(), 2e-3), (pocket(), 5e-2)] {
        let config = EngineConfig { embeddings: true, n_batch: 16, ..config(256, 2) };
        let n_embd = model.hparams().n_embd;
        let (engine, _alone) = engine(&model, config.clone());
        for n in [1, 16, 17, 100] {
            let prompt = prompt(n, n);
            let hidden = hidden(&model, &config, &prompt);
            for pooling in ALL {
                let found = vector(&engine, &prompt, embed(pooling));
                let what = format!("{pooling}, {n} tokens");
                assert_within(tolerance, &found, &pooled(&hidden, n_embd, pooling), &what);
            }
        }
    }
}

#[test]
fn inputs_side_by_side_with_generations_have_their_own_vectors() {
    let model = tiny();
    let (engine, _alone) = engine(&model, EngineConfig { embeddings: true, n_batch: 32, ..config(256, 4) });
    let alone: Vec<_> = (0..8).map(|i| vector(&engine, &prompt(20 + i, i), embed(ALL[i as usize % 4]))).collect();
    let mut talk = submit(&engine, &prompt(30, 9), test_support::greedy_exactly(60));
    let mut all: Vec<_> = (0..8).map(|i| submit(&engine, &prompt(20 + i, i), embed(ALL[i as usize % 4]))).collect();
    for (i, (generation, alone)) in all.iter_mut().zip(&alone).enumerate() {
        let done = Completion::read(generation);
        assert_close(done.summary().embedding.as_ref().expect("a vector"), alone, &format!("input {i}"));
    }
    assert_eq!(Completion::read(&mut talk).tokens.len(), 60);
}

#[test]
fn short_inputs_share_a_batch_and_have_the_vectors_that_they_have_alone() {
    let model = tiny();
    let (engine, _alone) = engine(&model, EngineConfig { embeddings: true, n_batch: 64, ..config(256, 8) });
    let alone: Vec<_> = (0..8).map(|i| vector(&engine, &prompt(3 + i, i), embed(ALL[i as usize % 4]))).collect();
    let before = engine.stats().expect("it runs").n_steps;
    // A long one goes first, so that all others are there when it is done.
    let mut long = submit(&engine, &prompt(250, 1), embed(Pooling::Last));
    let mut all: Vec<_> = (0..8).map(|i| submit(&engine, &prompt(3 + i, i), embed(ALL[i as usize % 4]))).collect();
    for (i, (generation, alone)) in all.iter_mut().zip(&alone).enumerate() {
        let done = Completion::read(generation);
        assert_close(done.summary().embedding.as_ref().expect("a vector"), alone, &format!("input {i}"));
    }
    assert_eq!(Completion::read(&mut long).timings().prompt_tokens, 250);
    let n_steps = engine.stats().expect("it runs").n_steps - before;
    assert!(n_steps < 9, "{n_steps} steps for 302 tokens in batches of 64");
}

#[test]
fn an_input_may_fill_the_context_and_no_more() {
    let model = tiny();
    let (engine, _alone) = engine(&model, EngineConfig { embeddings: true, n_batch: 48, ..config(96, 1) });
    let limits = engine.limits();
    let whole = vector(&engine, &prompt(96, 0), embed(Pooling::Last));
    assert_eq!(whole.len(), model.hparams().n_embd);
    let of = |n, options| GenerateRequest::new(prompt(n, 0), options, limits).map(drop);
    assert!(matches!(of(97, embed(Pooling::Last)), Err(RequestError::PromptTooLong { n_prompt: 97, n_ctx: 96 })));
    // A generation needs room for a token.
    assert!(matches!(of(96, RequestOptions::default()), Err(RequestError::PromptTooLong { .. })));
}

/// A model with a rank head of these classes, and the head's numbers by name.
fn ranker(arch: &'static str, labels: &[&str], tensors: &[(&str, &[u64])]) -> (Arc<Model>, Vec<Vec<f32>>) {
    let mut document: Document = Spec::of(arch).document();
    document.set(&format!("{arch}.pooling_type"), Meta::U32(4));
    if !labels.is_empty() {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        document.set(&format!("{arch}.classifier.output_labels"), Meta::Strs(labels));
    }
    let mut rng = Rng::new(5);
    let mut values = Vec::new();
    for (name, ne) in tensors {
        let numbers: Vec<f32> = (0..ne.iter().product()).map(|_| 0.2 * rng.normal()).collect();
        let data = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        document.tensors.push(Tensor { name: (*name).into(), ne: ne.to_vec(), dtype: gguf::TensorType::F32, data });
        values.push(numbers);
    }
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = document.write(&dir.path().join("tiny.gguf"));
    (Model::open(&path, &LoadOptions::default()).expect("a sound file"), values)
}

/// `w: [n_in, n_out]` times `x`, plus `b`.
fn product(w: &[f32], x: &[f32], b: Option<&[f32]>) -> Vec<f32> {
    let rows = w.chunks_exact(x.len()).enumerate();
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32;
    rows.map(|(i, row)| dot(row) + b.map_or(0.0, |b| b[i])).collect()
}

#[test]
fn classes_of_a_qwen3_ranker_are_weighed_against_each_other() {
    let (model, head) = ranker("qwen3", &["yes", "no"], &[("cls.output.weight", &[48, 2])]);
    assert_eq!((model.n_classes(), model.embedding().pooling), (Some(2), Some(Pooling::Rank)));
    let config = EngineConfig { embeddings: true, ..config(256, 2) };
    let engine = spawn(&model, config.clone(), None);
    for n in [3, 70] {
        let last = pooled(&hidden(&model, &config, &prompt(n, n)), 48, Pooling::Last);
        let logits = product(&head[0], &last, None);
        let yes = 1.0 / (1.0 + (logits[1] - logits[0]).exp());
        let found = vector(&engine, &prompt(n, n), embed(Pooling::Rank));
        assert_close(&found, &[yes, 1.0 - yes], &format!("{n} tokens"));
        // The state of the first time is taken up, and the numbers are the same.
        assert_close(&vector(&engine, &prompt(n, n), embed(Pooling::Rank)), &found, "again");
    }
}

#[test]
fn a_rank_head_may_have_a_layer_of_its_own_before_its_classes() {
    let shapes: [(&str, &[u64]); 4] =
        [("cls.weight", &[48, 48]), ("cls.bias", &[48]), ("cls.output.weight", &[48, 1]), ("cls.output.bias", &[1])];
    for n_tensors in [4, 2] {
        // Without `cls.output` the layer is all there is.
        let shapes: Vec<(&str, &[u64])> = match n_tensors {
            4 => shapes.to_vec(),
            _ => vec![("cls.weight", &[48, 1]), ("cls.bias", &[1])],
        };
        let (model, head) = ranker("llama", &[], &shapes);
        let config = EngineConfig { embeddings: true, ..config(256, 1) };
        let engine = spawn(&model, config.clone(), None);
        let last = pooled(&hidden(&model, &config, &prompt(20, 1)), 48, Pooling::Last);
        let mut expected = product(&head[0], &last, Some(&head[1]));
        expected.iter_mut().for_each(|x| *x = x.tanh());
        if n_tensors == 4 {
            expected = product(&head[2], &expected, Some(&head[3]));
        }
        assert_close(
            &vector(&engine, &prompt(20, 1), embed(Pooling::Rank)),
            &expected,
            &format!("{n_tensors} tensors"),
        );
    }
}

#[test]
fn a_model_without_a_rank_head_says_so_and_goes_on() {
    let (without, _) = ranker("qwen3", &["yes", "no"], &[]);
    for model in [without, tiny()] {
        assert_eq!(model.n_classes(), None);
        let engine = spawn(&model, EngineConfig { embeddings: true, ..config(256, 1) }, None);
        let done = Completion::read(&mut submit(&engine, &prompt(20, 1), embed(Pooling::Rank)));
        assert!(done.end.as_ref().is_err_and(|why| why.contains("no rank head")), "{:?}", done.end);
        assert_eq!(vector(&engine, &prompt(20, 1), embed(Pooling::Mean)).len(), model.hparams().n_embd);
    }
}

#[test]
fn ranked_prompts_that_begin_alike_compute_their_beginning_once() {
    let (model, _) = ranker("qwen3", &["yes", "no"], &[("cls.output.weight", &[48, 2])]);
    let engine = spawn(&model, EngineConfig { embeddings: true, store_bytes: 64 << 20, ..config(256, 2) }, None);
    let of = |tail: u32| [prompt(100, 3), prompt(20, tail)].concat();
    let options = RequestOptions { checkpoint_boundaries: vec![100], ..embed(Pooling::Rank) };
    let mut all: Vec<_> = (0..6).map(|i| submit(&engine, &of(i), options.clone())).collect();
    let done: Vec<_> = all.iter_mut().map(Completion::read).collect();
    assert!(done[1..].iter().all(|done| done.timings().cached_tokens >= 100), "the first one's state was there");
    let stats = engine.stats().expect("it runs");
    assert_eq!(stats.stored_bytes, 0, "what no other prompt begins with is not kept beside the slots");
    assert!(stats.n_tokens < 100 + 6 * 20 + 10, "{}", stats.n_tokens);
}
