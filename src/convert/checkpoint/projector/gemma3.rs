//! The tower of Gemma 3.

use super::row::{Config, Keys, Part, Row, in_block};
use crate::checkpoint::fields::MAX_DIM;
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &["Gemma3ForConditionalGeneration", "gemma3"],
    n_layer: "num_hidden_layers",
    n_head: "num_attention_heads",
    image_size: |c| c.vision.need("image_size", MAX_DIM).map_err(|what| format!("vision_config: {what}")),
    keys,
    part,
    // Towers may have a head too, which reads a picture as one row: no model of text takes it.
    prefixes: &[
        "vision_tower.vision_model.embeddings.",
        "vision_tower.vision_model.encoder.",
        "vision_tower.vision_model.post_layernorm.",
        "vision_tower.embeddings.",
        "vision_tower.encoder.",
        "vision_tower.post_layernorm.",
        "multi_modal_projector.",
    ],
};

fn keys(c: &Config<'_>) -> Result<Keys, String> {
    let eps = c.vision.float("layer_norm_eps")?.unwrap_or(1e-6);
    let mut keys: Keys = vec![
        ("clip.projector_type", "gemma3".into()),
        ("clip.vision.attention.layer_norm_epsilon", Key::F32(eps as f32)),
        ("clip.use_gelu", Key::Bool(true)),
    ];
    let (size, patch) = (c.vision.need("image_size", MAX_DIM)?, c.vision.need("patch_size", MAX_DIM)?);
    let pool = size / patch / n_tokens(c)?.isqrt();
    // As llama.cpp's converter has it: without the key it is the published towers'.
    if pool != 0 && pool != 4 {
        keys.push(("clip.vision.projector.scale_factor", Key::U32(pool as u32)));
    }
    Ok(keys)
}

/// What a picture becomes. The model's word goes before the processor's: the projector follows it.
fn n_tokens(c: &Config<'_>) -> Result<u64, String> {
    let of_model = c.text.find("mm_tokens_per_image", MAX_DIM)?;
    Ok(of_model.or(c.processor.find("image_seq_length", MAX_DIM)?).unwrap_or(256))
}

fn part(name: &str) -> Option<Part> {
    let whole = |name: String| Some(Part::Whole(name));
    // As transformers saved it, and as it does since version 5.
    let name =
        name.strip_prefix("vision_tower.").map_or(name, |name| name.strip_prefix("vision_model.").unwrap_or(name));
    if let Some((il, rest)) = in_block(name, "encoder.layers.") {
        let (stem, kind) = rest.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
        let (_, stem) = BLOCK.iter().find(|(spelling, _)| *spelling == stem)?;
        return whole(format!("v.blk.{il}.{stem}.{kind}"));
    }
    if name == "multi_modal_projector.mm_soft_emb_norm.weight" {
        return Some(Part::LacksOne("mm.soft_emb_norm.weight"));
    }
    GLOBAL.iter().find(|(spelling, _)| *spelling == name).and_then(|(_, gguf)| whole((*gguf).to_owned()))
}

const BLOCK: &[(&str, &str)] = &[
    ("layer_norm1", "ln1"),
    ("layer_norm2", "ln2"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.out_proj", "attn_out"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
];

const GLOBAL: &[(&str, &str)] = &[
    ("embeddings.patch_embedding.weight", "v.patch_embd.weight"),
    ("embeddings.patch_embedding.bias", "v.patch_embd.bias"),
    ("embeddings.position_embedding.weight", "v.position_embd.weight"),
    ("post_layernorm.weight", "v.post_ln.weight"),
    ("post_layernorm.bias", "v.post_ln.bias"),
    ("multi_modal_projector.mm_input_projection_weight", "mm.input_projection.weight"),
];
