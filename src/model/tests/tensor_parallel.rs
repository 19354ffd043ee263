//! Tensor parallelism: two shares of a model, each on threads of its own, compute what the model computes alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::draft_probs::draft;
use crate::support::{rig, tiny};
use ggml::Device;
use memory::MemoryConfig;
use model::{DraftVocab, GpuLayers, LoadError, LoadOptions, MemoryPlan, MemoryPlanner, Model, Placement, Split};
use rig::{Rig, exact};
use text::TokenId;
use tiny::{Rng, Spec};

/// For logits of size up to about 5, whose sums are made in another order; measured at most: 5e-6.
const CLOSE: f32 = 1e-4;

/// Architectures whose layers devices take by turns only; the small `mimo2` has layers of one key head.
const BY_TURNS: [&str; 6] = ["lfm2", "gemma4", "deepseek2", "nemotron_h", "nemotron_h_moe", "mimo2"];

fn shares(n: usize) -> LoadOptions {
    let gpus = vec![Device::cpu().expect("there is one"); n];
    LoadOptions {
        placement: Placement { gpus, split: Split::Tensor, ..Placement::default() },
        ..LoadOptions::default()
    }
}

fn written(spec: &Spec, dir: &Path) -> PathBuf {
    spec.document().write(&dir.join("tiny.gguf"))
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference <= CLOSE && found.iter().all(|x| x.is_finite()), "{what}: logits differ by {difference}");
}

#[test]
fn two_shares_compute_what_the_model_computes_alone() {
    let mut refused = Vec::new();
    for arch in model::architectures() {
        let dir = tempfile::TempDir::new().expect("a folder");
        let path = written(&Spec::of(arch), dir.path());
        let both = match Model::open(&path, &shares(2)) {
            Ok(model) => model,
            Err(error @ (LoadError::TensorParallel(_) | LoadError::Tensor { .. })) => {
                println!("{arch}: {error}");
                refused.push(arch);
                continue;
            }
            Err(error) => panic!("{arch}: {error}"),
        };
        let alone = Model::open(&path, &LoadOptions::default()).expect("a sound file");
        assert_eq!(both.n_ranks(), 2);
        let mut rng = Rng::new(5);
        let ids: Vec<u32> = (0..30).map(|_| rng.below(256) as u32).collect();
        let of = |model: &Arc<Model>, lengths: &[usize]| {
            let mut rig = Rig::new(model, exact(1, 64));
            let slot = rig.slot();
            rig.in_pieces(&slot, &ids, lengths)
        };
        let expected = of(&alone, &[20, 4, 1, 5]);
        assert_close(&of(&both, &[20, 4, 1, 5]), &expected, arch);
    }
    let expected: Vec<_> = model::architectures().into_iter().filter(|arch| BY_TURNS.contains(arch)).collect();
    assert_eq!(refused, expected);
}

#[test]
fn shares_of_a_head_draft_what_it_drafts_alone() {
    for arch in ["qwen35", "qwen35moe", "step35"] {
        let dir = tempfile::TempDir::new().expect("a folder");
        // The rows of the output matrix are shared too.
        let path = written(&Spec { nextn: true, n_vocab: 512, ..Spec::of(arch) }, dir.path());
        let [alone, both] = [LoadOptions::default(), shares(2)].map(|o| Model::open(&path, &o).expect("a sound file"));
        let words = |model: &Arc<Model>| {
            let mut part = DraftVocab::new(model, 100, 16).expect("room for a part of the vocabulary");
            part.see(model, [101, 250, 133, 400].map(TokenId)).expect("four copies");
            part
        };
        let (of_alone, of_both) = (words(&alone), words(&both));
        for (alone_has, both_have) in [(None, None), (Some(&of_alone), Some(&of_both))] {
            let (expected, found) = (draft(&alone, alone_has, None, true), draft(&both, both_have, None, true));
            assert_eq!(found.tokens, expected.tokens, "{arch}");
            for (found, expected) in found.logits.iter().zip(&expected.logits) {
                let there = |logits: &[f32]| logits.iter().copied().filter(|x| *x > -1e20).collect::<Vec<_>>();
                assert_close(&there(found), &there(expected), arch);
            }
        }
    }
}

#[test]
fn a_sequence_of_shares_is_saved_taken_back_and_loaded() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = written(&Spec::of("qwen35"), dir.path());
    let [alone, both] = [LoadOptions::default(), shares(2)].map(|o| Model::open(&path, &o).expect("a sound file"));
    let config = MemoryConfig { n_snapshots: 4, ..exact(2, 64) };
    let mut rig = Rig::new(&both, config);
    let (first, second) = (rig.slot(), rig.slot());
    let ids: Vec<u32> = (0..16).map(|i| 40 + i * 7).collect();
    rig.step(&[(&first, &ids[..10])]);
    // Two rows of four are taken back.
    rig.step_keeping(&[(&first, &[9, 8, 7, 6])], 4, &[2]);
    let saved = rig.memory.save(&first).expect("a sequence");
    rig.memory.load(&second, &saved).expect("room");
    let next = rig.step(&[(&first, &ids[10..13]), (&second, &ids[10..13])]);
    let (of_first, of_second) = next.split_at(next.len() / 2);
    assert_eq!(of_first, of_second);
    let mut plain = Rig::new(&alone, config);
    let slot = plain.slot();
    plain.step(&[(&slot, &ids[..10])]);
    plain.step(&[(&slot, &[9, 8])]);
    assert_close(of_first, &plain.step(&[(&slot, &ids[10..13])]), "after what was kept");
    // A state of shares is no state of the whole.
    assert!(plain.memory.load(&slot, &saved).is_err());
}

#[test]
fn what_cannot_be_shared_is_said() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let said = |spec: &Spec, options: &LoadOptions| {
        let path = written(spec, dir.path());
        match Model::open(&path, options) {
            Err(error) => error.to_string(),
            Ok(model) => panic!("{model:?} was opened"),
        }
    };
    let qwen = Spec::of("qwen35");
    let heads = said(&qwen, &shares(3));
    assert!(heads.contains("--split-mode tensor") && heads.contains("cannot be shared by 3 GPUs"), "{heads}");
    let one = said(&qwen, &shares(1));
    assert!(one.contains("2 to 8 GPUs expected, there are 1"), "{one}");
    let mut with_moe = shares(2);
    with_moe.placement.n_cpu_moe = 1;
    assert!(said(&qwen, &with_moe).contains("--cpu-moe"));
    let mut few = shares(2);
    few.placement.layers = GpuLayers::Count(2);
    assert!(said(&qwen, &few).contains("--gpu-layers"));
    let mut learning = shares(2);
    learning.replaceable_head = true;
    assert!(said(&qwen, &learning).contains("--learn-live"));
    let mut large = shares(2);
    large.placement.planner = MemoryPlanner::new(|_| MemoryPlan {
        state: exact(1, 64),
        head: None,
        own_head: false,
        draft_words: None,
        n_batch: 1,
        n_out: 1,
        flash_attention: false,
        n_runners: 1,
        beside: usize::MAX,
    });
    let room = said(&qwen, &large);
    assert!(room.contains("--split-mode tensor: the share of CPU needs") && room.contains("0 MiB are free"), "{room}");
    let latent = said(&Spec::of("deepseek2"), &shares(2));
    assert!(latent.contains("--split-mode layer"), "{latent}");
}
