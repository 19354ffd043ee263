//! Checkpoints of Qwen3-Next: rows that stand key head by key head are taken apart, and nothing else changes its order.

use crate::support::{Oracle, Tensor, Tensors, write_folder};
use convert::Error;
use convert::checkpoint::{Checkpoint, Options};
use convert::quantize::{FileType, Recipe};
use convert::stream::{Control, OnFailure};
use gguf::{Header, TensorType};
use serde_json::{Value, json};

/// Bytes of rows of some tensors, `each[i]` rows of tensor `i` for every key head, one key head after another.
fn by_key_head(parts: &[(&Tensor, usize)], n_key_heads: usize) -> Tensor {
    let n_cols = parts[0].0.shape[1];
    let row = 2 * n_cols as usize;
    let mut bytes = Vec::new();
    for head in 0..n_key_heads {
        for (t, each) in parts {
            bytes.extend_from_slice(&t.bytes[head * each * row..][..each * row]);
        }
    }
    Tensor { dtype: parts[0].0.dtype, shape: vec![(bytes.len() / row) as u64, n_cols], bytes }
}

/// The rows from `first` on, `n` of them.
fn rows(t: &Tensor, first: usize, n: usize) -> Tensor {
    let row = 2 * t.shape[1] as usize;
    Tensor { dtype: t.dtype, shape: vec![n as u64, t.shape[1]], bytes: t.bytes[first * row..][..n * row].to_vec() }
}

/// A checkpoint of Qwen3.5 with experts, as one of Qwen3-Next has the same rows.
fn as_next(oracle: &Oracle) -> (Value, Tensors) {
    let mut config = oracle.config["text_config"].clone();
    config["architectures"] = json!(["Qwen3NextForCausalLM"]);
    config["rope_parameters"].as_object_mut().expect("an object").remove("mrope_section");
    let n = |key: &str| config[key].as_u64().expect("a number") as usize;
    let (n_key, n_value) = (n("linear_num_key_heads"), n("linear_num_value_heads"));
    let (d_key, values) = (n("linear_key_head_dim"), n_value / n_key * n("linear_value_head_dim"));
    let mut tensors = Tensors::new();
    for (name, t) in &oracle.tensors {
        let of = |part: &str| &oracle.tensors[&name.replace("in_proj_qkv.", part).replace("in_proj_b.", part)];
        if name.contains("in_proj_qkv.") {
            let (q, k) = (rows(t, 0, n_key * d_key), rows(t, n_key * d_key, n_key * d_key));
            let v = rows(t, 2 * n_key * d_key, n_key * values);
            let parts = [(&q, d_key), (&k, d_key), (&v, values), (of("in_proj_z."), values)];
            tensors.insert(name.replace("in_proj_qkv.", "in_proj_qkvz."), by_key_head(&parts, n_key));
        } else if name.contains("in_proj_b.") {
            let each = n_value / n_key;
            tensors.insert(
                name.replace("in_proj_b.", "in_proj_ba."),
                by_key_head(&[(t, each), (of("in_proj_a."), each)], n_key),
            );
        } else if !name.contains("in_proj_") {
            tensors.insert(name.replace("model.language_model.", "model."), t.clone());
        }
    }
    let flat = |(name, t): (String, Tensor)| (name.replace("model.language_model.", "model."), t);
    (config, tensors.into_iter().map(flat).collect())
}

fn converted(config: &Value, tensors: &Tensors) -> Result<Vec<u8>, Error> {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), config, std::slice::from_ref(tensors));
    let mut model = Checkpoint::open(dir.path(), Options { name: Some("test"), ..Options::default() })?.model;
    let recipe = Recipe { file_type: FileType::BF16, head: None, plain: false, imatrix: None, requantize: false };
    recipe.apply(&mut model)?;
    let out = dir.path().join("out.gguf");
    model.into_job(recipe.stamp())?.run(&out, 2, &Control::default(), OnFailure::Remove)?;
    Ok(std::fs::read(&out).unwrap())
}

#[test]
fn rows_of_a_delta_net_that_stand_by_key_head_become_those_of_their_kinds() {
    let oracle = Oracle::open("moe-a");
    let (config, tensors) = as_next(&oracle);
    let file = converted(&config, &tensors).unwrap();
    let header = Header::parse(&file).unwrap();
    assert_eq!(header.metadata().require_str("general.architecture").unwrap(), "qwen3next");
    assert!(header.metadata().get("qwen3next.rope.dimension_sections").is_none());
    let source = |name: &str| &oracle.tensors[&format!("model.language_model.layers.0.linear_attn.{name}")];
    let is = |name: &str, expected: &Tensor| {
        let t = header.tensor(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(t.dtype, TensorType::BF16, "{name}");
        assert!(file[t.range()] == expected.bytes, "{name}");
    };
    is("blk.0.attn_qkv.weight", source("in_proj_qkv.weight"));
    is("blk.0.attn_gate.weight", source("in_proj_z.weight"));
    is("blk.0.ssm_out.weight", source("out_proj.weight"));
    is("blk.0.ssm_ba.weight", &tensors["model.layers.0.linear_attn.in_proj_ba.weight"]);
    assert!(header.tensor("blk.0.ssm_alpha.weight").is_none());
    let n_layer = config["num_hidden_layers"].as_u64().unwrap();
    assert!(header.tensor(&format!("blk.{n_layer}.nextn.eh_proj.weight")).is_some(), "the head comes along");
}

#[test]
fn a_checkpoint_of_qwen3_next_that_is_not_as_its_configuration_says_is_refused() {
    let (config, tensors) = as_next(&Oracle::open("moe-a"));
    let mut odd = config.clone();
    odd["mlp_only_layers"] = json!([0]);
    let error = converted(&odd, &tensors).unwrap_err().to_string();
    assert!(error.contains("layers without experts"), "{error}");
    let mut short = tensors.clone();
    let name = "model.layers.0.linear_attn.in_proj_qkvz.weight";
    let t = &tensors[name];
    short.insert(name.into(), rows(t, 0, t.shape[0] as usize - 1));
    let error = converted(&config, &short).unwrap_err().to_string();
    assert!(error.contains("rows found") && error.contains("expected"), "{error}");
}
