//! Weights that are in memory once more with their rows joined: logits and drafts have the bits that they have without.

use std::path::Path;
use std::sync::Arc;

use ggml::Dtype;
use gguf::TensorType;
use memory::MemoryConfig;
use model::{DraftVocab, LoadOptions, Model, Placement, architectures, nextn_architectures};

use crate::draft_probs::draft;
use crate::support::rig::{Rig, exact};
use crate::support::tiny::{Document, Rng, Spec};

fn open(path: &Path, repack: bool) -> Arc<Model> {
    let placement = Placement { repack, ..Placement::default() };
    Model::open(path, &LoadOptions { placement, ..LoadOptions::default() }).expect("a sound file")
}

/// Wide enough for blocks of Q8_0, and for whole groups of eight rows.
fn spec(arch: &'static str) -> Spec {
    Spec { n_embd: 64, n_ff: 64, nextn: nextn_architectures().contains(&arch), ..Spec::of(arch) }
}

/// The same with matrices of Q8_0, where rows are whole blocks.
fn packed(mut document: Document) -> Document {
    let is_matrix = |name: &str| !["ffn_gate_inp", "conv1d", "ssm_"].iter().any(|word| name.contains(word));
    for t in document.tensors.iter_mut().filter(|t| t.ne.len() >= 2 && t.ne[0] % 32 == 0 && is_matrix(&t.name)) {
        let floats: Vec<f32> = t.data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect();
        t.data = vec![0; floats.len() / 32 * 34];
        ggml::pack_rows(Dtype::Q8_0, &floats, t.ne[0] as usize, None, &mut t.data).expect("whole blocks");
        t.dtype = TensorType::Q8_0;
    }
    document
}

/// Logits of a prompt, of rows one by one and of a draft that was kept in part.
fn logits(model: &Arc<Model>) -> Vec<u32> {
    let mut rng = Rng::new(17);
    let ids: Vec<u32> = (0..60).map(|_| rng.below(256) as u32).collect();
    let mut rig = Rig::new(model, MemoryConfig { n_snapshots: 4, ..exact(1, 256) });
    let slot = rig.slot();
    let mut all = rig.in_pieces(&slot, &ids[..44], &[40, 1, 3]);
    all.extend(rig.step_keeping(&[(&slot, &ids[44..48])], 4, &[2]));
    all.extend(rig.in_pieces(&slot, &ids[46..], &[1, 13]));
    all.iter().map(|x| x.to_bits()).collect()
}

/// True when the processor's kernels read joined rows.
fn is_served() -> bool {
    matches!(ggml::kernels_in_use().as_str(), "avx2" | "avxvnni" | "avx512" | "amx")
}

#[test]
fn logits_have_the_bits_of_weights_as_they_lie() {
    let dir = tempfile::TempDir::new().expect("a folder");
    for arch in architectures() {
        let path = packed(spec(arch).document()).write(&dir.path().join(format!("{arch}.gguf")));
        let (plain, joined) = (open(&path, false), open(&path, true));
        assert_eq!(plain.weights().joined_bytes(), 0);
        assert_eq!(joined.weights().joined_bytes() > 0, is_served(), "{arch}: {:?}", joined.weights());
        assert!(logits(&plain) == logits(&joined), "{arch}: other bits");
    }
}

#[test]
fn only_what_is_multiplied_is_joined() {
    if !is_served() {
        return;
    }
    let dir = tempfile::TempDir::new().expect("a folder");
    let bytes = |tied: bool| {
        let document = packed(Spec { tied, ..spec("qwen3") }.document());
        let words = document.tensors.iter().filter(|t| t.name == "token_embd.weight").map(|t| t.data.len()).sum();
        let all: usize = document.tensors.iter().filter(|t| t.dtype == TensorType::Q8_0).map(|t| t.data.len()).sum();
        let model = open(&document.write(&dir.path().join("tied.gguf")), true);
        (model.weights().joined_bytes(), all, words)
    };
    let (joined, all, _) = bytes(true);
    assert_eq!(joined, all, "the table of words is the output matrix, too");
    let (joined, all, words): (usize, usize, usize) = bytes(false);
    assert_eq!(joined, all - words, "a table that rows are only read of");
}

#[test]
fn drafts_of_part_of_the_words_too() {
    let dir = tempfile::TempDir::new().expect("a folder");
    for arch in ["qwen35", "qwen35moe"] {
        let path = packed(Spec { tied: true, ..spec(arch) }.document()).write(&dir.path().join("head.gguf"));
        // Whole groups of rows, and one that is not.
        for n_first in [64, 36] {
            let drafts = [false, true].map(|repack| {
                let model = open(&path, repack);
                let vocab = DraftVocab::new(&model, n_first, 8).expect("room for words");
                let found = draft(&model, Some(&vocab), None, false);
                let logits: Vec<u32> = found.logits.iter().flatten().map(|x| x.to_bits()).collect();
                (found.tokens, logits)
            });
            assert!(drafts[0] == drafts[1], "{arch}, {n_first} words: {drafts:?}");
        }
    }
}
