//! Gemma 4, dense, with experts, or with inputs of each token for each layer; and its assistant.

use gguf::ArrayBuf;
use serde_json::Value;

use super::super::fields::{Fields, MAX_DIM};
use super::super::table::{Row, Sizes, Vocabulary};
use crate::gguf_model::Key;

pub(super) const GEMMA4: Row = Row {
    classes: &[("Gemma4ForConditionalGeneration", "gemma4"), ("Gemma4ForCausalLM", "gemma4")],
    read: |c, s| s.gemma4(c),
    layer: LAYER,
    globals: GLOBALS,
    vocabulary: Vocabulary::Gemma,
    ..Row::PLAIN
};

pub(super) const ASSISTANT: Row = Row {
    classes: &[("Gemma4AssistantForCausalLM", "gemma4-assistant")],
    read: |c, s| {
        s.gemma4(c)?;
        s.number("embedding_length_out", c.need("backbone_hidden_size", MAX_DIM)?);
        s.number("nextn_predict_layers", s.n_layer);
        Ok(())
    },
    layer: LAYER,
    globals: GLOBALS,
    vocabulary: Vocabulary::Gemma,
    // Centroids (`use_ordered_embeddings`) choose among words before the output matrix does; drafts have a vocabulary of their
    // own for that, and llama.cpp's files lack them too.
    left_out: &["masked_embedding"],
    ..Row::PLAIN
};

const LAYER: &[(&str, &str)] = &[
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
    ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
    ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("router.proj.weight", "ffn_gate_inp.weight"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("experts.down_proj", "ffn_down_exps.weight"),
    ("per_layer_input_gate.weight", "inp_gate.weight"),
    ("per_layer_projection.weight", "proj.weight"),
    ("post_per_layer_input_norm.weight", "post_norm.weight"),
];

const GLOBALS: &[(&str, &str)] = &[
    ("embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    ("per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    ("per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
    ("pre_projection.weight", "nextn.pre_projection.weight"),
    ("post_projection.weight", "nextn.post_projection.weight"),
];

/// Divides the frequencies of pairs that do not turn.
const STILL: f32 = 1e30;

/// A number of a full layer's in `per_layer_config`, if one is told there.
fn of_layers(c: &Fields<'_>, slides: &[bool], name: &str) -> Result<Option<u64>, String> {
    let Some(layers) = c.get("per_layer_config").and_then(Value::as_object) else { return Ok(None) };
    let is_full = |il: &str| il.parse::<usize>().ok().and_then(|il| slides.get(il)) == Some(&false);
    let found = layers.iter().filter(|(il, _)| is_full(il)).find_map(|(_, layer)| layer.get(name));
    match found.map(Value::as_u64) {
        None => Ok(None),
        Some(Some(n)) if (1..=65536).contains(&n) => Ok(Some(n)),
        Some(_) => Err(format!("{name} of per_layer_config: a number from 1 to 65536 expected")),
    }
}

impl Sizes {
    fn gemma4(&mut self, c: &Fields<'_>) -> Result<(), String> {
        self.usual(c)?;
        self.number_of("expert_used_count", c, "top_k_experts")?;
        self.float_of("final_logit_softcapping", c, "final_logit_softcapping")?;
        let kinds = c.get("layer_types").and_then(Value::as_array).ok_or("layer_types: a list expected")?;
        if kinds.len() as u64 != self.n_layer {
            return Err(format!("layer_types has {} entries, num_hidden_layers is {}", kinds.len(), self.n_layer));
        }
        let slides: Vec<bool> = kinds.iter().map(|kind| *kind == "sliding_attention").collect();
        let n_shared = c.count("num_kv_shared_layers", self.n_layer)?.unwrap_or(0);
        // Of full layers the sizes stand under names of their own, or with each of them.
        let of_full = |name: &str, own: &str| -> Result<Option<u64>, String> {
            match c.find(name, 65536)? {
                None => of_layers(c, &slides, own),
                found => Ok(found),
            }
        };
        let d_slides = c.need("head_dim", 65536)?;
        let d_full = of_full("global_head_dim", "head_dim")?.ok_or("global_head_dim is missing")?;
        self.number("attention.sliding_window", c.need("sliding_window", u32::MAX.into())?);
        self.number("attention.shared_kv_layers", n_shared);
        self.number("embedding_length_per_layer_input", c.count("hidden_size_per_layer_input", MAX_DIM)?.unwrap_or(0));
        self.put("attention.sliding_window_pattern", Key::Array(slides.iter().copied().collect::<ArrayBuf>()));
        self.number("attention.key_length", d_full);
        self.number("attention.value_length", d_full);
        self.number("attention.key_length_swa", d_slides);
        self.number("attention.value_length_swa", d_slides);
        self.number_of("expert_feed_forward_length", c, "moe_intermediate_size")?;
        if c.flag("use_double_wide_mlp") == Some(true) {
            let n_ff = c.need("intermediate_size", MAX_DIM)? as i32;
            let first = self.n_layer - n_shared;
            let list = (0..self.n_layer).map(|il| if il < first { n_ff } else { 2 * n_ff });
            self.put("feed_forward_length", Key::Array(list.collect::<ArrayBuf>()));
        }
        if let Some(n_full) = of_full("num_global_key_value_heads", "num_key_value_heads")? {
            let list = slides.iter().map(|&slides| if slides { self.n_head_kv as i32 } else { n_full as i32 });
            let list = Key::Array(list.collect::<ArrayBuf>());
            self.put("attention.head_count_kv", list);
        }
        self.number("rope.dimension_count", d_full);
        self.number("rope.dimension_count_swa", d_slides);
        let sliding = c.get("rope_parameters").and_then(|rope| rope.get("sliding_attention")).filter(|v| v.is_object());
        if let Some(base) = sliding.and_then(|rope| rope.get("rope_theta")).and_then(Value::as_f64) {
            self.put("rope.freq_base_swa", Key::F32(base as f32));
        }
        // Of full layers a share of the pairs turns, those at the front.
        let share = Sizes::turned_share(c, 1.0)?;
        let n_turned = (d_full as f64 * share / 2.0) as u64;
        let factors = (0..d_full / 2).map(|pair| if pair < n_turned { 1.0 } else { STILL });
        self.made.push(("rope_freqs.weight", factors.collect()));
        Ok(())
    }
}
