//! Checkpoints of the families of the table: every tensor finds its place, and only those change whose order or shape differs
//! in files.

use std::path::Path;

use crate::support::{Tensor, Tensors, as_fp8, write_folder};
use convert::Error;
use convert::checkpoint::{Checkpoint, Options};
use convert::quantize::{FileType, Recipe};
use convert::stream::{Control, OnFailure};
use gguf::{Header, TensorType};
use serde_json::{Value, json};

pub(crate) const N_EMBD: u64 = 32;
/// That of the folder's tokenizer.
pub(crate) const N_VOCAB: u64 = 4096;

/// A configuration of three layers, with these fields besides.
pub(crate) fn config(class: &str, more: Value) -> Value {
    let mut config = json!({
        "architectures": [class], "num_hidden_layers": 3, "hidden_size": N_EMBD, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 40, "vocab_size": N_VOCAB,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    });
    let fields = config.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    config
}

/// Numbers that tell tensor and place apart, exact in BF16 or not as it may be: the file is of F32.
pub(crate) fn tensor(name: &str, shape: &[u64]) -> Tensor {
    let seed: u64 = name.bytes().fold(7, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into()));
    Tensor::f32(shape, (0..shape.iter().product()).map(|i| (seed.wrapping_add(i * 7919) % 100_003) as f32))
}

pub(crate) fn add(tensors: &mut Tensors, names: &[(&str, &[u64])]) {
    for (name, shape) in names {
        tensors.insert((*name).to_owned(), tensor(name, shape));
    }
}

/// What stands outside of layers.
pub(crate) fn globals() -> Tensors {
    let mut tensors = Tensors::new();
    add(
        &mut tensors,
        &[
            ("model.embed_tokens.weight", &[N_VOCAB, N_EMBD]),
            ("model.norm.weight", &[N_EMBD]),
            ("lm_head.weight", &[N_VOCAB, N_EMBD]),
        ],
    );
    tensors
}

pub(crate) fn layer(tensors: &mut Tensors, il: u64, names: &[(&str, &[u64])]) {
    for (name, shape) in names {
        add(tensors, &[(&format!("model.layers.{il}.{name}"), shape)]);
    }
}

pub(crate) const ATTENTION: &[(&str, &[u64])] = &[
    ("input_layernorm.weight", &[N_EMBD]),
    ("post_attention_layernorm.weight", &[N_EMBD]),
    ("self_attn.q_proj.weight", &[48, N_EMBD]),
    ("self_attn.k_proj.weight", &[24, N_EMBD]),
    ("self_attn.v_proj.weight", &[24, N_EMBD]),
    ("self_attn.o_proj.weight", &[N_EMBD, 48]),
];
pub(crate) const DENSE: &[(&str, &[u64])] = &[
    ("mlp.gate_proj.weight", &[40, N_EMBD]),
    ("mlp.up_proj.weight", &[40, N_EMBD]),
    ("mlp.down_proj.weight", &[N_EMBD, 40]),
];

/// Five experts one by one, a shared one, and the router.
fn experts(tensors: &mut Tensors, il: u64, shared: bool) {
    for e in 0..5 {
        for (part, shape) in [("gate_proj", [16, N_EMBD]), ("up_proj", [16, N_EMBD]), ("down_proj", [N_EMBD, 16])] {
            layer(tensors, il, &[(&format!("mlp.experts.{e}.{part}.weight"), &shape)]);
        }
    }
    layer(tensors, il, &[("mlp.gate.weight", &[5, N_EMBD])]);
    if shared {
        layer(
            tensors,
            il,
            &[
                ("mlp.gate.e_score_correction_bias", &[5]),
                ("mlp.shared_experts.gate_proj.weight", &[16, N_EMBD]),
                ("mlp.shared_experts.up_proj.weight", &[16, N_EMBD]),
                ("mlp.shared_experts.down_proj.weight", &[N_EMBD, 16]),
            ],
        );
    }
}

pub(crate) fn converted(config: &Value, tensors: &Tensors) -> Result<Vec<u8>, Error> {
    converted_with(config, tensors, false, |_| ())
}

/// With more files in the folder; `requantize` unpacks experts.
pub(crate) fn converted_with(
    config: &Value,
    tensors: &Tensors,
    requantize: bool,
    more: impl Fn(&Path),
) -> Result<Vec<u8>, Error> {
    let dir = tempfile::tempdir().expect("a folder");
    write_folder(dir.path(), config, std::slice::from_ref(tensors));
    more(dir.path());
    let mut model = Checkpoint::open(dir.path(), Options { name: Some("test"), ..Options::default() })?.model;
    let recipe = Recipe { file_type: FileType::F32, head: None, plain: false, imatrix: None, requantize };
    recipe.apply(&mut model)?;
    let out = dir.path().join("out.gguf");
    model.into_job(recipe.stamp())?.run(&out, 2, &Control::default(), OnFailure::Remove)?;
    Ok(std::fs::read(&out).expect("it was written"))
}

/// The numbers of a tensor of a file, and its shape.
pub(crate) fn numbers(file: &[u8], name: &str) -> (Vec<u64>, Vec<f32>) {
    let header = Header::parse(file).expect("a sound file");
    let t = header.tensor(name).unwrap_or_else(|| panic!("{name} is not there"));
    assert_eq!(t.dtype, TensorType::F32, "{name}");
    let floats = file[t.range()].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    (t.dims().to_vec(), floats)
}

/// A tensor of the file is one of the checkpoint as it was.
pub(crate) fn same(file: &[u8], tensors: &Tensors, pairs: &[(&str, &str)]) {
    for (gguf, hf) in pairs {
        let t = tensors.get(*hf).unwrap_or_else(|| panic!("{hf} is not there"));
        let shape: Vec<u64> = t.shape.iter().rev().copied().collect();
        assert_eq!(numbers(file, gguf), (shape, t.floats()), "{gguf}");
    }
}

pub(crate) fn key(file: &[u8], name: &str) -> String {
    let header = Header::parse(file).expect("a sound file");
    header.metadata().get(name).map_or("absent".into(), |value| format!("{value:?}"))
}

/// The entries of a key that is a list.
pub(crate) fn list(file: &[u8], name: &str) -> String {
    let header = Header::parse(file).expect("a sound file");
    let Some(gguf::Value::Array(array)) = header.metadata().get(name) else { panic!("{name} is no list") };
    format!("{:?}", array.iter().collect::<Vec<_>>())
}

#[test]
fn rows_of_llamas_heads_are_put_pair_by_pair() {
    let rope = json!({"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    let config = config("LlamaForCausalLM", json!({"rope_parameters": rope, "attention_bias": true}));
    let mut tensors = globals();
    for il in 0..3 {
        layer(&mut tensors, il, ATTENTION);
        layer(&mut tensors, il, DENSE);
        layer(&mut tensors, il, &[("self_attn.q_proj.bias", &[48])]);
    }
    let file = converted(&config, &tensors).expect("a whole checkpoint");
    same(
        &file,
        &tensors,
        &[
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("output_norm.weight", "model.norm.weight"),
            ("blk.2.attn_v.weight", "model.layers.2.self_attn.v_proj.weight"),
            ("blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight"),
            ("blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight"),
            ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ],
    );
    for (gguf, hf, width) in [
        ("attn_q.weight", "q_proj.weight", N_EMBD),
        ("attn_k.weight", "k_proj.weight", N_EMBD),
        ("attn_q.bias", "q_proj.bias", 1),
    ] {
        let from = tensors[&format!("model.layers.1.self_attn.{hf}")].floats();
        let rows: Vec<&[f32]> = from.chunks_exact(width as usize).collect();
        // Of each head of 12, the first and the seventh, the second and the eighth, ..
        let order = (0..rows.len()).map(|i| i / 12 * 12 + i % 2 * 6 + i % 12 / 2);
        let expected: Vec<f32> = order.flat_map(|row| rows[row].to_vec()).collect();
        assert_eq!(numbers(&file, &format!("blk.1.{gguf}")).1, expected, "{gguf}");
    }
    let (shape, factors) = numbers(&file, "rope_freqs.weight");
    assert_eq!((shape, factors[0], factors[5]), (vec![6], 1.0, 8.0), "fast pairs stay, slow ones are divided");
    assert!(factors.is_sorted(), "{factors:?}");
    assert_eq!(key(&file, "llama.rope.dimension_count"), "U32(12)");
    assert_eq!(key(&file, "llama.attention.head_count_kv"), "U32(2)");
}

#[test]
fn a_nextn_head_behind_the_last_layer_of_glm_is_the_files_head() {
    let routed = json!({"n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": true,
        "num_nextn_predict_layers": 1});
    let config = config("Glm4MoeForCausalLM", routed);
    let mut tensors = globals();
    for il in 0..4 {
        layer(&mut tensors, il, ATTENTION);
        if il == 0 { layer(&mut tensors, il, DENSE) } else { experts(&mut tensors, il, true) }
    }
    layer(
        &mut tensors,
        3,
        &[
            ("eh_proj.weight", &[N_EMBD, 2 * N_EMBD]),
            ("enorm.weight", &[N_EMBD]),
            ("hnorm.weight", &[N_EMBD]),
            ("shared_head.norm.weight", &[N_EMBD]),
        ],
    );
    let file = converted(&config, &tensors).expect("a whole checkpoint");
    same(
        &file,
        &tensors,
        &[
            ("blk.3.nextn.eh_proj.weight", "model.layers.3.eh_proj.weight"),
            ("blk.3.nextn.shared_head_norm.weight", "model.layers.3.shared_head.norm.weight"),
            ("blk.1.post_attention_norm.weight", "model.layers.1.post_attention_layernorm.weight"),
            ("blk.1.exp_probs_b.bias", "model.layers.1.mlp.gate.e_score_correction_bias"),
            ("blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"),
            ("blk.2.ffn_up_shexp.weight", "model.layers.2.mlp.shared_experts.up_proj.weight"),
        ],
    );
    let stack: Vec<f32> =
        (0..5).flat_map(|e| tensors[&format!("model.layers.2.mlp.experts.{e}.up_proj.weight")].floats()).collect();
    assert_eq!(numbers(&file, "blk.2.ffn_up_exps.weight"), (vec![N_EMBD, 16, 5], stack));
    assert_eq!(
        (key(&file, "glm4moe.nextn_predict_layers"), key(&file, "glm4moe.block_count")),
        ("U32(1)".into(), "U32(4)".into())
    );
    // One that is promised and not there is left out.
    tensors.retain(|name, _| !name.starts_with("model.layers.3."));
    let file = converted(&config, &tensors).expect("a whole model without a head");
    assert_eq!(
        (key(&file, "glm4moe.nextn_predict_layers"), key(&file, "glm4moe.block_count")),
        ("absent".into(), "U32(3)".into())
    );
}

#[test]
fn latent_attention_is_split_into_keys_that_are_turned_and_values() {
    let (n_rank, n_nope, n_rope, n_v) = (16u64, 6u64, 4u64, 5u64);
    let sizes = json!({"q_lora_rank": 20, "kv_lora_rank": n_rank, "qk_nope_head_dim": n_nope, "qk_rope_head_dim": n_rope,
        "v_head_dim": n_v, "num_key_value_heads": 4, "head_dim": n_rope, "n_routed_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 3, "scoring_func": "sigmoid"});
    let config = config("DeepseekV3ForCausalLM", sizes);
    let mut tensors = globals();
    for il in 0..3 {
        layer(&mut tensors, il, DENSE);
        layer(
            &mut tensors,
            il,
            &[
                ("input_layernorm.weight", &[N_EMBD]),
                ("post_attention_layernorm.weight", &[N_EMBD]),
                ("self_attn.q_a_proj.weight", &[20, N_EMBD]),
                ("self_attn.q_a_layernorm.weight", &[20]),
                ("self_attn.q_b_proj.weight", &[4 * (n_nope + n_rope), 20]),
                ("self_attn.kv_a_proj_with_mqa.weight", &[n_rank + n_rope, N_EMBD]),
                ("self_attn.kv_a_layernorm.weight", &[n_rank]),
                ("self_attn.kv_b_proj.weight", &[4 * (n_nope + n_v), n_rank]),
                ("self_attn.o_proj.weight", &[N_EMBD, 4 * n_v]),
            ],
        );
    }
    // A layer behind the last: this family's files have no head.
    layer(&mut tensors, 3, &[("eh_proj.weight", &[N_EMBD, 2 * N_EMBD])]);
    let file = converted(&config, &tensors).expect("a whole checkpoint");
    same(&file, &tensors, &[("blk.1.attn_kv_a_mqa.weight", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight")]);
    let from = tensors["model.layers.1.self_attn.kv_b_proj.weight"].floats();
    let at = |row: u64, column: u64| from[(row * n_rank + column) as usize];
    let each = n_nope + n_v;
    let heads = || (0..4u64).flat_map(move |head| (0..n_rank).map(move |column| (head, column)));
    let keys: Vec<f32> = heads()
        .flat_map(|(head, column)| (0..n_nope).map(move |i| (head * each + i, column)))
        .map(|(r, c)| at(r, c))
        .collect();
    assert_eq!(numbers(&file, "blk.1.attn_k_b.weight"), (vec![n_nope, n_rank, 4], keys));
    let values: Vec<f32> = (0..4)
        .flat_map(|head| (0..n_v).map(move |i| head * each + n_nope + i))
        .flat_map(|row| (0..n_rank).map(move |c| (row, c)))
        .map(|(r, c)| at(r, c))
        .collect();
    assert_eq!(numbers(&file, "blk.1.attn_v_b.weight"), (vec![n_rank, n_v, 4], values));
    assert_eq!(key(&file, "deepseek2.attention.key_length"), format!("U32({})", n_rank + n_rope));
    assert_eq!(key(&file, "deepseek2.attention.head_count_kv"), "U32(1)");
}

#[test]
fn what_is_one_matrix_in_a_checkpoint_of_phi_stays_one() {
    let config = config(
        "Phi3ForCausalLM",
        json!({"head_dim": null, "sliding_window": null, "original_max_position_embeddings": 4096}),
    );
    let mut tensors = globals();
    for il in 0..3 {
        layer(
            &mut tensors,
            il,
            &[
                ("input_layernorm.weight", &[N_EMBD]),
                ("post_attention_layernorm.weight", &[N_EMBD]),
                ("self_attn.qkv_proj.weight", &[64, N_EMBD]),
                ("self_attn.o_proj.weight", &[N_EMBD, 32]),
                ("mlp.gate_up_proj.weight", &[80, N_EMBD]),
                ("mlp.down_proj.weight", &[N_EMBD, 40]),
            ],
        );
    }
    let file = converted(&config, &tensors).expect("a whole checkpoint");
    same(
        &file,
        &tensors,
        &[
            ("blk.2.attn_qkv.weight", "model.layers.2.self_attn.qkv_proj.weight"),
            ("blk.2.ffn_up.weight", "model.layers.2.mlp.gate_up_proj.weight"),
        ],
    );
}

/// The model's and `n` layers' of a head within `mtp.layers`.
pub(crate) fn mtp(tensors: &mut Tensors, no: u64, names: &[(&str, &[u64])]) {
    for (name, shape) in names {
        add(tensors, &[(&format!("mtp.layers.{no}.{name}"), shape)]);
    }
}

/// What starts a layer of a head.
pub(crate) const FUSION: &[(&str, &[u64])] =
    &[("eh_proj.weight", &[N_EMBD, 2 * N_EMBD]), ("enorm.weight", &[N_EMBD]), ("hnorm.weight", &[N_EMBD])];

#[test]
fn the_head_of_mimo_lies_within_mtp_layers_and_rows_that_devices_shared_are_put_together() {
    let (n_head, n_kv, d_k, d_v) = (4u64, 4u64, 12u64, 8u64);
    let config = config(
        "MiMoV2FlashForCausalLM",
        json!({"num_key_value_heads": 2, "swa_num_key_value_heads": n_kv, "v_head_dim": d_v, "sliding_window": 16,
            "hybrid_layer_pattern": [0, 1, 1], "n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "rms_norm_eps": null, "layernorm_epsilon": 1e-5, "partial_rotary_factor": 0.334, "swa_rope_theta": 100.0,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}),
    );
    // Rows of one of four devices: queries, keys, values. Each has scales of its own.
    let rows_of_rank = (n_head * d_k + n_kv * (d_k + d_v)) / 4;
    let bytes: Vec<u8> = (0..2 * 4 * rows_of_rank * N_EMBD).map(|i| (i * 37 % 251) as u8).collect();
    let (weight, scales, plain) =
        as_fp8(&Tensor::bf16(&[4 * rows_of_rank, N_EMBD], &bytes), (rows_of_rank as usize, 128));
    let plain = plain.floats();
    let exact: Vec<&[f32]> = plain.chunks((rows_of_rank * N_EMBD) as usize).collect();
    let mut tensors = globals();
    for il in 0..3 {
        layer(&mut tensors, il, &[ATTENTION[0], ATTENTION[1], ("self_attn.o_proj.weight", &[N_EMBD, n_head * d_v])]);
        if il == 0 { layer(&mut tensors, il, DENSE) } else { experts(&mut tensors, il, false) }
    }
    layer(&mut tensors, 0, &[("self_attn.qkv_proj.weight", &[48 + 2 * (d_k + d_v), N_EMBD])]);
    for il in [1, 2] {
        layer(
            &mut tensors,
            il,
            &[("mlp.gate.e_score_correction_bias", &[5]), ("self_attn.attention_sink_bias", &[n_head])],
        );
    }
    layer(&mut tensors, 1, &[("self_attn.qkv_proj.weight", &[4 * rows_of_rank, N_EMBD])]);
    let qkv = "model.layers.2.self_attn.qkv_proj.weight";
    tensors.insert(qkv.into(), weight);
    tensors.insert(format!("{qkv}_scale_inv"), scales);
    for k in 0..2 {
        mtp(&mut tensors, k, FUSION);
        mtp(&mut tensors, k, DENSE);
        mtp(
            &mut tensors,
            k,
            &[
                ATTENTION[0],
                ("pre_mlp_layernorm.weight", &[N_EMBD]),
                ("final_layernorm.weight", &[N_EMBD]),
                ("self_attn.o_proj.weight", &[N_EMBD, n_head * d_v]),
                ("self_attn.attention_sink_bias", &[n_head]),
                ("self_attn.qkv_proj.weight", &[4 * rows_of_rank, N_EMBD]),
            ],
        );
    }
    let file = converted(&config, &tensors).expect("a whole checkpoint");
    same(
        &file,
        &tensors,
        &[
            ("blk.1.attn_qkv.weight", "model.layers.1.self_attn.qkv_proj.weight"),
            ("blk.1.attn_sinks.weight", "model.layers.1.self_attn.attention_sink_bias"),
            ("blk.4.layer_output_norm.weight", "mtp.layers.1.final_layernorm.weight"),
            ("blk.4.ffn_norm.weight", "mtp.layers.1.pre_mlp_layernorm.weight"),
            ("blk.3.nextn.eh_proj.weight", "mtp.layers.0.eh_proj.weight"),
            ("blk.3.attn_qkv.weight", "mtp.layers.0.self_attn.qkv_proj.weight"),
        ],
    );
    let width = N_EMBD as usize;
    let parts = [(0, d_k), (d_k, d_k), (2 * d_k, d_v)].map(|(first, n)| (first as usize * width, n as usize * width));
    let expected: Vec<f32> =
        parts.iter().flat_map(|&(at, n)| exact.iter().flat_map(move |rank| rank[at..at + n].to_vec())).collect();
    assert_eq!(numbers(&file, "blk.2.attn_qkv.weight").1, expected);
    for (name, value) in [
        ("attention.head_count_kv", "[I32(2), I32(4), I32(4), I32(4), I32(4)]"),
        ("attention.sliding_window_pattern", "[I32(0), I32(1), I32(1), I32(1), I32(1)]"),
    ] {
        assert_eq!(list(&file, &format!("mimo2.{name}")), value);
    }
    assert_eq!(key(&file, "mimo2.nextn_predict_layers"), "U32(2)");
    assert_eq!(key(&file, "mimo2.attention.layer_norm_rms_epsilon"), "F32(1e-5)");
    assert_eq!(key(&file, "mimo2.rope.dimension_count"), "U32(4)");
    // Without its head, lists are as long as the model.
    tensors.retain(|name, _| !name.starts_with("mtp."));
    let file = converted(&config, &tensors).expect("a whole model without a head");
    assert_eq!(list(&file, "mimo2.attention.head_count_kv"), "[I32(2), I32(4), I32(4)]");
}

#[test]
fn norms_of_step_get_their_one_and_its_kinds_of_layers_are_lists() {
    let config = config(
        "Step3p5ForCausalLM",
        json!({"num_key_value_heads": null, "num_attention_groups": 2, "rope_parameters": null, "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
            "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 1},
            "rope_theta": [5e6, 1e4, 1e4, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0],
            "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64},
            "moe_layers_enum": "1,2", "moe_num_experts": 5, "moe_top_k": 2, "moe_intermediate_size": 16,
            "share_expert_dim": 16, "moe_router_scaling_factor": 3.0, "norm_expert_weight": true,
            "swiglu_limits": [null, 0.5, 0.0], "num_nextn_predict_layers": 1}),
    );
    let mut tensors = globals();
    for il in 0..4 {
        let (n_head, n_kv) = if il == 0 { (4, 2) } else { (6, 1) };
        layer(&mut tensors, il, &[ATTENTION[0], ATTENTION[1]]);
        layer(
            &mut tensors,
            il,
            &[
                ("self_attn.q_proj.weight", &[n_head * 12, N_EMBD]),
                ("self_attn.k_proj.weight", &[n_kv * 12, N_EMBD]),
                ("self_attn.v_proj.weight", &[n_kv * 12, N_EMBD]),
                ("self_attn.o_proj.weight", &[N_EMBD, n_head * 12]),
                ("self_attn.g_proj.weight", &[n_head, N_EMBD]),
                ("self_attn.q_norm.weight", &[12]),
                ("self_attn.k_norm.weight", &[12]),
            ],
        );
        if il == 0 || il == 3 {
            layer(&mut tensors, il, DENSE);
            continue;
        }
        layer(
            &mut tensors,
            il,
            &[
                ("moe.gate.weight", &[5, N_EMBD]),
                ("moe.router_bias", &[5]),
                ("moe.gate_proj.weight", &[5, 16, N_EMBD]),
                ("moe.up_proj.weight", &[5, 16, N_EMBD]),
                ("moe.down_proj.weight", &[5, N_EMBD, 16]),
                ("share_expert.gate_proj.weight", &[16, N_EMBD]),
                ("share_expert.up_proj.weight", &[16, N_EMBD]),
                ("share_expert.down_proj.weight", &[N_EMBD, 16]),
            ],
        );
    }
    layer(&mut tensors, 3, FUSION);
    layer(
        &mut tensors,
        3,
        &[
            ("transformer.shared_head.norm.weight", &[N_EMBD]),
            ("transformer.shared_head.output.weight", &[N_VOCAB, N_EMBD]),
        ],
    );
    let file = converted(&config, &tensors).expect("a whole checkpoint");
    same(
        &file,
        &tensors,
        &[
            ("blk.2.attn_gate.weight", "model.layers.2.self_attn.g_proj.weight"),
            ("blk.2.exp_probs_b.bias", "model.layers.2.moe.router_bias"),
            ("blk.1.ffn_down_exps.weight", "model.layers.1.moe.down_proj.weight"),
            ("blk.3.nextn.shared_head_head.weight", "model.layers.3.transformer.shared_head.output.weight"),
        ],
    );
    for (gguf, hf) in [
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
        ("blk.3.nextn.enorm.weight", "model.layers.3.enorm.weight"),
        ("blk.3.nextn.shared_head_norm.weight", "model.layers.3.transformer.shared_head.norm.weight"),
    ] {
        let expected: Vec<f32> = tensors[hf].floats().iter().map(|x| x + 1.0).collect();
        assert_eq!(numbers(&file, gguf).1, expected, "{gguf}");
    }
    let factors = numbers(&file, "rope_freqs.weight").1;
    assert_eq!((factors[0], &factors[2..]), (1.0, &[2.0, 1.0, 1.0, 1.0][..]), "half of a head turns, the rest stays");
    for (name, value) in [
        ("attention.head_count", "[I32(4), I32(6), I32(6), I32(6)]"),
        ("attention.head_count_kv", "[I32(2), I32(1), I32(1), I32(1)]"),
        ("attention.sliding_window_pattern", "[Bool(false), Bool(true), Bool(true), Bool(true)]"),
        ("swiglu_clamp_exp", "[F32(0.0), F32(0.5), F32(0.0), F32(0.0)]"),
    ] {
        assert_eq!(list(&file, &format!("step35.{name}")), value);
    }
    assert_eq!(key(&file, "step35.leading_dense_block_count"), "U32(1)");
    let mut other = config.clone();
    other["partial_rotary_factors"] = json!([0.25, 1.0, 1.0, 1.0]);
    let error = converted(&other, &tensors).expect_err("files have no key for it").to_string();
    assert!(error.contains("0.25 found") && error.contains("0.5 expected"), "{error}");
    for (name, value) in [("rope_theta", json!([5e6, "x"])), ("swiglu_limits", json!([0.5, "x"]))] {
        let mut other = config.clone();
        other[name] = value;
        let error = converted(&other, &tensors).expect_err("no numbers").to_string();
        assert!(error.contains(name) && error.contains("number"), "{error}");
    }
}

#[test]
fn a_checkpoint_that_is_not_as_its_configuration_says_is_refused_with_what_differs() {
    let config = config("Qwen3ForCausalLM", json!({}));
    let mut tensors = globals();
    for il in 0..3 {
        layer(&mut tensors, il, ATTENTION);
        layer(&mut tensors, il, DENSE);
        layer(&mut tensors, il, &[("self_attn.q_norm.weight", &[12]), ("self_attn.k_norm.weight", &[12])]);
    }
    assert!(converted(&config, &tensors).is_ok());
    let q = "model.layers.1.self_attn.q_proj.weight";
    let refused = |config: &Value, change: &dyn Fn(&mut Tensors)| {
        let mut tensors = tensors.clone();
        change(&mut tensors);
        converted(config, &tensors).expect_err("it was changed").to_string()
    };
    let error = refused(&config, &|t| drop(t.remove(q)));
    assert!(error.contains("missing") && error.contains("blk.1.attn_q.weight"), "{error}");
    let error = refused(&config, &|t| drop(t.insert("model.layers.1.mlp.odd.weight".into(), tensor(q, &[2]))));
    assert!(error.contains("no place") && error.contains("mlp.odd"), "{error}");
    let error = refused(&config, &|t| t.get_mut(q).expect("there").shape = vec![N_EMBD, 48]);
    assert!(error.contains("blk.1.attn_q.weight") && error.contains("[32, 48] expected"), "{error}");
    let mut other = config.clone();
    other["architectures"] = json!(["OddForCausalLM"]);
    let error = refused(&other, &|_| {});
    assert!(error.contains("\"OddForCausalLM\" is not known") && error.contains("LlamaForCausalLM"), "{error}");
    let mut other = config.clone();
    other["rope_parameters"] = json!({"rope_type": "spiral", "rope_theta": 1.0});
    let error = refused(&other, &|_| {});
    assert!(error.contains("rope_type \"spiral\" is not supported"), "{error}");
    let mut other = config;
    other["num_attention_heads"] = json!(0);
    let error = refused(&other, &|_| {});
    assert!(error.contains("num_attention_heads is 0"), "{error}");
}
