//! Gemma 2, and Gemma 3's text model.

use serde_json::Value;

use super::super::fields::Fields;
use super::super::table::{Row, Sizes, Vocabulary};
use crate::gguf_model::Key;

pub(super) const GEMMA2: Row = Row {
    classes: &[("Gemma2ForCausalLM", "gemma2")],
    read: |c, s| {
        s.widths(c)?;
        s.others(c)?;
        s.number("attention.head_count_kv", s.n_head_kv);
        s.float_of("attn_logit_softcapping", c, "attn_logit_softcapping")?;
        s.float_of("final_logit_softcapping", c, "final_logit_softcapping")?;
        s.number("attention.sliding_window", c.need("sliding_window", u32::MAX.into())?);
        Ok(())
    },
    // The embedding is the output matrix, which some tools write once more.
    left_out: &["lm_head"],
    defaults: &[],
    ..ROW
};

pub(super) const ROW: Row = Row {
    classes: &[("Gemma3ForCausalLM", "gemma3"), ("Gemma3ForConditionalGeneration", "gemma3")],
    read: |c, s| s.gemma3(c),
    layer: &[
        ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
        ("post_attention_layernorm.weight", "post_attention_norm.weight"),
        ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ],
    norms_lack_one: true,
    vocabulary: Vocabulary::SentencePiece,
    // What published files leave to the class.
    defaults: &[
        ("vocab_size", 262_208),
        ("max_position_embeddings", 131_072),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 256),
    ],
    ..Row::PLAIN
};

/// Each of so many layers has no window: files cannot say otherwise.
const PERIOD: usize = 6;

impl Sizes {
    fn gemma3(&mut self, c: &Fields<'_>) -> Result<(), String> {
        self.usual(c)?;
        self.number("attention.head_count_kv", self.n_head_kv);
        let d_head = self.head_dim(c)?;
        self.number("attention.key_length", d_head);
        self.number("attention.value_length", d_head);
        let epsilon = c.float("rms_norm_eps")?.unwrap_or(1e-6);
        self.put("attention.layer_norm_rms_epsilon", Key::F32(epsilon as f32));
        if c.get("attn_logit_softcapping").is_some() {
            return Err("attn_logit_softcapping is set, which Gemma 3 does not have".into());
        }
        self.float_of("final_logit_softcapping", c, "final_logit_softcapping")?;
        let pattern = c.count("sliding_window_pattern", u32::MAX.into())?;
        let kinds = c.get("layer_types").and_then(Value::as_array);
        let slides = |kind: &Value| *kind == "sliding_attention";
        let usual = |(il, kind): (usize, &Value)| slides(kind) != (il + 1).is_multiple_of(PERIOD);
        let none_slides = kinds.is_some_and(|kinds| !kinds.iter().any(slides)) || pattern == Some(1);
        let other = kinds.is_some_and(|kinds| !kinds.iter().enumerate().all(usual))
            || pattern.is_some_and(|period| period != PERIOD as u64);
        if other && !none_slides {
            return Err(format!("layers with a window: files of gemma3 can only say all but each {PERIOD}th, or none"));
        }
        if !none_slides {
            self.number("attention.sliding_window", c.need("sliding_window", u32::MAX.into())?);
        }
        if c.get("rope_theta").is_none() && Sizes::rope_fields(c).get("rope_theta").is_none() {
            self.put("rope.freq_base", Key::F32(1e6));
        }
        let inner = c.get("rope_parameters").and_then(|rope| rope.get("sliding_attention")?.get("rope_theta"));
        if let Some(base) = inner.or_else(|| c.get("rope_local_base_freq")).and_then(Value::as_f64) {
            self.put("rope.freq_base_swa", Key::F32(base as f32));
        }
        Ok(())
    }
}
