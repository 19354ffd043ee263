//! Mistral's own files: `params.json` beside `consolidated*.safetensors`, with names of its own and rows of heads in the order of
//! GGUF files. Owns what its fields are called in the words of transformers.

use serde_json::{Value, json};

use super::super::fields::short;
use super::super::table::{Row, Vocabulary};

pub(super) const ROW: Row = Row {
    classes: &[(CLASS, "llama")],
    read: |c, s| {
        s.mistral3(c)?;
        let is_3 = s.keys.iter().any(|(key, _)| *key == "attention.temperature_scale");
        s.arch = is_3.then_some("mistral3");
        Ok(())
    },
    layer: &[
        ("attention_norm.weight", "attn_norm.weight"),
        ("attention.wq.weight", "attn_q.weight"),
        ("attention.wk.weight", "attn_k.weight"),
        ("attention.wv.weight", "attn_v.weight"),
        ("attention.wo.weight", "attn_output.weight"),
        ("ffn_norm.weight", "ffn_norm.weight"),
        ("feed_forward.w1.weight", "ffn_gate.weight"),
        ("feed_forward.w2.weight", "ffn_down.weight"),
        ("feed_forward.w3.weight", "ffn_up.weight"),
    ],
    globals: &[("tok_embeddings.weight", "token_embd.weight"), ("output.weight", "output.weight")],
    left_out: &["vision_encoder", "vision_language_adapter", "patch_merger", "pre_mm_projector_norm"],
    vocabulary: Vocabulary::Mistral,
    // Its pieces have no token to fill up with.
    special: &[("bos", "<s>"), ("eos", "</s>"), ("unknown", "<unk>"), ("padding", "<pad>"), ("padding", "</s>")],
    ..Row::PLAIN
};

/// What stands for the class that such a folder does not name.
const CLASS: &str = "params.json of Mistral";

/// The fields of both: that of `params.json`, and whether all models have it.
const FIELDS: &[(&str, &str, bool)] = &[
    ("dim", "hidden_size", true),
    ("n_layers", "num_hidden_layers", true),
    ("n_heads", "num_attention_heads", true),
    ("n_kv_heads", "num_key_value_heads", false),
    ("head_dim", "head_dim", false),
    ("hidden_dim", "intermediate_size", true),
    ("vocab_size", "vocab_size", true),
    ("norm_eps", "rms_norm_eps", true),
    ("tied_embeddings", "tie_word_embeddings", false),
];

/// `params.json` as a `config.json`.
///
/// # Errors
/// In words without the path: a field is missing, or tells of what is not supported.
pub(crate) fn in_words_of_transformers(params: &Value) -> Result<Value, String> {
    let get = |of: &'_ Value, name: &str| of.get(name).filter(|v| !v.is_null()).cloned();
    for (name, what) in [("moe", "experts"), ("lora", "adapters")] {
        if get(params, name).is_some() {
            return Err(format!(
                "{name}: Mistral's own files with {what} are not read; convert the folder of transformers"
            ));
        }
    }
    let mut config = json!({ "architectures": [CLASS] });
    for (own, theirs, always) in FIELDS {
        match get(params, own) {
            Some(v) => config[theirs] = v,
            None if *always => return Err(format!("{own} is missing: the params.json of a Mistral model expected")),
            None => {}
        }
    }
    let n_ctx = get(params, "max_position_embeddings").or_else(|| get(params, "max_seq_len"));
    config["max_position_embeddings"] = n_ctx.unwrap_or(Value::Null);
    let mut rope = json!({ "rope_type": "default", "rope_theta": get(params, "rope_theta") });
    if let Some(yarn) = get(params, "yarn") {
        rope["rope_type"] = "yarn".into();
        for (own, theirs) in [
            ("factor", "factor"),
            ("original_max_position_embeddings", "original_max_position_embeddings"),
            ("beta", "beta_fast"),
            ("alpha", "beta_slow"),
        ] {
            rope[theirs] = get(&yarn, own).ok_or_else(|| format!("yarn.{own} is missing"))?;
        }
        // Otherwise the rotation changes no lengths.
        let scales = yarn.get("apply_scale").and_then(Value::as_bool).ok_or("yarn.apply_scale is missing")?;
        rope["mscale_all_dim"] = if scales { 0.0 } else { 1.0 }.into();
    }
    if let Some(scaling) = get(params, "llama_4_scaling") {
        rope["llama_4_scaling_beta"] = get(&scaling, "beta").ok_or("llama_4_scaling.beta is missing")?;
    }
    config["rope_parameters"] = rope;
    if let Some(q) = get(params, "quantization") {
        if q.get("qformat_weight").and_then(Value::as_str) != Some("fp8_e4m3") {
            return Err(format!("quantization is {}; plain floats or fp8_e4m3 expected", short(&q)));
        }
        config["quantization_config"] = json!({ "quant_method": "fp8" });
    }
    Ok(config)
}
