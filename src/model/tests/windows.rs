//! Models with windows whose cells are a ring: the logits of a memory that keeps all cells, and after whatever was dropped,
//! restored or loaded the bits of a sequence to which nothing happened. Tiny random models; every failure names its seed.

use std::sync::Arc;

use crate::support::{rig, tiny};
use memory::{CacheType, MemoryConfig};
use model::{LoadOptions, Model};
use rig::{Rig, exact};
use tiny::{Rng, Spec};

const MAX_ROWS: usize = 23;

/// The windows are of about ten positions, so the rings have 256 cells, which the sequences outgrow twice.
const N: usize = 600;

fn models() -> Vec<(&'static str, Arc<Model>)> {
    let open = |arch| {
        let dir = tempfile::TempDir::new().expect("a folder");
        let path = Spec::of(arch).document().write(&dir.path().join("tiny.gguf"));
        (arch, Model::open(&path, &LoadOptions::default()).expect("a sound file"))
    };
    let windowed = model::architectures().into_iter().map(open).filter(|(_, model)| {
        let has_window =
            |layer: &memory::LayerState| matches!(layer, memory::LayerState::Kv(kv) if kv.window.is_some());
        model.state_layout().layers.iter().any(has_window)
    });
    windowed.collect()
}

fn ids(rng: &mut Rng, n: usize) -> Vec<u32> {
    (0..n).map(|_| rng.below(256) as u32).collect()
}

fn lengths(rng: &mut Rng, mut n: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    while n > 0 {
        lengths.push((1 + rng.below(MAX_ROWS)).min(n));
        n -= lengths[lengths.len() - 1];
    }
    lengths
}

fn ring(v_transposed: bool) -> MemoryConfig {
    MemoryConfig { v_transposed, max_rows: Some(MAX_ROWS), ..exact(2, 1024) }
}

#[test]
fn a_ring_gives_the_logits_of_all_cells() {
    let models = models();
    assert!(models.len() >= 4, "{models:?}");
    for (arch, model) in models {
        for (seed, v_transposed) in [(1, true), (2, false)] {
            let mut rng = Rng::new(seed);
            let (ids, lengths) = (ids(&mut rng, N), lengths(&mut rng, N));
            let logits = |config| {
                let mut rig = Rig::new(&model, config);
                let slot = rig.slot();
                rig.in_pieces(&slot, &ids, &lengths)
            };
            let (found, expected) =
                (logits(ring(v_transposed)), logits(MemoryConfig { max_rows: None, ..ring(v_transposed) }));
            let difference = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // The same cells in another order. Logits are of size up to about 5.
            assert!(found.len() == expected.len() && difference <= 1e-4, "{arch}, seed {seed}: {difference}");
            assert!(Rig::new(&model, ring(true)).memory.n_bytes() < Rig::new(&model, exact(2, 1024)).memory.n_bytes());
        }
    }
}

#[test]
fn what_was_dropped_restored_or_loaded_leaves_the_bits_of_a_sequence_to_which_nothing_happened() {
    for (arch, model) in models() {
        for (seed, cache) in [(3, CacheType::F32), (4, CacheType::F16)] {
            let mut rng = Rng::new(seed);
            let config = MemoryConfig { type_k: cache, type_v: cache, ..ring(seed == 3) };
            let (past, next) = (ids(&mut rng, N), ids(&mut rng, 5));
            let lengths = lengths(&mut rng, N);
            let mut rig = Rig::new(&model, config);
            let (slot, other) = (rig.slot(), rig.slot());
            rig.in_pieces(&slot, &past, &lengths);
            let checkpoint = rig.memory.checkpoint(&slot).expect("taken");
            let saved = rig.memory.save(&slot).expect("saved");
            let undisturbed = rig.step(&[(&slot, &next)]);
            let what = |happened: &str| format!("{arch}, seed {seed}: {happened}");

            rig.memory.truncate(&slot, N).expect("a little back");
            assert!(rig.step(&[(&slot, &next)]) == undisturbed, "{}", what("a cut"));
            // Further than the ring reaches, by steps that are kept and one that is not.
            let more = ids(&mut rng, 20 * MAX_ROWS);
            more.chunks(MAX_ROWS).take(15).for_each(|ids| drop(rig.step(&[(&slot, ids)])));
            rig.step_keeping(&[(&slot, &more[..MAX_ROWS])], 1, &[0]);
            assert!(rig.memory.truncate(&slot, N).is_err(), "{}", what("a cut too far"));
            rig.memory.restore(&slot, &checkpoint).expect("a checkpoint of it");
            assert!(rig.step(&[(&slot, &next)]) == undisturbed, "{}", what("a checkpoint"));
            rig.memory.load(&other, &saved).expect("of this shape");
            assert!(rig.step(&[(&other, &next)]) == undisturbed, "{}", what("a saved sequence"));
            rig.memory.reset(&other).expect("cleared");
            rig.memory.copy(&slot, &other, N, None).expect("a little back");
            assert!(rig.step(&[(&other, &next)]) == undisturbed, "{}", what("a copy"));
            rig.memory.truncate(&slot, N).expect("a little back");
            rig.memory.truncate(&other, N).expect("a little back");
            let together = rig.step(&[(&slot, &next), (&other, &next)]);
            assert!(together[..undisturbed.len()] == undisturbed, "{}", what("company"));
            assert!(together[undisturbed.len()..] == undisturbed, "{}", what("company, second"));
        }
    }
}
