//! An assistant drafts from the main model's cells alone: whatever happened to a sequence, its drafts are those of its text.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use engine::sample::SamplingParams;
use engine::{EngineConfig, FlashAttention, RequestOptions, Scope};
use memory::{CacheType, MemoryConfig, Slot};
use model::{Draft, DraftOutput, LoadOptions, Model, Pass, PassOutput, Rows, Runner};
use speculate::{Assistant, Depth, DraftMode, DraftVocabSize, Mode, NextNConfig, SpecConfig, memory_plan, proposer};
use test_support::{Completion, Watched, config, generate, generate_all, greedy_exactly, some_tokens, spawn};
use text::TokenId;

use crate::tiny::{Meta, Spec};

/// A tiny Gemma 4 whose window prompts outgrow, with its assistant.
fn model() -> Arc<Model> {
    open(wide(Spec::assistant())).expect("an assistant that fits")
}

/// The same with heads that quantised cells can hold, and words for prompts.
fn wide(spec: Spec) -> Spec {
    let wider = |(key, value)| match key {
        "attention.key_length_swa" | "attention.value_length_swa" | "rope.dimension_count_swa" => (key, Meta::U32(32)),
        _ => (key, value),
    };
    Spec { d_head: 64, n_vocab: 512, more: spec.more.into_iter().map(wider).collect(), ..spec }
}

fn open(assistant: Spec) -> Result<Arc<Model>, String> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = wide(Spec::of("gemma4")).document().write(&dir.path().join("tiny.gguf"));
    let head: PathBuf = assistant.document().write(&dir.path().join("assistant.gguf"));
    let options = LoadOptions { head: Some(head), ..LoadOptions::default() };
    Model::open(&path, &options).map_err(|error| error.to_string())
}

fn assistant(model: &Arc<Model>, config: &EngineConfig, depth: Depth) -> Assistant {
    let config_of_head = NextNConfig { depth, vocab: DraftVocabSize::Full, both_heads: false };
    Assistant::new(model, config, config_of_head).expect("room").expect("the model has an assistant")
}

fn tokens(reply: &Completion) -> Vec<TokenId> {
    reply.tokens.clone()
}

/// The main model's passes over some sequences, and drafts after them.
struct Bench {
    memory: memory::Memory,
    runner: Runner,
    output: PassOutput,
}

impl Bench {
    fn new(model: &Arc<Model>, n_slots: usize, (type_k, type_v): (CacheType, CacheType)) -> Self {
        let config = MemoryConfig { n_slots, type_k, type_v, ..config(256, n_slots).memory(model) };
        let config = MemoryConfig { v_transposed: false, n_snapshots: 4, ..config };
        let runner = Runner::new(Arc::clone(model), 1).expect("the CPU is there");
        Self { memory: model.memory(config).expect("state"), runner, output: PassOutput::default() }
    }

    fn slot(&mut self) -> Slot {
        self.memory.acquire().expect("state").expect("a free slot")
    }

    /// Computes tokens of one sequence and keeps the first `n_kept`; gives the hidden state of the last of those.
    fn step(&mut self, slot: &Slot, tokens: &[TokenId], n_kept: usize) -> Vec<f32> {
        let step = self.memory.begin(&[(slot, tokens.len())], 4.min(tokens.len())).expect("a step");
        self.runner
            .run(step.view(), &Pass { tokens, rows: Rows::All, hidden: true }, &mut self.output)
            .expect("a pass");
        step.commit(&[n_kept]).expect("tokens that can be kept");
        let n_embd = self.runner.model().hparams().n_embd;
        self.output.hidden[(n_kept - 1) * n_embd..n_kept * n_embd].to_vec()
    }

    /// Four draft tokens for each sequence, and their logits.
    fn drafts(&mut self, sequences: &[(&Slot, TokenId, Vec<f32>)]) -> DraftOutput {
        let slots: Vec<&Slot> = sequences.iter().map(|(slot, ..)| *slot).collect();
        let tokens: Vec<TokenId> = sequences.iter().map(|(_, token, _)| *token).collect();
        let hidden: Vec<f32> = sequences.iter().flat_map(|(.., hidden)| hidden.iter().copied()).collect();
        let n_entries = vec![1; slots.len()];
        let (tokens, hidden, n_entries) = (&tokens[..], &hidden[..], &n_entries[..]);
        let draft = Draft { tokens, hidden, n_entries, depth: 4, verbose: true, ..Draft::default() };
        let mut output = DraftOutput::default();
        self.runner
            .draft_at_end(self.memory.ends(&slots).expect("sequences").view(), &draft, &mut output)
            .expect("drafts");
        output
    }
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Only the order of sums may differ.
    assert!(difference <= 1e-4, "{what}: draft logits differ by {difference}");
}

#[test]
fn drafts_after_rollback_restore_and_in_company_are_those_of_the_text_alone() {
    let model = model();
    let text = some_tokens(60);
    let (next, wrong) = (TokenId(7), some_tokens(63)[60..].to_vec());
    for types in [(CacheType::F32, CacheType::F32), (CacheType::F16, CacheType::Q8_0)] {
        let mut plain = Bench::new(&model, 1, types);
        let slot = plain.slot();
        let hidden = plain.step(&slot, &text, 60);
        let expected = plain.drafts(&[(&slot, next, hidden.clone())]);

        // In pieces, with rows that are dropped; beside another sequence of another length.
        let mut bench = Bench::new(&model, 3, types);
        let slots = [bench.slot(), bench.slot(), bench.slot()];
        bench.step(&slots[0], &text[..19], 19);
        let other = bench.step(&slots[1], &text[5..30], 25);
        bench.step(&slots[0], &text[19..59], 40);
        let tail: Vec<TokenId> = text[59..].iter().chain(&wrong).copied().collect();
        let rolled_back = bench.step(&slots[0], &tail, 1);
        let both = bench.drafts(&[(&slots[0], next, rolled_back.clone()), (&slots[1], next, other)]);
        assert_eq!(both.tokens[0], expected.tokens[0], "{types:?}");
        for (found, expected) in both.logits.iter().zip(&expected.logits) {
            assert_close(&found[..expected.len()], expected, "rolled back, in company");
        }

        // What was saved drafts as what was kept.
        let saved = bench.memory.save(&slots[0]).expect("a sequence");
        bench.memory.load(&slots[2], &saved).expect("state of the same shape");
        let restored = bench.drafts(&[(&slots[2], next, rolled_back)]);
        assert_eq!(restored.tokens[0], expected.tokens[0], "{types:?}");
        for (found, expected) in restored.logits.iter().zip(&expected.logits) {
            assert_close(found, expected, "restored");
        }
    }
}

#[test]
fn text_is_that_without_drafts_in_every_form_of_attention_and_type_of_cells() {
    let model = model();
    let prompts: Vec<Vec<TokenId>> = (0..3).map(|i| some_tokens(40 + 9 * i)).collect();
    for (flash_attention, cache_type_v) in [
        (FlashAttention::Off, CacheType::F16),
        (FlashAttention::On, CacheType::F16),
        (FlashAttention::On, CacheType::Q8_0),
    ] {
        let config = EngineConfig { flash_attention, cache_type_v, n_batch: 32, ..config(256, 3) };
        let plain = spawn(&model, config.clone(), None);
        for depth in [Depth::Fixed(1), Depth::Fixed(3), Depth::Fixed(8), Depth::Auto] {
            let drafting = spawn(&model, config.clone(), Some(Box::new(assistant(&model, &config, depth))));
            for prompt in &prompts {
                let expected = generate(&plain, prompt, greedy_exactly(48));
                let found = generate(&drafting, prompt, greedy_exactly(48));
                assert_eq!(tokens(&found), tokens(&expected), "{depth:?}, {flash_attention:?}, {cache_type_v}");
                if depth != Depth::Auto {
                    assert!(found.timings().drafted > 0, "nothing was drafted");
                }
            }
            let alone: Vec<_> =
                prompts.iter().map(|prompt| tokens(&generate(&plain, prompt, greedy_exactly(24)))).collect();
            let requests = prompts.iter().map(|prompt| (prompt.clone(), greedy_exactly(24))).collect();
            let together: Vec<_> = generate_all(&drafting, requests).iter().map(tokens).collect();
            assert_eq!(together, alone, "{depth:?}, {flash_attention:?}: three at a time");
        }
    }
}

#[test]
fn a_sampled_reply_drafts_with_its_noise_and_p_min_cuts_drafts() {
    let model = model();
    let config = config(256, 1);
    let sampled = SamplingParams { temperature: 1.0, seed: Some(5), ..SamplingParams::default() };
    let options = RequestOptions { sampling: sampled, ..greedy_exactly(64) };
    let plain = generate(&spawn(&model, config.clone(), None), &some_tokens(30), options.clone());
    let lengths = Arc::<Mutex<Vec<usize>>>::default();
    let seen = Arc::clone(&lengths);
    let watched = Watched::new(
        assistant(&model, &config, Depth::Fixed(4)),
        || {},
        move |_, drafts, _| seen.lock().expect("nobody panics").extend(drafts.iter().map(Vec::len)),
    );
    let drafting = spawn(&model, config, Some(Box::new(watched)));
    let found = generate(&drafting, &some_tokens(30), options.clone());
    assert_eq!(tokens(&found), tokens(&plain));
    assert!(lengths.lock().expect("nobody panics").drain(..).all(|n| n > 0));
    let cut = RequestOptions { draft_p_min: 1.0, ..options };
    assert_eq!(tokens(&generate(&drafting, &some_tokens(30), cut)), tokens(&plain));
    assert!(lengths.lock().expect("nobody panics").drain(..).all(|n| n == 0), "no token is certain");
}

#[test]
fn a_saved_slot_goes_on_drafting() {
    let model = model();
    let config = config(256, 1);
    let drafting = || spawn(&model, config.clone(), Some(Box::new(assistant(&model, &config, Depth::Fixed(3)))));
    let (first, second) = (drafting(), drafting());
    let reply = generate(&first, &some_tokens(30), greedy_exactly(16));
    let whole: Vec<TokenId> = some_tokens(30).into_iter().chain(tokens(&reply)).collect();
    second.load_slot(0, first.save_slot(0, Scope::default()).expect("a free slot"), Scope::default()).expect("it fits");
    let (expected, found) =
        (generate(&first, &whole, greedy_exactly(16)), generate(&second, &whole, greedy_exactly(16)));
    assert_eq!(tokens(&found), tokens(&expected));
    assert_eq!(found.timings().drafted, expected.timings().drafted);
}

#[test]
fn an_assistant_takes_no_state_and_drafts_between_passes_only() {
    let model = model();
    let config = config(256, 2);
    let spec = SpecConfig {
        mode: Mode::NextN,
        depth: Depth::Fixed(3),
        vocab: DraftVocabSize::Full,
        draft_mode: DraftMode::Async,
    };
    let with = memory_plan(&config, &spec, model.facts()).bytes(model.facts()).expect("sizes");
    let without = memory_plan(&config, &SpecConfig { mode: Mode::Off, ..spec }, model.facts());
    let drafts_snapshots = without.bytes(model.facts()).expect("sizes");
    assert_eq!(with.state(), drafts_snapshots.state(), "cells of the model alone");
    assert!(proposer(&model, &config, spec).expect("an assistant").is_some());
}

#[test]
fn an_assistant_of_another_model_is_refused_with_the_reason() {
    let with = |key: &'static str, value: Meta| {
        let mut spec = wide(Spec::assistant());
        spec.more.retain(|(k, _)| *k != key);
        spec.more.push((key, value));
        open(spec).expect_err("it does not fit")
    };
    for (error, says) in [
        (with("embedding_length_out", Meta::U32(64)), "it drafts for a width of 64, the model's is 48"),
        (with("attention.sliding_window", Meta::U32(8)), "window Some(8) there"),
        (open(wide(Spec::of("gemma4"))).expect_err("a model"), "it is a model of `gemma4`"),
        (
            open(Spec { n_vocab: 512, nextn: true, ..Spec::of("qwen35") }).expect_err("another family"),
            "it is for architecture `qwen35`",
        ),
        (open(Spec { n_vocab: 300, ..wide(Spec::assistant()) }).expect_err("another vocabulary"), "300"),
    ] {
        assert!(error.contains(says), "{error}");
    }
    let dir = tempfile::TempDir::new().expect("a folder");
    let alone = Spec::assistant().document().write(&dir.path().join("assistant.gguf"));
    let error = Model::open(&alone, &LoadOptions::default()).expect_err("no model").to_string();
    assert!(error.contains("give this file with --draft-model beside a model of `gemma4`"), "{error}");
}
