//! Sequences whose numbers are not finite: each ends alone, with its reason, and whoever gets its slot finds nothing of it.

use std::sync::Arc;

use crate::tiny::{Document, Spec};
use engine::{Engine, EngineConfig, EngineHandle, FlashAttention, Generation, Pooling, RequestOptions};
use gguf::TensorType;
use memory::CacheType;
use model::{LoadOptions, Model};
use test_support::{Completion, greedy_exactly, submit};
use text::TokenId;

/// The token that no model of this file computes well.
const BAD: usize = 70;

fn open(document: &Document) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    Model::open(&document.write(&dir.path().join("tiny.gguf")), &LoadOptions::default()).expect("a sound file")
}

/// Writes numbers into a tensor of F32, from element `first` on, `step` elements apart.
fn set(document: &mut Document, name: &str, first: usize, step: usize, n: usize, value: f32) {
    let tensor = document.tensors.iter_mut().find(|t| t.name == name).expect("a tensor of that name");
    for i in 0..n {
        tensor.data[4 * (first + i * step)..][..4].copy_from_slice(&value.to_le_bytes());
    }
}

/// The row of `BAD` in the embedding is NaN. No reply has it, unless its prompt does: its logits are 0.
fn with_nan(arch: &'static str) -> Arc<Model> {
    let spec = Spec::of(arch);
    let mut document = spec.document();
    set(&mut document, "token_embd.weight", BAD * spec.n_embd, 1, spec.n_embd, f32::NAN);
    set(&mut document, "output.weight", BAD * spec.n_embd, 1, spec.n_embd, 0.0);
    open(&document)
}

/// A matrix as Q8_0: its products make plain numbers of NaN.
fn quantise(document: &mut Document, name: &str) {
    let tensor = document.tensors.iter_mut().find(|t| t.name == name).expect("a tensor of that name");
    let values = tensor.data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    // Steps of 1/256, which as F16 is 0x1C00.
    let steps: Vec<u8> = values.map(|x| (256.0 * x).round().clamp(-127.0, 127.0) as i8 as u8).collect();
    tensor.data = steps.chunks(32).flat_map(|block| [&0x1C00_u16.to_le_bytes()[..], block].concat()).collect();
    tensor.dtype = TensorType::Q8_0;
}

/// Keys or values of `BAD` in the first layer are beyond what F16 holds; all else is finite.
fn with_overflow(tensors: &[&str], quantised: bool) -> Arc<Model> {
    let spec = Spec::of("llama");
    let mut document = spec.document();
    // Only this token has something in element 0, and keys and values have a large factor for it.
    set(&mut document, "token_embd.weight", 0, spec.n_embd, spec.n_vocab, 0.0);
    set(&mut document, "token_embd.weight", BAD * spec.n_embd, 1, 1, 30.0);
    for name in tensors {
        set(&mut document, name, 0, spec.n_embd, spec.d_head * spec.n_head_kv, 1e6);
    }
    if quantised {
        quantise(&mut document, "blk.0.attn_output.weight");
    }
    open(&document)
}

fn prompt(seed: u32, n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId(80 + (seed * 31 + i * 17) % 150)).collect()
}

fn bad_prompt() -> Vec<TokenId> {
    let mut prompt = prompt(3, 60);
    prompt[40] = TokenId(BAD as u32);
    prompt
}

fn begin(engine: &EngineHandle, prompt: Vec<TokenId>, slot: usize, embed: Option<Pooling>) -> Generation {
    submit(engine, &prompt, RequestOptions { slot: Some(slot), embed, ..greedy_exactly(12) })
}

/// Tokens, and how many of its prompt were in the slot; or why it failed.
fn read(mut generation: Generation) -> Result<(Vec<TokenId>, usize), String> {
    let Completion { tokens, end, .. } = Completion::read(&mut generation);
    end.map(|summary| (tokens, summary.timings.cached_tokens))
}

fn configs() -> Vec<EngineConfig> {
    let forms = [FlashAttention::On, FlashAttention::Off].into_iter();
    let config = |flash_attention, cache| EngineConfig {
        n_ctx: Some(256),
        n_sequences: 2,
        threads: Some(1),
        cache_type_k: cache,
        cache_type_v: cache,
        flash_attention,
        embeddings: true,
        ..EngineConfig::default()
    };
    forms.flat_map(|form| [CacheType::F16, CacheType::F32].map(|cache| config(form, cache))).collect()
}

#[test]
fn a_sequence_whose_numbers_are_not_finite_fails_alone_and_leaves_nothing_behind() {
    for arch in ["llama", "qwen35", "qwen35moe"] {
        let model = with_nan(arch);
        for config in configs() {
            let what = format!("{arch}, flash attention {}, {}", config.flash_attention, config.cache_type_k);
            let engine = Engine::spawn(Arc::clone(&model), config).expect("an engine");
            let (expected, _) = read(begin(&engine, prompt(1, 20), 1, None)).expect("good numbers");
            for embed in [None, Some(Pooling::Mean), None] {
                let bad = begin(&engine, bad_prompt(), 0, embed);
                let beside = begin(&engine, prompt(1, 20), 1, None);
                let why = read(bad).expect_err("there are no finite numbers to go on from");
                assert!(why.contains("not finite"), "{what}: {why}");
                assert_eq!(read(beside).expect("good numbers").0, expected, "{what}: beside it");
                assert_eq!(engine.slots().expect("it runs")[0].n_tokens, 0, "{what}");
                let next = read(begin(&engine, prompt(1, 20), 0, None)).expect("good numbers");
                assert_eq!(next, (expected.clone(), 0), "{what}: in its slot");
            }
        }
    }
}

#[test]
fn numbers_too_large_for_their_cells_do_not_reach_the_next_sequence() {
    let (keys, values) = ("blk.0.attn_k.weight", "blk.0.attn_v.weight");
    for (tensors, quantised) in [(&[keys][..], false), (&[values], false), (&[keys, values], false), (&[keys], true)] {
        let model = with_overflow(tensors, quantised);
        for config in configs() {
            let form = (config.flash_attention, config.cache_type_k);
            let what = format!("{tensors:?}, quantised {quantised}, flash attention {}, {}", form.0, form.1);
            let engine = Engine::spawn(Arc::clone(&model), config).expect("an engine");
            let expected = read(begin(&engine, prompt(1, 20), 0, None)).expect("good numbers");
            // It may be answered or fail: its own numbers are of no use to anybody.
            let _ = read(begin(&engine, bad_prompt(), 0, None));
            assert_eq!(read(begin(&engine, prompt(1, 20), 0, None)).as_ref(), Ok(&expected), "{what}");
        }
    }
}
