//! The tower of Qwen3.5 and 3.6.

use gguf::ArrayBuf;

use super::row::{Config, Keys, Part, Row, in_block};
use crate::checkpoint::fields::MAX_DIM;
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &["Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "qwen3_5", "qwen3_5_moe"],
    n_layer: "depth",
    n_head: "num_heads",
    image_size,
    keys,
    part,
    prefixes: &["visual."],
};

/// The side of the table of positions, in pixels.
fn image_size(c: &Config<'_>) -> Result<u64, String> {
    if let Some(size) = c.vision.find("image_size", MAX_DIM)? {
        return Ok(size);
    }
    let n_positions = c.vision.find("num_position_embeddings", MAX_DIM)?.unwrap_or(2304);
    let patch = c.vision.need("patch_size", MAX_DIM)?;
    Ok(((n_positions as f64).sqrt() * patch as f64) as u64)
}

fn keys(c: &Config<'_>) -> Result<Keys, String> {
    let n_layer = c.vision.need("depth", 4096)?;
    let deep = match c.vision.get("deepstack_visual_indexes") {
        None => Vec::new(),
        Some(list) => {
            let list: Option<Vec<u64>> =
                list.as_array().and_then(|l| l.iter().map(serde_json::Value::as_u64).collect());
            list.filter(|list| list.iter().all(|il| *il < n_layer))
                .ok_or_else(|| format!("deepstack_visual_indexes: numbers of the {n_layer} blocks expected"))?
        }
    };
    let deep: ArrayBuf = (0..n_layer).map(|il| deep.contains(&il)).collect();
    Ok(vec![
        ("clip.projector_type", "qwen3vl_merger".into()),
        ("clip.use_gelu", Key::Bool(true)),
        // All sizes are read with ranges below 2^32.
        ("clip.vision.spatial_merge_size", Key::U32(c.vision.need("spatial_merge_size", 16)? as u32)),
        // The text model's, as llama.cpp's converter has it; towers have 1e-6.
        ("clip.vision.attention.layer_norm_epsilon", Key::F32(c.text.float("rms_norm_eps")?.unwrap_or(1e-6) as f32)),
        ("clip.vision.is_deepstack_layers", Key::Array(deep)),
    ])
}

fn part(name: &str) -> Option<Part> {
    let whole = |name: String| Some(Part::Whole(name));
    if let Some((il, rest)) = in_block(name, "visual.blocks.") {
        let (stem, kind) = rest.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
        let (_, stem) = BLOCK.iter().find(|(spelling, _)| *spelling == stem)?;
        return whole(format!("v.blk.{il}.{stem}.{kind}"));
    }
    if name == "visual.patch_embed.proj.weight" {
        return Some(Part::Frames("v.patch_embd.weight"));
    }
    GLOBAL.iter().find(|(spelling, _)| *spelling == name).and_then(|(_, gguf)| whole((*gguf).to_owned()))
}

const BLOCK: &[(&str, &str)] = &[
    ("norm1", "ln1"),
    ("norm2", "ln2"),
    ("attn.qkv", "attn_qkv"),
    ("attn.proj", "attn_out"),
    ("mlp.linear_fc1", "ffn_up"),
    ("mlp.linear_fc2", "ffn_down"),
];

const GLOBAL: &[(&str, &str)] = &[
    ("visual.patch_embed.proj.bias", "v.patch_embd.bias"),
    ("visual.pos_embed.weight", "v.position_embd.weight"),
    ("visual.merger.norm.weight", "v.post_ln.weight"),
    ("visual.merger.norm.bias", "v.post_ln.bias"),
    ("visual.merger.linear_fc1.weight", "mm.0.weight"),
    ("visual.merger.linear_fc1.bias", "mm.0.bias"),
    ("visual.merger.linear_fc2.weight", "mm.2.weight"),
    ("visual.merger.linear_fc2.bias", "mm.2.bias"),
];
