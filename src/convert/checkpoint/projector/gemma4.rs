//! The tower of Gemma 4.

use super::row::{Config, Keys, Part, Row, in_block};
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &["Gemma4ForConditionalGeneration", "gemma4"],
    n_layer: "num_hidden_layers",
    n_head: "num_attention_heads",
    // It means nothing; llama.cpp's converter writes this.
    image_size: |_| Ok(224),
    keys,
    part,
    prefixes: &["vision_tower.", "embed_vision."],
};

fn keys(c: &Config<'_>) -> Result<Keys, String> {
    let eps = c.vision.float("layer_norm_eps")?.unwrap_or(1e-6);
    Ok(vec![
        ("clip.vision.projector_type", "gemma4v".into()),
        ("clip.vision.attention.layer_norm_epsilon", Key::F32(eps as f32)),
    ])
}

fn part(name: &str) -> Option<Part> {
    if let Some((il, rest)) = in_block(name, "vision_tower.encoder.layers.") {
        let (stem, kind) = rest.rsplit_once('.')?;
        if kind == "weight" {
            let stem = stem.strip_suffix(".linear").unwrap_or(stem);
            let (_, stem) = NORMS.iter().chain(LINEARS).find(|(spelling, _)| *spelling == stem)?;
            return Some(Part::Whole(format!("v.blk.{il}.{stem}.weight")));
        }
        let (_, stem) = LINEARS.iter().find(|(spelling, _)| *spelling == stem)?;
        return LIMITS.contains(&kind).then(|| Part::Whole(format!("v.blk.{il}.{stem}.{kind}")));
    }
    Some(match name {
        "vision_tower.patch_embedder.input_proj.weight" => Part::Pixels("v.patch_embd.weight"),
        "vision_tower.patch_embedder.position_embedding_table" => Part::Whole("v.position_embd.weight".into()),
        "vision_tower.std_bias" => Part::Whole("v.std_bias".into()),
        "vision_tower.std_scale" => Part::Whole("v.std_scale".into()),
        "embed_vision.embedding_projection.weight" => Part::Whole("mm.input_projection.weight".into()),
        _ => return None,
    })
}

const NORMS: &[(&str, &str)] = &[
    ("input_layernorm", "ln1"),
    ("post_attention_layernorm", "attn_post_norm"),
    ("pre_feedforward_layernorm", "ln2"),
    ("post_feedforward_layernorm", "ffn_post_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
];

/// Those whose inputs and outputs may be kept within limits.
const LINEARS: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_out"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

const LIMITS: &[&str] = &["input_min", "input_max", "output_min", "output_max"];
