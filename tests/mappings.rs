//! Weights are used where the file is mapped: one map, no second copy. Read from what Linux says of this process.
#![cfg(target_os = "linux")]

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use engine::sample::SamplingParams;
use engine::{Engine, EngineConfig, Event, GenerateRequest, RequestOptions};
use gguf::TensorType;
use model::{LoadOptions, Model};
use speculate::{Depth, Mode, SpecConfig, proposer};
use support::golden::open;
use support::rig::{Rig, exact};
use support::tiny::{Document, Meta, Spec};
use tempfile::TempDir;
use text::TokenId;

/// Memory of the whole process is measured: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Graph descriptions, vocabulary, threads, and what the allocator keeps. Far below the weights.
const SLACK: u64 = 6 << 20;

/// Anonymous memory of this process that is resident: heap and stacks, not maps of files.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux 4.5 or later");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

/// The address ranges of all maps of a file.
fn maps_of(path: &Path) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux tells");
    let lines = maps.lines().filter(|line| line.ends_with(path.to_str().expect("a plain path")));
    let range = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    };
    lines.map(|line| range(line).expect("a range")).collect()
}

/// A model whose weights are far larger than all else; every tensor but the embedding is small.
fn large() -> Document {
    let mut document = Spec { n_embd: 256, n_ff: 8192, n_vocab: 300, ..Spec::of("qwen35") }.document();
    document.set("general.name", Meta::Str("large".into()));
    assert!(document.tensors.iter().map(|t| t.data.len()).sum::<usize>() > 24 << 20);
    document
}

/// The same with a NextN head, whose feed-forward alone is larger than what drafting may take.
fn large_with_head() -> Document {
    let spec = Spec { n_embd: 256, n_ff: 8192, n_vocab: 300, nextn: true, ..Spec::of("qwen35") };
    let mut document = spec.document();
    document.set("general.name", Meta::Str("large with a head".into()));
    let of_head = document.tensors.iter().filter(|t| t.name.contains(&format!("blk.{}.", spec.n_layer)));
    assert!(of_head.map(|t| t.data.len() as u64).sum::<u64>() > 2 * SLACK);
    document
}

/// Opens by `open`, runs two passes; gives the growth of anonymous memory beyond state and compute buffers.
fn growth(open: impl FnOnce() -> std::sync::Arc<Model>) -> u64 {
    let before = anonymous_bytes();
    let model = open();
    let mut rig = Rig::new(&model, exact(1, 256));
    let slot = rig.slot();
    let ids: Vec<u32> = (0..16).collect();
    let logits = rig.in_pieces(&slot, &ids, &[15, 1]);
    assert!(logits.iter().all(|v| v.is_finite()));
    anonymous_bytes().saturating_sub(before + rig.n_bytes() as u64)
}

#[test]
fn a_file_is_mapped_once_and_its_weights_are_not_copied() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().expect("a folder");
    let path = large().write(&dir.path().join("mapped-once.gguf"));
    let n_file = std::fs::metadata(&path).expect("it was written").len();
    assert!(maps_of(&path).is_empty());

    let grown = growth(|| {
        let model = open(&path);
        let maps = maps_of(&path);
        let n_mapped: u64 = maps.iter().map(|(from, to)| to - from).sum();
        assert!(maps.windows(2).all(|w| w[0].1 == w[1].0), "several maps: {maps:x?}");
        assert_eq!(n_mapped, n_file.next_multiple_of(4096), "{maps:x?}");
        assert_eq!(model.weights().mappings().len(), 1);
        model
    });
    assert!(grown < SLACK, "{grown} bytes of memory for a file of {n_file}");
    assert!(maps_of(&path).is_empty(), "the map goes with the model");
}

#[test]
fn drafting_uses_the_map_of_the_model_and_adds_only_the_cells_of_the_head() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().expect("a folder");
    let path = large_with_head().write(&dir.path().join("with-head.gguf"));
    let n_file = std::fs::metadata(&path).expect("it was written").len();
    let model = open(&path);
    let before = anonymous_bytes();
    let config = EngineConfig { n_ctx: Some(256), threads: Some(1), ..EngineConfig::default() };
    let spec = SpecConfig { mode: Mode::NextN, depth: Depth::Fixed(3), ..SpecConfig::default() };
    let drafts = proposer(&model, &config, spec).expect("room").expect("a head");
    let engine = Engine::spawn_with(Arc::clone(&model), config, Some(drafts)).expect("an engine");
    let options = RequestOptions {
        max_tokens: Some(32),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    let prompt = (0..16).map(TokenId).collect();
    let request = GenerateRequest::new(prompt, options, engine.limits()).expect("a request that fits");
    let mut generation = engine.submit(request).expect("a place in the queue");
    let mut drafted = 0;
    while let Some(event) = generation.next() {
        match event {
            Event::Finished(summary) => drafted = summary.timings.drafted,
            Event::Failed(why) => panic!("{why}"),
            _ => {}
        }
    }
    assert!(drafted > 0, "the head was used");
    let n_mapped: u64 = maps_of(&path).iter().map(|(from, to)| to - from).sum();
    assert_eq!(n_mapped, n_file.next_multiple_of(4096), "one map of the file, not two");
    let stats = engine.stats().expect("the engine runs");
    let grown = anonymous_bytes().saturating_sub(before + (stats.state_bytes + stats.compute_bytes) as u64);
    assert!(grown < SLACK, "{grown} bytes of memory beside state and buffers, for a file of {n_file}");
}

/// Bytes that live as long as the program, at an address with this remainder.
fn leaked(bytes: &[u8], remainder: usize) -> &'static [u8] {
    let mut room = vec![0u8; bytes.len() + 8192];
    let start = room.as_ptr().align_offset(4096) + remainder;
    room[start..start + bytes.len()].copy_from_slice(bytes);
    &room.leak()[start..start + bytes.len()]
}

#[test]
fn a_model_inside_the_program_is_used_in_place_when_aligned_and_copied_otherwise() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().expect("a folder");
    let document = large();
    let bytes = std::fs::read(document.write(&dir.path().join("embedded.gguf"))).expect("it was written");
    let n_weights: usize = document.tensors.iter().map(|t| t.data.len()).sum();
    assert!(document.tensors.iter().all(|t| t.dtype == TensorType::F32));
    drop(document);
    for (remainder, copied) in [(0, false), (4, true)] {
        let bytes = leaked(&bytes, remainder);
        let model = || Model::from_static(bytes, &LoadOptions::default()).expect("a sound model");
        let grown = growth(model);
        // The second case shows that a copy would be seen.
        let expected = if copied { n_weights as u64 } else { 0 };
        assert!(grown.abs_diff(expected) < SLACK, "at {remainder}: {grown} bytes, {n_weights} of weights");
    }
}

#[test]
fn the_embedded_model_is_used_in_place() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = program::embedded::model_bytes();
    assert!(bytes.as_ptr().addr().is_multiple_of(32));
    let grown = growth(|| Model::from_static(bytes, &LoadOptions::default()).expect("a sound model"));
    assert!(grown < bytes.len() as u64 * 3 / 4, "{grown} bytes of memory for {} embedded", bytes.len());
}
