//! Checkpoints of EAGLE-3 and DFlash heads: what their files take of the model that they draft for, from its folder or its file,
//! which words they have, and which heads are refused.

use std::path::Path;

use convert::Error;
use convert::checkpoint::{Checkpoint, Options};
use convert::quantize::{FileType, Recipe};
use convert::stream::{Control, OnFailure};
use gguf::{Header, TensorType};
use serde_json::{Value, json};

use crate::families::{ATTENTION, DENSE, N_EMBD, N_VOCAB, add, config, globals, key, layer, list, numbers, same};
use crate::support::{Tensor, Tensors, safetensors, write_folder};

const N_WORDS: u64 = 24;

/// Writes a file of F32.
fn written(folder: &Path, target: Option<&Path>, out: &Path) -> Result<Vec<u8>, Error> {
    let mut model = Checkpoint::open(folder, Options { name: Some("test"), target, ..Options::default() })?.model;
    let recipe = Recipe { file_type: FileType::F32, head: None, plain: false, imatrix: None, requantize: false };
    recipe.apply(&mut model)?;
    model.into_job(recipe.stamp())?.run(out, 2, &Control::default(), OnFailure::Remove)?;
    Ok(std::fs::read(out).expect("it was written"))
}

/// The target: a Llama of six layers.
fn write_target(folder: &Path) {
    let mut tensors = globals();
    for il in 0..6 {
        layer(&mut tensors, il, ATTENTION);
        layer(&mut tensors, il, DENSE);
    }
    write_folder(folder, &config("LlamaForCausalLM", json!({"num_hidden_layers": 6})), &[tensors]);
}

/// A head's file, made beside its target's folder and beside its target's file, which must be the same.
fn converted(config: &Value, tensors: &Tensors) -> Result<Vec<u8>, Error> {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    for name in ["target", "head"] {
        std::fs::create_dir(at(name)).expect("a folder");
    }
    write_target(&at("target"));
    std::fs::write(at("head/config.json"), config.to_string()).expect("written");
    std::fs::write(at("head/model.safetensors"), safetensors(tensors)).expect("written");
    written(&at("target"), None, &at("target.gguf")).expect("a whole target");
    let of_folder = written(&at("head"), Some(&at("target")), &at("a.gguf"))?;
    let of_file = written(&at("head"), Some(&at("target.gguf")), &at("b.gguf"))?;
    assert!(of_folder == of_file, "the target's folder and its file tell the same");
    Ok(of_folder)
}

fn eagle3(more: Value) -> Value {
    let mut config =
        config("LlamaForCausalLMEagle3", json!({"num_hidden_layers": 1, "draft_vocab_size": N_WORDS, "head_dim": 12}));
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    config
}

fn integers(numbers: impl IntoIterator<Item = i64>) -> Tensor {
    let bytes: Vec<u8> = numbers.into_iter().flat_map(i64::to_le_bytes).collect();
    Tensor { dtype: "I64", shape: vec![bytes.len() as u64 / 8], bytes }
}

/// Of a head whose layer is called so.
fn eagle3_tensors(layer: &str) -> Tensors {
    let mut tensors = Tensors::new();
    let names: &[(&str, &[u64])] = &[
        ("self_attn.q_proj.weight", &[48, 2 * N_EMBD]),
        ("self_attn.k_proj.weight", &[24, 2 * N_EMBD]),
        ("self_attn.v_proj.weight", &[24, 2 * N_EMBD]),
        ("self_attn.o_proj.weight", &[N_EMBD, 48]),
        ("input_layernorm.weight", &[N_EMBD]),
        ("hidden_norm.weight", &[N_EMBD]),
        ("post_attention_layernorm.weight", &[N_EMBD]),
    ];
    for (name, shape) in names.iter().chain(DENSE) {
        add(&mut tensors, &[(&format!("{layer}.{name}"), shape)]);
    }
    add(
        &mut tensors,
        &[("fc.weight", &[N_EMBD, 3 * N_EMBD]), ("norm.weight", &[N_EMBD]), ("lm_head.weight", &[N_WORDS, N_EMBD])],
    );
    // Every third token: row i stands for token 3 * i + 1.
    tensors.insert("d2t".into(), integers((0..N_WORDS as i64).map(|row| 2 * row + 1)));
    tensors.insert("t2d".into(), Tensor { dtype: "BOOL", shape: vec![N_VOCAB], bytes: vec![0; N_VOCAB as usize] });
    tensors
}

#[test]
fn an_eagle_3_head_takes_vocabulary_and_layers_of_its_target() {
    let tensors = eagle3_tensors("midlayer");
    let file = converted(&eagle3(json!({})), &tensors).expect("a whole head");
    assert_eq!(key(&file, "general.architecture"), "Str(\"eagle3\")");
    assert_eq!(list(&file, "eagle3.target_layers"), "[I32(2), I32(3), I32(3)]");
    assert_eq!(key(&file, "eagle3.target_hidden_size"), format!("U32({N_EMBD})"));
    assert_eq!(key(&file, "eagle3.norm_before_residual"), "Bool(false)");
    assert_eq!(key(&file, "tokenizer.ggml.model"), "Str(\"gpt2\")");
    same(
        &file,
        &tensors,
        &[
            ("fc.weight", "fc.weight"),
            ("output_norm.weight", "norm.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.0.attn_norm_2.weight", "midlayer.hidden_norm.weight"),
            ("blk.0.attn_v.weight", "midlayer.self_attn.v_proj.weight"),
            ("blk.0.ffn_norm.weight", "midlayer.post_attention_layernorm.weight"),
        ],
    );
    let from = tensors["midlayer.self_attn.k_proj.weight"].floats();
    let row = |i: usize| &from[i * 2 * N_EMBD as usize..][..2 * N_EMBD as usize];
    let keys = numbers(&file, "blk.0.attn_k.weight").1;
    assert_eq!(&keys[2 * N_EMBD as usize..][..2 * N_EMBD as usize], row(6), "pairs stand together");
    let header = Header::parse(&file).expect("a sound file");
    let words = header.tensor("d2t").expect("its words");
    assert_eq!((words.dtype, words.dims()), (TensorType::I64, &[N_WORDS][..]));
    let ids: Vec<i64> = file[words.range()].as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
    assert_eq!(ids, (0..N_WORDS as i64).map(|row| 3 * row + 1).collect::<Vec<_>>());
    // As the first ones were published, and as speculators writes them.
    let llama = converted(&eagle3(json!({"architectures": ["LlamaForCausalLM"]})), &tensors).expect("a whole head");
    assert!(llama == file);
    let mut inner = eagle3(json!({}));
    let fields = inner.as_object_mut().expect("an object");
    fields.retain(|name, _| name != "architectures");
    let nested = json!({"architectures": ["Eagle3Speculator"], "transformer_layer_config": inner,
        "draft_vocab_size": N_WORDS, "norm_before_residual": true, "eagle_aux_hidden_state_layer_ids": [1, 3, 6]});
    let file = converted(&nested, &eagle3_tensors("layers.0")).expect("a whole head");
    assert_eq!(list(&file, "eagle3.target_layers"), "[I32(1), I32(3), I32(6)]");
    assert_eq!(key(&file, "eagle3.norm_before_residual"), "Bool(true)");
}

#[test]
fn an_eagle_3_head_that_does_not_fit_is_refused() {
    let tensors = eagle3_tensors("midlayer");
    let refused = |config: &Value, tensors: &Tensors| {
        converted(config, tensors).map(drop).expect_err("it does not fit").to_string()
    };
    for (more, words) in [
        (json!({"vocab_size": 100}), "vocab_size is 100"),
        (json!({"target_hidden_size": 64}), "target_hidden_size is 64"),
        (json!({"num_hidden_layers": 2}), "num_hidden_layers is 2"),
        (json!({"eagle_aux_hidden_state_layer_ids": [1, 2, 7]}), "of the model's 6 expected"),
        (json!({"eagle_aux_hidden_state_layer_ids": [1, 2]}), "3 layers"),
        (json!({"draft_vocab_size": 25}), "d2t"),
        (json!({"norm_before_fc": true}), "enc.output_norm.weight"),
    ] {
        let error = refused(&eagle3(more), &tensors);
        assert!(error.contains(words), "{words}: {error}");
    }
    let with = |d2t: Tensor| {
        let mut tensors = tensors.clone();
        tensors.insert("d2t".into(), d2t);
        refused(&eagle3(json!({})), &tensors)
    };
    let error = with(integers((0..N_WORDS as i64).map(|row| -row)));
    assert!(error.contains("row 1 stands for token 0"), "{error}");
    let error = with(integers((0..N_WORDS as i64).map(|row| if row == 5 { i64::MAX } else { 0 })));
    assert!(error.contains("row 5"), "{error}");
    let error = with(Tensor::f32(&[N_WORDS], (0..N_WORDS).map(|_| 0.0)));
    assert!(error.contains("integers"), "{error}");
    let mut cut = tensors.clone();
    cut.remove("d2t");
    assert!(refused(&eagle3(json!({})), &cut).contains("d2t"));
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("config.json"), eagle3(json!({})).to_string()).expect("written");
    std::fs::write(dir.path().join("model.safetensors"), safetensors(&tensors)).expect("written");
    let error = Checkpoint::open(dir.path(), Options::default()).map(drop).expect_err("no target").to_string();
    assert!(error.contains("--target"), "{error}");
    write_target(dir.path());
    let of_model = Options { target: Some(dir.path()), ..Options::default() };
    let error = Checkpoint::open(dir.path(), of_model).map(drop).expect_err("no head").to_string();
    assert!(error.contains("is no draft head"), "{error}");
    // A class that no row of the table reads.
    let of_another = json!({"architectures": ["Qwen3_5ForCausalLM"]});
    std::fs::write(dir.path().join("config.json"), of_another.to_string()).expect("written");
    let target = tempfile::tempdir().expect("a folder");
    write_target(target.path());
    let of_model = Options { target: Some(target.path()), ..Options::default() };
    let error = Checkpoint::open(dir.path(), of_model).map(drop).expect_err("no head").to_string();
    assert!(error.contains("is no draft head"), "{error}");
}

fn dflash(more: Value) -> (Value, Tensors) {
    let mut config = config(
        "DFlashDraftModel",
        json!({"num_hidden_layers": 2, "block_size": 8, "dflash_config": {"mask_token_id": 7, "target_layer_ids": [0, 5]}}),
    );
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let mut tensors = Tensors::new();
    for il in 0..2 {
        for (name, shape) in ATTENTION.iter().chain(DENSE) {
            add(&mut tensors, &[(&format!("layers.{il}.{name}"), shape)]);
        }
        for name in ["q_norm", "k_norm"] {
            add(&mut tensors, &[(&format!("layers.{il}.self_attn.{name}.weight"), &[12])]);
        }
    }
    add(
        &mut tensors,
        &[("fc.weight", &[N_EMBD, 2 * N_EMBD]), ("hidden_norm.weight", &[N_EMBD]), ("norm.weight", &[N_EMBD])],
    );
    (config, tensors)
}

#[test]
fn a_dflash_head_says_what_goes_into_the_layers_that_it_reads() {
    let (config, tensors) = dflash(json!({"use_sliding_window": true, "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"]}));
    let file = converted(&config, &tensors).expect("a whole head");
    assert_eq!(key(&file, "general.architecture"), "Str(\"dflash\")");
    assert_eq!(list(&file, "dflash.target_layers"), "[I32(1), I32(6)]");
    assert_eq!(key(&file, "dflash.block_size"), "U32(8)");
    assert_eq!(key(&file, "tokenizer.ggml.mask_token_id"), "U32(7)");
    assert_eq!(list(&file, "dflash.attention.sliding_window_pattern"), "[Bool(true), Bool(false)]");
    same(
        &file,
        &tensors,
        &[
            ("enc.output_norm.weight", "hidden_norm.weight"),
            ("blk.1.attn_q.weight", "layers.1.self_attn.q_proj.weight"),
            ("blk.0.attn_k_norm.weight", "layers.0.self_attn.k_norm.weight"),
        ],
    );
    for (more, words) in [
        (json!({"dflash_config": {"mask_token_id": N_VOCAB, "target_layer_ids": [0, 5]}}), "mask_token_id"),
        (json!({"dflash_config": {"mask_token_id": 7, "target_layer_ids": [0, 6]}}), "of the model's 6 expected"),
        (json!({"dflash_config": {"mask_token_id": 7}}), "target_layer_ids is missing"),
        (json!({"dflash_config": {"target_layer_ids": [0, 1], "conv_kernel_size": 3}}), "conv_kernel_size is set"),
        (json!({"is_causal": true}), "is_causal"),
        (json!({"hidden_size": 64}), "hidden_size is 64"),
        (json!({"dflash_config": {"target_layer_ids": [0, 1, 2]}}), "fc.weight"),
    ] {
        let (config, tensors) = dflash(more);
        let error = converted(&config, &tensors).map(drop).expect_err("it does not fit").to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}
