//! Every architecture and every layout that files of it have: one tiny random model each, and layouts that must not
//! matter do not.

mod support;

use std::path::Path;
use std::sync::Arc;

use gguf::TensorType;
use model::{LoadError, LoadOptions, Model, NextNHead, architectures, nextn_architectures};
use support::golden::{largest_difference, open};
use support::rig::{Rig, exact};
use support::tiny::{Document, Meta, Rng, Spec};
use tempfile::TempDir;

fn opened(document: &Document) -> Arc<Model> {
    let dir = TempDir::new().expect("a folder");
    open(&document.write(&dir.path().join("tiny.gguf")))
}

fn refused(document: &Document) -> LoadError {
    let dir = TempDir::new().expect("a folder");
    let path = document.write(&dir.path().join("tiny.gguf"));
    Model::open(&path, &LoadOptions::default()).expect_err("the file is not sound")
}

/// Logits of all rows of a prompt and of four single rows after it.
fn logits(model: &Arc<Model>) -> Vec<f32> {
    let mut rng = Rng::new(11);
    let ids: Vec<u32> = (0..24).map(|_| rng.below(256) as u32).collect();
    let mut rig = Rig::new(model, exact(1, 256));
    let slot = rig.slot();
    let all = rig.in_pieces(&slot, &ids, &[20, 1, 1, 1, 1]);
    assert!(all.iter().all(|v| v.is_finite()), "{model:?}");
    all
}

/// The same weights in another layout give the same sums, but ggml may cut the work in other pieces.
fn assert_same(name: &str, changed: &Document, plain: &Document) {
    let (found, expected) = (logits(&opened(changed)), logits(&opened(plain)));
    let difference = largest_difference(&found, &expected);
    assert!(difference <= 1e-5, "{name}: logits differ by {difference}");
}

fn assert_other(name: &str, changed: &Document, plain: &Document) {
    let difference = largest_difference(&logits(&opened(changed)), &logits(&opened(plain)));
    assert!(difference > 1e-2, "{name}: what was changed is not read; logits differ by {difference}");
}

/// Keys in cells are rotated ones: a slot that was saved under one list of factors is none under the other.
#[test]
fn states_of_short_and_of_long_contexts_are_told_apart_where_a_model_has_factors_for_each() {
    let (phi3, llama) = (opened(&Spec::of("phi3").document()), opened(&Spec::of("llama").document()));
    let of = |model: &Arc<Model>, n_ctx| model.fingerprint_in(n_ctx).expect("the file is as it was");
    // Its original context has 4096 positions.
    assert_eq!(of(&phi3, 512), of(&phi3, 4096));
    assert_ne!(of(&phi3, 4096), of(&phi3, 8192));
    assert_eq!(of(&phi3, 4096), phi3.fingerprint().expect("the file is as it was"));
    assert_eq!(of(&llama, 512), of(&llama, 1 << 20));
}

#[test]
fn every_architecture_opens_and_computes() {
    let mut seen = Vec::new();
    for arch in architectures() {
        for (tied, nextn) in [(false, false), (true, false), (false, true)] {
            let nextn = nextn && nextn_architectures().contains(&arch);
            let spec = Spec { tied, nextn, ..Spec::of(arch) };
            let model = opened(&spec.document());
            assert_eq!(model.describe().architecture, arch);
            let sizes = model.hparams();
            assert_eq!((sizes.n_layer, sizes.n_embd, sizes.n_vocab), (spec.n_layer, spec.n_embd, spec.n_vocab));
            assert_eq!(model.nextn().is_bound(), nextn, "{arch}");
            assert_eq!(model.state_layout().layers.len(), spec.n_layer, "{arch}: the head's block is not the trunk's");
            seen.push(logits(&model));
        }
    }
    for (i, a) in seen.iter().enumerate() {
        for (j, b) in seen.iter().enumerate().skip(i + 1) {
            // A head that is there and not used changes nothing; all else does.
            let only_nextn = architectures()[i / 3] == architectures()[j / 3] && i % 3 == 0 && j % 3 == 2;
            assert_eq!(a == b, only_nextn, "models {i} and {j}");
        }
    }
}

#[test]
fn a_tied_head_is_the_embedding() {
    for arch in architectures() {
        let tied = Spec { tied: true, ..Spec::of(arch) }.document();
        let mut untied = tied.clone();
        let mut head = untied.tensors.iter().find(|t| t.name == "token_embd.weight").expect("there").clone();
        head.name = "output.weight".into();
        untied.tensors.push(head);
        assert_same(arch, &tied, &untied);
    }
}

#[test]
fn fused_matrices_equal_split_ones() {
    for arch in architectures() {
        let spec = Spec::of(arch);
        let plain = spec.document();
        let mut fused = plain.clone();
        for il in (0..spec.n_layer).filter(|&il| !spec.is_recurrent(il)) {
            for end in ["weight", "bias"] {
                let parts = ["q", "k", "v"].map(|what| format!("blk.{il}.attn_{what}.{end}"));
                // Layers that read others' cells have queries alone, and keys may be the values.
                if parts.iter().all(|part| plain.tensors.iter().any(|t| t.name == *part)) {
                    fused.fuse(&parts.each_ref().map(String::as_str), &format!("blk.{il}.attn_qkv.{end}"));
                }
            }
        }
        assert_same(arch, &fused, &plain);
    }
    for arch in architectures().into_iter().filter(|arch| Spec::of(arch).n_expert > 0) {
        let spec = Spec::of(arch);
        let plain = spec.document();
        let mut fused = plain.clone();
        for il in 0..spec.n_layer {
            let parts = ["gate", "up"].map(|what| format!("blk.{il}.ffn_{what}_exps.weight"));
            if !plain.tensors.iter().any(|t| t.name == parts[0]) {
                continue;
            }
            fused.fuse(&parts.each_ref().map(String::as_str), &format!("blk.{il}.ffn_gate_up_exps.weight"));
            let biases = ["gate", "up"].map(|what| format!("blk.{il}.ffn_{what}_exps.bias"));
            if plain.tensors.iter().any(|t| t.name == biases[0]) {
                // Half of a joint matrix has a bias that nobody reads.
                assert!(refused(&fused).to_string().contains(&biases[0]), "{arch}");
                fused.fuse_rows(&biases.each_ref().map(String::as_str), &format!("blk.{il}.ffn_gate_up_exps.bias"));
            }
        }
        assert_same(arch, &fused, &plain);
    }
}

/// Rows of matrices or parts of vectors in another order.
fn reorder(document: &Document, name: &str, to: &str, order: &[usize], size: usize) -> support::tiny::Tensor {
    let tensor = document.tensors.iter().find(|t| t.name == name).expect("there");
    let n_bytes = size * if tensor.ne.len() > 1 { 4 * tensor.ne[0] as usize } else { 4 };
    let data = order.iter().flat_map(|&i| tensor.data[i * n_bytes..][..n_bytes].to_vec()).collect();
    support::tiny::Tensor { name: to.to_owned(), data, ..tensor.clone() }
}

/// Older files of Qwen3-Next hold queries, keys, values and gates of a key head side by side.
#[test]
fn joint_inputs_of_delta_nets_equal_split_ones() {
    let spec = Spec { n_k_heads: 2, n_v_heads: 6, ..Spec::of("qwen3next") };
    let plain = spec.document();
    let mut joint = plain.clone();
    for il in (0..spec.n_layer).filter(|&il| spec.is_recurrent(il)) {
        let name = |what: &str| format!("blk.{il}.{what}.weight");
        joint.fuse(&[&name("attn_qkv"), &name("attn_gate")], &name("ssm_in"));
        // Heads of qkv and gate: 2 queries, 2 keys, 6 values, 6 gates.
        let order = [0, 2, 4, 5, 6, 10, 11, 12, 1, 3, 7, 8, 9, 13, 14, 15];
        let tensor = reorder(&joint, &name("ssm_in"), &name("ssm_in"), &order, spec.d_state);
        joint.take(&name("ssm_in"));
        joint.tensors.push(tensor);
    }
    assert_same("ssm_in", &joint, &plain);
}

/// The two orders of heads are the same model where each key head has one value head.
#[test]
fn grouped_and_tiled_heads_are_one_model_where_there_are_as_many_of_both() {
    let spec = Spec { n_k_heads: 4, n_v_heads: 4, ..Spec::of("qwen3next") };
    let grouped = spec.document();
    let mut tiled = grouped.clone();
    for (key, value) in &mut tiled.keys {
        *key = key.replace("qwen3next.", "qwen35moe.");
        if *value == Meta::Str("qwen3next".into()) {
            *value = Meta::Str("qwen35moe".into());
        }
    }
    for il in (0..spec.n_layer).filter(|&il| spec.is_recurrent(il)) {
        let joint = tiled.take(&format!("blk.{il}.ssm_ba.weight"));
        for (what, first) in [("beta", 0), ("alpha", 1)] {
            let rows: Vec<usize> = (0..4).map(|i| 2 * i + first).collect();
            let mut part = reorder(&grouped, &joint.name, &format!("blk.{il}.ssm_{what}.weight"), &rows, 1);
            part.ne[1] = 4;
            tiled.tensors.push(part);
        }
    }
    assert_same("grouped and tiled", &grouped, &tiled);
}

#[test]
fn shards_equal_the_single_file() {
    for arch in architectures() {
        let document = Spec::of(arch).document();
        let dir = TempDir::new().expect("a folder");
        let first = document.write_shards(dir.path());
        assert_eq!(logits(&open(&first)), logits(&opened(&document)), "{arch}");

        let second = dir.path().join("tiny-00002-of-00002.gguf");
        let error = Model::open(&second, &LoadOptions::default()).expect_err("not the first").to_string();
        assert!(error.contains("this is shard 2 of 2"), "{error}");
        std::fs::remove_file(&second).expect("it is there");
        let error = Model::open(&first, &LoadOptions::default()).expect_err("a shard is missing").to_string();
        assert!(error.contains("tiny-00002-of-00002.gguf"), "{error}");
    }
}

#[test]
fn layer_kinds_come_from_the_list_or_the_interval() {
    for arch in ["qwen35", "qwen35moe", "qwen3next"] {
        let spec = Spec { nextn: true, ..Spec::of(arch) };
        let plain = spec.document();
        let list = format!("{arch}.attention.recurrent_layers");
        let mut listed = plain.clone();
        listed.unset(&format!("{arch}.full_attention_interval"));
        listed.set(&list, Meta::Bools((0..=spec.n_layer).map(|il| spec.is_recurrent(il)).collect()));
        assert_same(arch, &listed, &plain);
        // The list goes first.
        listed.set(&format!("{arch}.full_attention_interval"), Meta::U32(4));
        assert_same(arch, &listed, &plain);
        // The list of the trunk alone is one short.
        listed.set(&list, Meta::Bools((0..spec.n_layer).map(|il| spec.is_recurrent(il)).collect()));
        assert_eq!(refused(&listed).to_string(), format!("{list}: 4 flags found, 5 expected (one for each block)"));
        // Another interval asks for tensors that are not there.
        let mut other = plain.clone();
        other.set(&format!("{arch}.full_attention_interval"), Meta::U32(4));
        assert!(matches!(refused(&other), LoadError::Missing(_)));
    }
}

#[test]
fn head_counts_may_be_lists_with_0_for_layers_without_attention() {
    for arch in ["qwen35", "qwen35moe", "qwen3next"] {
        let spec = Spec { nextn: true, ..Spec::of(arch) };
        let plain = spec.document();
        let key = format!("{arch}.attention.head_count_kv");
        let counts: Vec<u32> = (0..=spec.n_layer).map(|il| if spec.is_recurrent(il) { 0 } else { 2 }).collect();
        let mut listed = plain.clone();
        listed.set(&key, Meta::U32s(counts.clone()));
        assert_same(arch, &listed, &plain);
        listed.set(&key, Meta::U32s(counts[..spec.n_layer].to_vec()));
        assert_eq!(refused(&listed).to_string(), format!("{key}: 4 values found, 5 expected (one for each block)"));
        listed.set(&key, Meta::U32s(vec![0; spec.n_layer + 1]));
        assert!(matches!(refused(&listed), LoadError::Key { .. }), "attention without key heads");
    }
}

#[test]
fn constants_of_the_file_are_read() {
    for arch in architectures() {
        let plain = Spec::of(arch).document();
        for (key, value) in [
            ("rope.freq_base", Meta::F32(50.0)),
            ("rope.dimension_count", Meta::U32(8)),
            ("attention.layer_norm_rms_epsilon", Meta::F32(0.1)),
            ("attention.scale", Meta::F32(0.9)),
        ] {
            let mut changed = plain.clone();
            changed.set(&format!("{arch}.{key}"), value);
            match (arch, key.starts_with("rope.")) {
                // Nothing is rotated.
                ("nemotron_h" | "nemotron_h_moe", true) => assert_same(arch, &changed, &plain),
                // All of the rotated part is.
                ("deepseek2", _) if key == "rope.dimension_count" => {
                    let error = refused(&changed).to_string();
                    assert!(error.contains("deepseek2.attention.key_length: 96 found, 64 + 8 expected"), "{error}");
                }
                // Queries and keys are normed: scores need no factor, and files have none.
                ("gemma4", _) if key == "attention.scale" => assert_same(arch, &changed, &plain),
                // Each pair has a factor.
                ("phi3", _) if key == "rope.dimension_count" => {
                    let error = refused(&changed).to_string();
                    assert!(error.contains("rope_factors_short.weight: [4] expected, [8] found"), "{error}");
                }
                _ => assert_other(&format!("{arch}, {key}"), &changed, &plain),
            }
        }
    }
}

/// Each key of the router is read, on a file that has groups, a correction and a factor.
#[test]
fn what_a_file_says_of_its_router_is_read() {
    let plain = Spec::of("glm4moe").document();
    for (key, value) in [
        ("expert_gating_func", Meta::U32(1)),
        ("expert_gating_func", Meta::U32(3)),
        ("expert_group_count", Meta::U32(1)),
        ("expert_weights_norm", Meta::Bool(false)),
        ("expert_weights_scale", Meta::F32(2.5)),
    ] {
        let mut changed = plain.clone();
        changed.set(&format!("glm4moe.{key}"), value);
        assert_other(key, &changed, &plain);
    }
    // What the family means where the file is silent.
    for (key, value) in [("expert_gating_func", Meta::U32(2)), ("expert_shared_count", Meta::U32(7))] {
        let mut changed = plain.clone();
        changed.set(&format!("glm4moe.{key}"), value);
        assert_same(key, &changed, &plain);
    }
    let mut uncorrected = plain.clone();
    for t in uncorrected.tensors.iter_mut().filter(|t| t.name.ends_with("exp_probs_b.bias")) {
        t.data.fill(0);
    }
    assert_other("exp_probs_b", &uncorrected, &plain);
    uncorrected.take("blk.1.exp_probs_b.bias");
    assert!(refused(&uncorrected).to_string().contains("blk.1.exp_probs_b.bias"));
}

#[test]
fn routers_that_could_not_choose_are_refused_by_key() {
    for (key, value, says) in [
        ("expert_gating_func", 4, "4 found; 1 (softmax), 2 (sigmoid) and 3 (softmax of the chosen) are supported"),
        ("expert_group_count", 4, "6 experts in 4 groups; equal groups of 2 or more expected"),
        ("expert_group_count", 6, "6 experts in 6 groups; equal groups of 2 or more expected"),
        ("expert_group_used_count", 1, "1 groups of 2 experts, of which a token uses 3"),
        ("expert_group_used_count", 0, "0 found, 1 to 3 expected"),
        ("expert_group_used_count", 4, "4 found, 1 to 3 expected"),
        ("expert_used_count", 7, "7 of 6 experts"),
    ] {
        let mut changed = Spec::of("glm4moe").document();
        changed.set(&format!("glm4moe.{key}"), Meta::U32(value));
        assert_eq!(refused(&changed).to_string(), format!("glm4moe.{key}: {says}"));
    }
    // A shared expert that nothing tells of.
    let mut silent = Spec::of("glm4moe").document();
    silent.unset("glm4moe.expert_shared_feed_forward_length");
    let error = refused(&silent).to_string();
    assert!(error.contains("_shexp.weight: a shared expert is not expected here"), "{error}");
}

#[test]
fn each_factor_of_granite_is_read_and_0_is_none() {
    let plain = Spec::of("granite").document();
    for key in ["granite.embedding_scale", "granite.residual_scale", "granite.logit_scale"] {
        let mut changed = plain.clone();
        changed.unset(key);
        assert_other(key, &changed, &plain);
        let mut none = plain.clone();
        none.set(key, Meta::F32(0.0));
        assert_same(key, &none, &changed);
        changed.set(key, Meta::F32(-1.0));
        assert!(refused(&changed).to_string().contains(key));
    }
}

#[test]
fn short_convolutions_have_taps_within_reason_and_any_of_them_is_read() {
    for n_taps in [2, 3, 4, 5] {
        let mut spec = Spec::of("lfm2");
        spec.more[0].1 = Meta::U32(n_taps);
        let plain = spec.document();
        let mut changed = plain.clone();
        let conv = changed.tensors.iter_mut().find(|t| t.name == "blk.0.shortconv.conv.weight").expect("there");
        // The first tap is on the oldest row.
        for row in conv.data.chunks_exact_mut(4 * n_taps as usize) {
            row[..4].fill(0);
        }
        assert_other(&format!("{n_taps} taps"), &changed, &plain);
    }
    for n_taps in [0, 1, 65] {
        let mut changed = Spec::of("lfm2").document();
        changed.set("lfm2.shortconv.l_cache", Meta::U32(n_taps));
        assert_eq!(refused(&changed).to_string(), format!("lfm2.shortconv.l_cache: {n_taps} found, 2 to 64 expected"));
    }
}

/// Head norms are used where they are: GLM-4.5 has them, GLM-4.5-Air has not.
#[test]
fn norms_of_heads_may_be_there_or_not() {
    let plain = Spec::of("glm4moe").document();
    let mut normed = plain.clone();
    let like = plain.tensors.iter().find(|t| t.name == "output_norm.weight").expect("there");
    for il in 0..4 {
        for what in ["q", "k"] {
            let mut norm = like.clone();
            norm.name = format!("blk.{il}.attn_{what}_norm.weight");
            (norm.ne, norm.data) = (vec![32], norm.data[..4 * 32].to_vec());
            normed.tensors.push(norm);
        }
    }
    assert_other("glm4moe, norms of heads", &normed, &plain);
    normed.take("blk.2.attn_k_norm.weight");
    assert!(refused(&normed).to_string().contains("blk.2.attn_k_norm.weight"));
    normed.take("blk.2.attn_q_norm.weight");
    logits(&opened(&normed));
}

#[test]
fn more_value_heads_than_key_heads_and_other_widths_compute() {
    for (n_k_heads, n_v_heads, n_taps, n_head, n_head_kv) in [(1, 3, 2, 4, 4), (2, 6, 4, 4, 1), (4, 4, 5, 6, 2)] {
        for arch in ["qwen35", "qwen3next"] {
            let spec = Spec { n_k_heads, n_v_heads, n_taps, n_head, n_head_kv, interval: 4, ..Spec::of(arch) };
            logits(&opened(&spec.document()));
        }
    }
    let one_expert = Spec { n_used: 1, ..Spec::of("qwen35moe") };
    logits(&opened(&one_expert.document()));
    let all_experts = Spec { n_used: 6, ..Spec::of("qwen3moe") };
    logits(&opened(&all_experts.document()));
}

#[test]
fn a_head_that_is_promised_and_missing_is_named_and_the_trunk_runs() {
    for arch in nextn_architectures() {
        let spec = Spec { nextn: true, ..Spec::of(arch) };
        let whole = spec.document();
        let trunk = logits(&opened(&whole));
        let prefix = format!("blk.{}.", spec.n_layer);
        let mut without = whole.clone();
        without.tensors.retain(|t| !t.name.starts_with(&prefix));
        let model = opened(&without);
        let NextNHead::Missing(names) = model.nextn() else { panic!("{arch}: {:?}", model.nextn()) };
        let expected = ["nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm"];
        assert_eq!(*names, expected.map(|what| format!("{prefix}{what}.weight")), "{arch}");
        assert_eq!(logits(&model), trunk, "{arch}");

        // One tensor of its block.
        let mut without = whole.clone();
        without.take(&format!("{prefix}attn_output.weight"));
        let model = opened(&without);
        assert_eq!(*model.nextn(), NextNHead::Missing(vec![format!("{prefix}attn_output.weight")]), "{arch}");
        // The head's own last norm may be absent: the trunk's takes its place.
        let mut without = whole.clone();
        without.take(&format!("{prefix}nextn.shared_head_norm.weight"));
        // A layer norm has no stand-in.
        assert_eq!(opened(&without).nextn().is_bound(), !arch.starts_with("nemotron_h"), "{arch}");
        // Wrong shapes are not missing ones.
        let mut wrong = whole.clone();
        let tensor = wrong.tensors.iter_mut().find(|t| t.name.ends_with("eh_proj.weight")).expect("there");
        tensor.ne = vec![tensor.ne[1], tensor.ne[0]];
        let error = refused(&wrong).to_string();
        let says = format!("{prefix}nextn.eh_proj.weight: [96, 48] expected, [48, 96] found");
        assert!(error.starts_with(&says), "{error}");
    }
}

#[test]
fn a_tensor_of_another_size_or_type_is_refused_by_name() {
    let plain = Spec::of("qwen35moe").document();
    for (name, ne, dtype, says) in [
        ("output_norm.weight", vec![24, 2], TensorType::F32, "[48] expected, [24, 2] found"),
        ("blk.0.ssm_a", vec![2], TensorType::I64, ""),
        ("blk.1.attn_k.weight", vec![48, 64], TensorType::I32, "type i32 found"),
        ("blk.0.attn_norm.weight", vec![48], TensorType::I32, "type i32 found"),
    ] {
        let mut changed = plain.clone();
        let tensor = changed.tensors.iter_mut().find(|t| t.name == name).expect("there");
        (tensor.ne, tensor.dtype) = (ne, dtype);
        let error = refused(&changed).to_string();
        assert!(error.starts_with(name) && error.contains(says), "{error}");
    }
}

#[test]
fn the_generator_writes_what_it_says() {
    let dir = TempDir::new().expect("a folder");
    let document = Spec::of("qwen35").document();
    let bytes = std::fs::read(document.write(Path::new(&dir.path().join("tiny.gguf")))).expect("it was written");
    let header = gguf::Header::parse(&bytes).expect("a sound file");
    assert_eq!((header.metadata().len(), header.tensors().len()), (document.keys.len(), document.tensors.len()));
    for (found, written) in header.tensors().iter().zip(&document.tensors) {
        assert!(found.name == written.name && bytes[found.range()] == written.data, "{}", written.name);
    }
}
