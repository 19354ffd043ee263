//! Checkpoints of Nemotron-H, whose feed-forwards are dense, and of Nemotron 3, whose are experts: two architectures of files for
//! one class.

use serde_json::{Value, json};

use crate::families::{FUSION, N_EMBD, N_VOCAB, add, config, converted, converted_with, key, list, mtp, numbers, same};
use crate::support::{Tensor, Tensors};

fn dense(more: Value) -> Value {
    let mut config = config(
        "NemotronHForCausalLM",
        json!({"hybrid_override_pattern": "M-*", "layer_norm_epsilon": 1e-5, "mamba_num_heads": 8, "mamba_head_dim": 8,
            "n_groups": 2, "ssm_state_size": 4, "conv_kernel": 4, "rope_parameters": null}),
    );
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    config
}

const ATTENTION: &[(&str, &[u64])] = &[
    ("norm.weight", &[N_EMBD]),
    ("mixer.q_proj.weight", &[48, N_EMBD]),
    ("mixer.k_proj.weight", &[24, N_EMBD]),
    ("mixer.v_proj.weight", &[24, N_EMBD]),
    ("mixer.o_proj.weight", &[N_EMBD, 48]),
];

fn layer(tensors: &mut Tensors, il: u64, names: &[(&str, &[u64])]) {
    for (name, shape) in names {
        add(tensors, &[(&format!("backbone.layers.{il}.{name}"), shape)]);
    }
}

/// What both have: words, norms and, as layer 0, a mixer.
fn with_mixer() -> Tensors {
    let mut tensors = Tensors::new();
    add(
        &mut tensors,
        &[
            ("backbone.embeddings.weight", &[N_VOCAB, N_EMBD]),
            ("backbone.norm_f.weight", &[N_EMBD]),
            ("lm_head.weight", &[N_VOCAB, N_EMBD]),
        ],
    );
    layer(
        &mut tensors,
        0,
        &[
            ("norm.weight", &[N_EMBD]),
            ("mixer.D", &[8]),
            ("mixer.dt_bias", &[8]),
            ("mixer.conv1d.weight", &[80, 1, 4]),
            ("mixer.conv1d.bias", &[80]),
            ("mixer.norm.weight", &[64]),
            ("mixer.in_proj.weight", &[152, N_EMBD]),
            ("mixer.out_proj.weight", &[N_EMBD, 64]),
        ],
    );
    tensors.insert("backbone.layers.0.mixer.A_log".into(), Tensor::f32(&[8], (0..8).map(|i| i as f32 / 4.0)));
    tensors
}

fn tensors() -> Tensors {
    let mut tensors = with_mixer();
    let dense: &[(&str, &[u64])] = &[
        ("norm.weight", &[N_EMBD]),
        ("mixer.up_proj.weight", &[40, N_EMBD]),
        ("mixer.down_proj.weight", &[N_EMBD, 40]),
    ];
    layer(&mut tensors, 1, dense);
    layer(&mut tensors, 2, ATTENTION);
    tensors
}

#[test]
fn a_model_without_experts_has_its_own_architecture_and_no_keys_of_experts() {
    // As published, and as transformers 5 writes it: with numbers for experts that are not there.
    let saved = json!({"hybrid_override_pattern": null, "num_hidden_layers": null, "num_experts_per_tok": 2, "n_routed_experts": 8,
        "moe_intermediate_size": 16, "layers_block_type": ["linear_attention", "mlp", "full_attention"]});
    let named = json!({"head_dim": null, "attention_head_dim": 12});
    for more in [json!({}), saved, named] {
        let file = converted_with(&dense(more), &tensors(), false, |_| ()).expect("a whole checkpoint");
        assert_eq!(key(&file, "general.architecture"), "Str(\"nemotron_h\")");
        assert_eq!(list(&file, "nemotron_h.feed_forward_length"), "[I32(0), I32(40), I32(0)]");
        assert_eq!(list(&file, "nemotron_h.attention.head_count_kv"), "[I32(0), I32(0), I32(2)]");
        assert_eq!(key(&file, "nemotron_h.attention.key_length"), "U32(12)");
        for absent in ["expert_count", "expert_used_count", "expert_feed_forward_length", "nextn_predict_layers"] {
            assert_eq!(key(&file, &format!("nemotron_h.{absent}")), "absent", "{absent}");
        }
        same(
            &file,
            &tensors(),
            &[
                ("blk.1.attn_norm.weight", "backbone.layers.1.norm.weight"),
                ("blk.1.ffn_up.weight", "backbone.layers.1.mixer.up_proj.weight"),
                ("blk.1.ffn_down.weight", "backbone.layers.1.mixer.down_proj.weight"),
                ("blk.2.attn_output.weight", "backbone.layers.2.mixer.o_proj.weight"),
            ],
        );
    }
}

#[test]
fn a_dense_model_that_is_not_whole_is_refused() {
    let mut cut = tensors();
    cut.remove("backbone.layers.1.mixer.up_proj.weight");
    let error =
        converted_with(&dense(json!({})), &cut, false, |_| ()).map(drop).expect_err("a matrix is missing").to_string();
    assert!(error.contains("blk.1.ffn_up.weight"), "{error}");
    let error = converted_with(&dense(json!({"intermediate_size": null})), &tensors(), false, |_| ());
    let error = error.map(drop).expect_err("no width").to_string();
    assert!(error.contains("intermediate_size is missing"), "{error}");
    let none = json!({"num_hidden_layers": null});
    let error = converted_with(&dense(none), &tensors(), false, |_| ()).map(drop).expect_err("no number").to_string();
    assert!(error.contains("num_hidden_layers is missing"), "{error}");
}

#[test]
fn two_layers_of_nemotrons_mtp_are_one_of_the_head_and_rows_of_mamba_become_matrices() {
    let config = config(
        "NemotronHForCausalLM",
        json!({"hybrid_override_pattern": "M*E", "layer_norm_epsilon": 1e-5, "n_routed_experts": 5, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16, "n_shared_experts": 1,
            "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 4, "conv_kernel": 4,
            "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1, "rope_parameters": null}),
    );
    let mut routed: Vec<(String, Vec<u64>)> = vec![
        ("norm.weight".into(), vec![N_EMBD]),
        ("mixer.gate.weight".into(), vec![5, N_EMBD]),
        ("mixer.gate.e_score_correction_bias".into(), vec![5]),
        ("mixer.shared_experts.up_proj.weight".into(), vec![16, N_EMBD]),
        ("mixer.shared_experts.down_proj.weight".into(), vec![N_EMBD, 16]),
    ];
    for e in 0..5 {
        routed.push((format!("mixer.experts.{e}.up_proj.weight"), vec![16, N_EMBD]));
        routed.push((format!("mixer.experts.{e}.down_proj.weight"), vec![N_EMBD, 16]));
    }
    let routed: Vec<(&str, &[u64])> = routed.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    let mut tensors = with_mixer();
    layer(&mut tensors, 1, ATTENTION);
    layer(&mut tensors, 2, &routed);
    mtp(&mut tensors, 0, FUSION);
    mtp(&mut tensors, 0, ATTENTION);
    mtp(&mut tensors, 1, &routed);
    mtp(&mut tensors, 1, &[("final_layernorm.weight", &[N_EMBD])]);
    let file = converted(&config, &tensors).expect("a whole checkpoint");
    same(
        &file,
        &tensors,
        &[
            ("blk.0.ssm_in.weight", "backbone.layers.0.mixer.in_proj.weight"),
            ("blk.0.ssm_conv1d.bias", "backbone.layers.0.mixer.conv1d.bias"),
            ("blk.3.attn_norm.weight", "mtp.layers.0.norm.weight"),
            ("blk.3.attn_v.weight", "mtp.layers.0.mixer.v_proj.weight"),
            ("blk.3.post_attention_norm.weight", "mtp.layers.1.norm.weight"),
            ("blk.3.nextn.shared_head_norm.weight", "mtp.layers.1.final_layernorm.weight"),
            ("blk.3.ffn_up_shexp.weight", "mtp.layers.1.mixer.shared_experts.up_proj.weight"),
        ],
    );
    let of = |name: &str| tensors[&format!("backbone.layers.0.mixer.{name}")].floats();
    assert_eq!(numbers(&file, "blk.0.ssm_d"), (vec![1, 8], of("D")));
    assert_eq!(numbers(&file, "blk.0.ssm_norm.weight"), (vec![32, 2], of("norm.weight")));
    let (shape, decays) = numbers(&file, "blk.0.ssm_a");
    assert_eq!(shape, [1, 8]);
    for (a, log) in decays.iter().zip(of("A_log")) {
        assert!((a + log.exp()).abs() <= 1e-6 * log.exp(), "{a} of {log}");
    }
    assert_eq!(list(&file, "nemotron_h_moe.attention.head_count_kv"), "[I32(0), I32(2), I32(0), I32(2)]");
    assert_eq!(list(&file, "nemotron_h_moe.feed_forward_length"), "[I32(0), I32(0), I32(16), I32(16)]");
    for (pattern, what) in [("M-E", "layer 1 is dense"), ("M+E", "layer 1 is \"+\""), ("M*", "2 layers")] {
        let mut other = config.clone();
        other["hybrid_override_pattern"] = json!(pattern);
        let error = converted(&other, &tensors).expect_err("layers that files do not have").to_string();
        assert!(error.contains(what), "{error}");
    }
}
