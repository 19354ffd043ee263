//! Cells that hold NaN, from a file or a step that went wrong, do not reach the slot's next user: masked cells are multiplied by
//! zero, and zero times NaN is NaN.

use std::sync::Arc;

use crate::support::{rig, tiny};
use memory::{CacheType, MemoryConfig, SavedSequence, Slot};
use model::{LoadOptions, Model};
use rig::{Rig, exact};
use tiny::{Rng, Spec};

/// Types of the cells, and whether values are transposed (attention without flash).
const CELLS: [(CacheType, bool); 6] = [
    (CacheType::F32, true),
    (CacheType::F32, false),
    (CacheType::F16, true),
    (CacheType::F16, false),
    (CacheType::Q8_0, false),
    (CacheType::Q4_0, false),
];

const ARCHS: [&str; 3] = ["qwen35", "qwen35moe", "llama"];

fn model(arch: &'static str) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = Spec::of(arch).document().write(&dir.path().join("tiny.gguf"));
    Model::open(&path, &LoadOptions::default()).expect("a sound file")
}

fn ids(seed: u64, n: usize) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.below(256) as u32).collect()
}

/// The sequence with all of its numbers NaN: cells, and recurrent state. Lengths stay.
fn all_nan(saved: &SavedSequence) -> SavedSequence {
    let mut bytes = Vec::new();
    saved.write_to(&mut bytes);
    let first = bytes.len() - saved.n_bytes();
    // NaN as F32 and as F16, and as the scale of a block.
    bytes[first..].fill(0xFF);
    SavedSequence::from_bytes(&bytes).expect("the same lengths")
}

/// 16 tokens by the model alone, in prompt and steps, and all logits on the way.
fn use_slot(rig: &mut Rig, slot: &Slot) -> Vec<f32> {
    let mut logits = rig.step(&[(slot, &ids(5, 30))]);
    for id in ids(6, 4) {
        logits.extend(rig.step(&[(slot, &[id])]));
    }
    logits
}

#[test]
fn cells_of_a_file_that_are_not_numbers_are_gone_with_their_sequence() {
    for arch in ARCHS {
        let model = model(arch);
        for (cache, v_transposed) in CELLS {
            let what = format!("{arch}, {cache}, v_transposed {v_transposed}");
            let config = MemoryConfig { type_k: cache, type_v: cache, v_transposed, ..exact(2, 300) };
            let mut rig = Rig::new(&model, config);
            let (slot, other) = (rig.slot(), rig.slot());
            let expected = use_slot(&mut rig, &slot);
            assert!(expected.iter().all(|x| x.is_finite()), "{what}");
            rig.memory.reset(&slot).expect("a slot in use");
            rig.step(&[(&slot, &ids(1, 290))]);
            let poison = all_nan(&rig.memory.save(&slot).expect("state that is there"));

            rig.memory.load(&slot, &poison).expect("it fits");
            rig.memory.reset(&slot).expect("a slot in use");
            assert!(use_slot(&mut rig, &slot) == expected, "{what}: after a reset");
            rig.memory.load(&slot, &poison).expect("it fits");
            rig.memory.truncate(&slot, 0).expect("all can be forgotten");
            assert!(use_slot(&mut rig, &slot) == expected, "{what}: after cutting all");
            rig.memory.load(&slot, &poison).expect("it fits");
            rig.memory.release(slot);
            let slot = rig.slot();
            assert!(use_slot(&mut rig, &slot) == expected, "{what}: for the next user");
            // A sequence in the place of a longer bad one.
            let good = rig.memory.save(&slot).expect("state that is there");
            rig.memory.load(&other, &poison).expect("it fits");
            rig.memory.load(&other, &good).expect("it fits");
            let next = ids(9, 3);
            let after = rig.step(&[(&slot, &next)]);
            assert!(rig.step(&[(&other, &next)]) == after, "{what}: after another sequence");
        }
    }
}

/// Back to a position before the bad cells.
#[test]
fn bad_cells_behind_the_place_gone_back_to_are_gone() {
    for arch in ARCHS {
        let model = model(arch);
        for (cache, v_transposed) in CELLS {
            let what = format!("{arch}, {cache}, v_transposed {v_transposed}");
            let config = MemoryConfig { type_k: cache, type_v: cache, v_transposed, ..exact(1, 300) };
            let mut rig = Rig::new(&model, config);
            let slot = rig.slot();
            rig.step(&[(&slot, &ids(3, 20))]);
            let good = rig.memory.save(&slot).expect("state that is there");
            let here = rig.memory.checkpoint(&slot).expect("state that is there");
            let next = ids(4, 5);
            let expected = rig.step(&[(&slot, &next)]);
            rig.step(&[(&slot, &ids(1, 200))]);
            // 225 positions: the first 20 are good.
            let whole = rig.memory.save(&slot).expect("state that is there");
            let poison = with_cells_of(&all_nan(&whole), &good, &config, &model);
            rig.memory.load(&slot, &poison).expect("it fits");
            if model.state_layout().is_recurrent() {
                rig.memory.restore(&slot, &here).expect("a position that it has");
            } else {
                rig.memory.truncate(&slot, 20).expect("a position that it has");
            }
            assert!(rig.step(&[(&slot, &next)]) == expected, "{what}");
        }
    }
}

/// `long` with the first cells of `short`: both are runs of cells, tensor by tensor.
fn with_cells_of(long: &SavedSequence, short: &SavedSequence, config: &MemoryConfig, model: &Model) -> SavedSequence {
    let bytes = |saved: &SavedSequence| {
        let mut bytes = Vec::new();
        saved.write_to(&mut bytes);
        bytes
    };
    let (mut into, from) = (bytes(long), bytes(short));
    let (mut to, mut at) = (into.len(), from.len());
    // From the back: the runs of the last layer come last.
    for layer in model.state_layout().layers.iter().rev() {
        let memory::LayerState::Kv(kv) = layer else { continue };
        let row = |d: usize, t: CacheType| kv.n_head_kv * t.head_bytes(d).expect("whole blocks");
        let (k, v) = (row(kv.d_k, config.type_k), row(kv.d_v, config.type_v));
        let values = if config.v_transposed {
            let n = kv.d_v * kv.n_head_kv;
            vec![config.type_v.dtype().block_bytes(); n]
        } else {
            vec![v]
        };
        for cell in values.into_iter().rev().chain([k]) {
            (to, at) = (to - long.len() * cell, at - short.len() * cell);
            into[to..to + short.len() * cell].copy_from_slice(&from[at..at + short.len() * cell]);
        }
    }
    SavedSequence::from_bytes(&into).expect("the same lengths")
}
