//! Checkpoints of Nemotron-H, whose feed-forwards are dense: another architecture of files for the same class.

use serde_json::{Value, json};

use crate::families::{N_EMBD, N_VOCAB, add, config, converted_with, key, list, same};
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

fn tensors() -> Tensors {
    let mut tensors = Tensors::new();
    add(
        &mut tensors,
        &[
            ("backbone.embeddings.weight", &[N_VOCAB, N_EMBD]),
            ("backbone.norm_f.weight", &[N_EMBD]),
            ("lm_head.weight", &[N_VOCAB, N_EMBD]),
            ("backbone.layers.0.norm.weight", &[N_EMBD]),
            ("backbone.layers.0.mixer.D", &[8]),
            ("backbone.layers.0.mixer.dt_bias", &[8]),
            ("backbone.layers.0.mixer.conv1d.weight", &[80, 1, 4]),
            ("backbone.layers.0.mixer.conv1d.bias", &[80]),
            ("backbone.layers.0.mixer.norm.weight", &[64]),
            ("backbone.layers.0.mixer.in_proj.weight", &[152, N_EMBD]),
            ("backbone.layers.0.mixer.out_proj.weight", &[N_EMBD, 64]),
            ("backbone.layers.1.norm.weight", &[N_EMBD]),
            ("backbone.layers.1.mixer.up_proj.weight", &[40, N_EMBD]),
            ("backbone.layers.1.mixer.down_proj.weight", &[N_EMBD, 40]),
            ("backbone.layers.2.norm.weight", &[N_EMBD]),
            ("backbone.layers.2.mixer.q_proj.weight", &[48, N_EMBD]),
            ("backbone.layers.2.mixer.k_proj.weight", &[24, N_EMBD]),
            ("backbone.layers.2.mixer.v_proj.weight", &[24, N_EMBD]),
            ("backbone.layers.2.mixer.o_proj.weight", &[N_EMBD, 48]),
        ],
    );
    tensors.insert("backbone.layers.0.mixer.A_log".into(), Tensor::f32(&[8], (0..8).map(|i| i as f32 / 4.0)));
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
