//! Layers that are not attention with a gated feed-forward: latent rows, Mamba-2 mixers, layers of one part. What files may
//! say in several ways comes to the same, and a row has the same bits alone and in company.

use std::sync::Arc;

use crate::support::{rig, tiny};
use memory::{CacheType, LayerState, MemoryConfig};
use model::{LoadError, LoadOptions, Model};
use rig::{Rig, exact};
use tiny::{Document, Meta, Rng, Spec, Tensor};

fn open(document: &Document) -> Result<Arc<Model>, LoadError> {
    let dir = tempfile::TempDir::new().expect("a folder");
    Model::open(&document.write(&dir.path().join("tiny.gguf")), &LoadOptions::default())
}

fn opened(document: &Document) -> Arc<Model> {
    open(document).expect("a sound file")
}

fn ids(seed: u64, n: usize) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.below(256) as u32).collect()
}

/// Logits of every row of a prompt of 70 tokens, computed at once.
fn logits(document: &Document) -> Vec<f32> {
    let mut rig = Rig::new(&opened(document), exact(1, 256));
    let slot = rig.slot();
    rig.step(&[(&slot, &ids(5, 70))])
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.data.as_chunks::<4>().0.iter().map(|&v| f32::from_le_bytes(v)).collect()
}

/// The file as converters wrote it before they split `attn_kv_b`: for each head its key rows, then its value rows.
fn unsplit(plain: &Document, n_layer: usize) -> Document {
    let mut joint = plain.clone();
    for il in 0..n_layer {
        let (k, v) =
            (joint.take(&format!("blk.{il}.attn_k_b.weight")), joint.take(&format!("blk.{il}.attn_v_b.weight")));
        let [d_nope, n_lora, n_head] = [0, 1, 2].map(|i| k.ne[i] as usize);
        let d_v = v.ne[1] as usize;
        let (of_k, of_v) = (floats(&k), floats(&v));
        let mut rows: Vec<f32> = Vec::new();
        for h in 0..n_head {
            for i in 0..d_nope {
                rows.extend((0..n_lora).map(|l| of_k[(h * n_lora + l) * d_nope + i]));
            }
            rows.extend_from_slice(&of_v[h * d_v * n_lora..][..d_v * n_lora]);
        }
        joint.tensors.push(Tensor {
            name: format!("blk.{il}.attn_kv_b.weight"),
            ne: vec![n_lora as u64, (n_head * (d_nope + d_v)) as u64],
            dtype: k.dtype,
            data: rows.into_iter().flat_map(f32::to_le_bytes).collect(),
        });
    }
    for key in ["attention.key_length_mla", "attention.value_length_mla"] {
        joint.unset(&format!("deepseek2.{key}"));
    }
    joint.set("deepseek2.attention.key_length", Meta::U32(56));
    joint.set("deepseek2.attention.value_length", Meta::U32(20));
    joint.set("deepseek2.attention.head_count_kv", Meta::U32(4));
    joint
}

#[test]
fn a_file_with_an_unsplit_matrix_of_keys_and_values_equals_the_split_one() {
    let plain = Spec::of("deepseek2").document();
    let joint = unsplit(&plain, 4);
    assert!(difference(&logits(&joint), &logits(&plain)) < 1e-4);
    let kinds = |document: &Document| match opened(document).state_layout().layers[0] {
        LayerState::Kv(kv) => (kv.latent, kv.n_head_kv, kv.d_k, kv.d_v),
        _ => unreachable!("a layer of attention"),
    };
    assert_eq!((kinds(&plain), kinds(&joint)), ((true, 1, 96, 64), (false, 4, 56, 20)));
}

#[test]
fn queries_may_be_made_at_once() {
    let spec = Spec::of("deepseek2");
    let mut whole = spec.document();
    whole.unset("deepseek2.attention.q_lora_rank");
    let mut rng = Rng::new(3);
    for il in 0..4 {
        for name in ["q_a.weight", "q_a_norm.weight"] {
            whole.take(&format!("blk.{il}.attn_{name}"));
        }
        let up = whole.take(&format!("blk.{il}.attn_q_b.weight"));
        let ne = vec![48, up.ne[1]];
        let data = (0..48 * up.ne[1]).flat_map(|_| (rng.normal() / 7.0).to_le_bytes()).collect();
        whole.tensors.push(Tensor { name: format!("blk.{il}.attn_q.weight"), ne, dtype: up.dtype, data });
    }
    assert!(logits(&whole).iter().all(|v| v.is_finite()));
    whole.set("deepseek2.attention.q_lora_rank", Meta::U32(40));
    assert!(matches!(open(&whole), Err(LoadError::Missing(name)) if name == "blk.0.attn_q_a.weight"));
}

#[test]
fn a_file_without_a_gating_has_that_of_its_family() {
    let vocabulary = |spec: &Spec, n: u32| {
        let mut document = spec.document();
        document.set("deepseek2.vocab_size", Meta::U32(n));
        document
    };
    let small = Spec { n_embd: 16, n_head: 2, n_ff: 8, n_expert: 3, n_used: 2, ..Spec::of("deepseek2") };
    let ungrouped = |n_layer| {
        let mut spec = Spec { n_layer, ..small.clone() };
        spec.more.retain(|(key, _)| !key.contains("group"));
        spec
    };
    for (n_layer, n_vocab, gating) in [(47, 154_880, 2), (48, 154_880, 2), (47, 1000, 1), (4, 154_880, 1)] {
        let told = {
            let mut told = vocabulary(&ungrouped(n_layer), n_vocab);
            told.set("deepseek2.expert_gating_func", Meta::U32(gating));
            told
        };
        let mut silent = told.clone();
        silent.unset("deepseek2.expert_gating_func");
        assert!(logits(&silent) == logits(&told), "{n_layer} layers, {n_vocab} tokens");
    }
}

#[test]
fn widths_that_do_not_belong_together_are_refused_by_key() {
    for (arch, key, value, says) in [
        ("deepseek2", "attention.key_length_mla", 32, "32 found, more than the 32 rotated elements expected"),
        ("deepseek2", "attention.key_length", 95, "95 found, 64 + 32 expected"),
        ("deepseek2", "rope.dimension_count", 8, "96 found, 64 + 8 expected"),
        ("nemotron_h_moe", "ssm.time_step_rank", 5, "5 heads are no multiple of 2 groups"),
        ("nemotron_h_moe", "ssm.inner_size", 94, "94 found, a multiple of 4 heads expected"),
    ] {
        let mut changed = Spec::of(arch).document();
        changed.set(&format!("{arch}.{key}"), Meta::U32(value));
        let error = open(&changed).expect_err(key).to_string();
        assert!(error.contains(says), "{error}");
    }
    for key in ["attention.head_count_kv", "feed_forward_length"] {
        let mut changed = Spec::of("nemotron_h").document();
        changed.unset(&format!("nemotron_h.{key}"));
        assert!(open(&changed).expect_err(key).to_string().contains("is missing: it tells layers apart"));
        changed.set(&format!("nemotron_h.{key}"), Meta::U32s(vec![2; 4]));
        let error = open(&changed).expect_err(key).to_string();
        assert!(error.contains("has attention and a feed-forward"), "{error}");
    }
}

#[test]
fn experts_may_differ_in_width_from_layer_to_layer() {
    let plain = Spec::of("nemotron_h_moe").document();
    let mut listed = plain.clone();
    listed.set("nemotron_h_moe.expert_feed_forward_length", Meta::U32s(vec![0, 24, 0, 0]));
    listed.set("nemotron_h_moe.expert_used_count", Meta::U32s(vec![0, 3, 0, 0]));
    assert!(logits(&listed) == logits(&plain));
    listed.set("nemotron_h_moe.expert_feed_forward_length", Meta::U32s(vec![24, 25, 24, 24]));
    let error = open(&listed).expect_err("another width").to_string();
    assert!(error.contains("blk.1.ffn_"), "{error}");
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_company() {
    for arch in ["deepseek2", "nemotron_h", "nemotron_h_moe"] {
        let model = opened(&Spec::of(arch).document());
        for (cache, v_transposed) in [(CacheType::F16, true), (CacheType::F16, false), (CacheType::F32, true)] {
            for n_past in [100, 600] {
                let config = MemoryConfig { type_k: cache, type_v: cache, v_transposed, ..exact(1, 768) };
                let (past, next) = (ids(11, n_past), ids(7, 5));
                let run = |width: usize| {
                    let mut rig = Rig::new(&model, config);
                    let slot = rig.slot();
                    rig.step(&[(&slot, &past)]);
                    next.chunks(width).flat_map(|ids| rig.step(&[(&slot, ids)])).collect::<Vec<f32>>()
                };
                let (alone, together) = (run(1), run(5));
                let same = alone.iter().zip(&together).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{arch}, {cache}, v_transposed {v_transposed}, {n_past} cells");
            }
        }
    }
}
