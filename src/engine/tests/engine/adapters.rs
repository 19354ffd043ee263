//! LoRA adapters by request: each request gets what it would get alone, and state that one set of adapters made goes to no
//! request with another.

use std::path::PathBuf;
use std::sync::Arc;

use engine::{EngineConfig, GenerateRequest, RequestError, RequestOptions, Scope};
use model::{AdapterSet, LoadOptions, Model};
use tempfile::TempDir;
use text::TokenId;

use test_support::{config, engine, generate, generate_all, greedy_exactly, slot_bytes, spawn};

use crate::lora::adapter;
use crate::tiny::Spec;

/// A tiny model with adapters of these seeds, in this order.
fn with_adapters(dir: &TempDir, arch: &'static str, seeds: &[u64]) -> Arc<Model> {
    let spec = Spec::of(arch);
    let base = spec.document();
    let write = |seed: &u64| adapter(&spec, &base, 4, *seed, |_| true).write(&dir.path().join(format!("{seed}.gguf")));
    let adapters: Vec<PathBuf> = seeds.iter().map(write).collect();
    let options = LoadOptions { adapters, ..LoadOptions::default() };
    Model::open(&base.write(&dir.path().join("base.gguf")), &options).expect("a sound model")
}

fn using(scales: &[(usize, f32)], n: usize) -> RequestOptions {
    RequestOptions { adapters: AdapterSet::new(scales.iter().copied(), 9).expect("finite"), ..greedy_exactly(n) }
}

fn prompt(first: u32) -> Vec<TokenId> {
    (0..90).map(|i| TokenId((first + i * 7) % 200)).collect()
}

const SETS: [&[(usize, f32)]; 6] =
    [&[], &[(0, 1.0)], &[(1, 1.0)], &[(0, 0.5)], &[(0, 0.5), (1, -1.0)], &[(0, 1.0), (1, 0.0)]];

#[test]
fn requests_with_different_adapters_side_by_side_get_what_each_gets_alone() {
    for arch in ["qwen3", "qwen35", "qwen35moe"] {
        let dir = TempDir::new().expect("a folder");
        let model = with_adapters(&dir, arch, &[5, 6]);
        let (engine, _alone) = engine(&model, config(256, 6));
        let request = |i: usize, set: &[(usize, f32)]| (prompt(i as u32 % 2), using(set, 24));
        let requests = || SETS.iter().enumerate().map(|(i, set)| request(i, set));
        let alone: Vec<_> = requests()
            .map(|(prompt, options)| generate(&engine, &prompt, RequestOptions { cache: false, ..options }).tokens)
            .collect();
        for _ in 0..2 {
            let together = generate_all(&engine, requests().collect());
            for (i, (together, alone)) in together.iter().zip(&alone).enumerate() {
                assert_eq!(&together.tokens, alone, "{arch}: request {i} with {:?}", SETS[i]);
            }
        }
        assert_eq!(alone[1], alone[5], "{arch}: a scale of 0 is no adapter");
        let different: std::collections::HashSet<_> = [0, 2, 4].map(|i| alone[i].clone()).into();
        assert_eq!(different.len(), 3, "{arch}: the adapters change too little to tell");
    }
}

#[test]
fn state_is_reused_with_the_adapters_that_made_it_only() {
    let dir = TempDir::new().expect("a folder");
    let model = with_adapters(&dir, "qwen3", &[5, 6]);
    for n_sequences in [1, 8] {
        let config = EngineConfig { store_bytes: 64 << 20, ..config(256, n_sequences) };
        let (engine, _alone) = engine(&model, config);
        let mut first = Vec::new();
        for set in &SETS[..5] {
            let reply = generate(&engine, &prompt(0), using(set, 8));
            assert_eq!(reply.n_cached(), 0, "{n_sequences} slots: {set:?} took up another's state");
            first.push(reply.tokens);
        }
        for (set, first) in SETS.iter().zip(&first) {
            let again = generate(&engine, &prompt(0), using(set, 8));
            assert_eq!((again.n_cached(), &again.tokens), (89, first), "{n_sequences} slots: {set:?}");
        }
    }
}

#[test]
fn prompts_that_begin_alike_and_come_together_share_state_with_the_same_adapters_only() {
    let dir = TempDir::new().expect("a folder");
    let model = with_adapters(&dir, "qwen3", &[5]);
    let (engine, _alone) = engine(&model, config(256, 4));
    let sets: [&[(usize, f32)]; 4] = [&[], &[(0, 1.0)], &[], &[(0, 1.0)]];
    let replies = generate_all(&engine, sets.iter().map(|set| (prompt(0), using(set, 8))).collect());
    let cached: Vec<usize> = replies.iter().map(|reply| reply.n_cached()).collect();
    assert_eq!(cached, [0, 0, 89, 89]);
    assert_eq!(replies[0].tokens, replies[2].tokens);
    assert_eq!(replies[1].tokens, replies[3].tokens);
    assert_ne!(replies[0].tokens, replies[1].tokens);
}

#[test]
fn a_slot_file_remembers_its_adapters_by_what_is_in_them() {
    let dir = TempDir::new().expect("a folder");
    let model = with_adapters(&dir, "qwen35", &[5, 6]);
    let (engine, _alone) = engine(&model, config(256, 1));
    let first = generate(&engine, &prompt(0), using(&[(1, 0.5)], 8));
    let file = slot_bytes(&engine);
    assert!(file.len() <= engine.max_slot_bytes());
    let all: Vec<TokenId> = prompt(0).into_iter().chain(first.tokens.iter().copied()).collect();
    let expected = generate(&engine, &all, using(&[(1, 0.5)], 8));
    assert!(expected.n_cached() > 90, "{}", expected.n_cached());

    // The same adapter is number 0 here.
    let other = spawn(&with_adapters(&dir, "qwen35", &[6]), config(256, 1), None);
    other.load_slot(0, other.read_slot(&file).expect("sound"), Scope::default()).expect("free");
    let found = generate(&other, &all, using(&[(0, 0.5)], 8));
    assert_eq!((found.n_cached(), &found.tokens), (expected.n_cached(), &expected.tokens));
    for set in [&[][..], &[(0, 1.0)]] {
        other.load_slot(0, other.read_slot(&file).expect("sound"), Scope::default()).expect("free");
        assert_eq!(generate(&other, &all, using(set, 8)).n_cached(), 0, "{set:?} took up another's state");
    }
    for (seeds, reason) in [(&[][..], "1 adapters, 0 are loaded"), (&[5], "an adapter that is not loaded here")] {
        let without = spawn(&with_adapters(&dir, "qwen35", seeds), config(256, 1), None);
        let error = without.read_slot(&file).expect_err(reason).to_string();
        assert!(error.contains(reason), "`{error}` is not `{reason}`");
    }
    // NaN as the factor, and lengths that are cut.
    let mut bad = file.clone();
    bad[8 + 32 + 8 + 32..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(other.read_slot(&bad).expect_err("NaN").to_string().contains("a finite number"));
    for n in [8, 40, 47, 50, 80, 83] {
        assert!(other.read_slot(&file[..n]).is_err(), "{n} bytes");
    }

    // Without adapters the file is the one that engines without any write.
    generate(&engine, &prompt(0), RequestOptions { cache: false, ..using(&[], 8) });
    let plain = spawn(&with_adapters(&dir, "qwen35", &[]), config(256, 1), None);
    generate(&plain, &prompt(0), RequestOptions { cache: false, ..using(&[], 8) });
    assert!(slot_bytes(&engine) == slot_bytes(&plain), "adapters that are loaded change a slot file without any");
}

#[test]
fn adapters_that_are_not_there_are_refused() {
    let dir = TempDir::new().expect("a folder");
    let model = with_adapters(&dir, "qwen3", &[5]);
    let (engine, _alone) = engine(&model, config(256, 1));
    let request = |set: &[(usize, f32)]| GenerateRequest::new(prompt(0), using(set, 8), engine.limits());
    assert!(request(&[(0, 2.0)]).is_ok());
    let error = request(&[(1, 1.0)]).expect_err("there is one");
    assert!(matches!(error, RequestError::Adapters(_)), "{error}");
    assert_eq!(error.to_string(), "adapter 1 does not exist: 1 are loaded, numbered from 0");
}

#[test]
fn an_adapter_whose_numbers_are_not_finite_ends_its_own_request_only() {
    let dir = TempDir::new().expect("a folder");
    let spec = Spec::of("qwen3");
    let base = spec.document();
    let mut bad = adapter(&spec, &base, 4, 5, |name| name.contains("ffn_down"));
    bad.tensors[1].data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let options = LoadOptions { adapters: vec![bad.write(&dir.path().join("bad.gguf"))], ..LoadOptions::default() };
    let model = Model::open(&base.write(&dir.path().join("base.gguf")), &options).expect("its shapes are sound");
    let (engine, _alone) = engine(&model, config(256, 2));
    let expected = generate(&engine, &prompt(0), using(&[], 8)).tokens;
    let error = test_support::submit(&engine, &prompt(0), using(&[(0, 1.0)], 8));
    let ended = std::iter::from_fn({
        let mut error = error;
        move || error.next()
    });
    let last = ended.last().expect("an end");
    assert!(matches!(&last, engine::Event::Failed(why) if why.contains("not finite")), "{last:?}");
    assert_eq!(generate(&engine, &prompt(0), using(&[], 8)).tokens, expected);
}
