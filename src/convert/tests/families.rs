//! Checkpoints of the families of the table: every tensor finds its place, and only those change whose order or shape differs
//! in files.

use crate::support::{Tensor, Tensors, write_folder};
use convert::Error;
use convert::checkpoint::{Checkpoint, Options};
use convert::quantize::{FileType, Recipe};
use convert::stream::{Control, OnFailure};
use gguf::{Header, TensorType};
use serde_json::{Value, json};

const N_EMBD: u64 = 32;
/// That of the folder's tokenizer.
const N_VOCAB: u64 = 4096;

/// A configuration of three layers, with these fields besides.
fn config(class: &str, more: Value) -> Value {
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
fn tensor(name: &str, shape: &[u64]) -> Tensor {
    let seed: u64 = name.bytes().fold(7, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into()));
    Tensor::f32(shape, (0..shape.iter().product()).map(|i| (seed.wrapping_add(i * 7919) % 100_003) as f32))
}

fn add(tensors: &mut Tensors, names: &[(&str, &[u64])]) {
    for (name, shape) in names {
        tensors.insert((*name).to_owned(), tensor(name, shape));
    }
}

/// What stands outside of layers.
fn globals() -> Tensors {
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

fn layer(tensors: &mut Tensors, il: u64, names: &[(&str, &[u64])]) {
    for (name, shape) in names {
        add(tensors, &[(&format!("model.layers.{il}.{name}"), shape)]);
    }
}

const ATTENTION: &[(&str, &[u64])] = &[
    ("input_layernorm.weight", &[N_EMBD]),
    ("post_attention_layernorm.weight", &[N_EMBD]),
    ("self_attn.q_proj.weight", &[48, N_EMBD]),
    ("self_attn.k_proj.weight", &[24, N_EMBD]),
    ("self_attn.v_proj.weight", &[24, N_EMBD]),
    ("self_attn.o_proj.weight", &[N_EMBD, 48]),
];
const DENSE: &[(&str, &[u64])] = &[
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

fn converted(config: &Value, tensors: &Tensors) -> Result<Vec<u8>, Error> {
    let dir = tempfile::tempdir().expect("a folder");
    write_folder(dir.path(), config, std::slice::from_ref(tensors));
    let mut model = Checkpoint::open(dir.path(), Options { name: Some("test"), ..Options::default() })?.model;
    let recipe = Recipe { file_type: FileType::F32, head: None, plain: false, imatrix: None, requantize: false };
    recipe.apply(&mut model)?;
    let out = dir.path().join("out.gguf");
    model.into_job(recipe.stamp())?.run(&out, 2, &Control::default(), OnFailure::Remove)?;
    Ok(std::fs::read(&out).expect("it was written"))
}

/// The numbers of a tensor of a file, and its shape.
fn numbers(file: &[u8], name: &str) -> (Vec<u64>, Vec<f32>) {
    let header = Header::parse(file).expect("a sound file");
    let t = header.tensor(name).unwrap_or_else(|| panic!("{name} is not there"));
    assert_eq!(t.dtype, TensorType::F32, "{name}");
    let floats = file[t.range()].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    (t.dims().to_vec(), floats)
}

/// A tensor of the file is one of the checkpoint as it was.
fn same(file: &[u8], tensors: &Tensors, pairs: &[(&str, &str)]) {
    for (gguf, hf) in pairs {
        let t = tensors.get(*hf).unwrap_or_else(|| panic!("{hf} is not there"));
        let shape: Vec<u64> = t.shape.iter().rev().copied().collect();
        assert_eq!(numbers(file, gguf), (shape, t.floats()), "{gguf}");
    }
}

fn key(file: &[u8], name: &str) -> String {
    let header = Header::parse(file).expect("a sound file");
    header.metadata().get(name).map_or("absent".into(), |value| format!("{value:?}"))
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
