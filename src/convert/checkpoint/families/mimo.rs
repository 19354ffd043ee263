//! MiMo V2 Flash and V2.5: layers with a window among full ones, experts, and a head of several layers within `mtp.layers`.

use serde_json::Value;

use super::super::fields::{Fields, MAX_DIM};
use super::super::layer_list::LayerList;
use super::super::table::{Behind, Row, SIGMOID, Sizes};
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &[("MiMoV2FlashForCausalLM", "mimo2"), ("MiMoV2ForCausalLM", "mimo2")],
    read: |c, s| s.mimo(c),
    layer: &[("self_attn.qkv_proj.weight", "attn_qkv.weight"), ("self_attn.attention_sink_bias", "attn_sinks.weight")],
    behind: Behind::Head,
    mtp: &[&[
        ("eh_proj.weight", "nextn.eh_proj.weight"),
        ("enorm.weight", "nextn.enorm.weight"),
        ("hnorm.weight", "nextn.hnorm.weight"),
        ("pre_mlp_layernorm.weight", "ffn_norm.weight"),
        ("final_layernorm.weight", "layer_output_norm.weight"),
    ]],
    ..Row::PLAIN
};

impl Sizes {
    fn mimo(&mut self, c: &Fields<'_>) -> Result<(), String> {
        self.usual(c)?;
        if c.get("rms_norm_eps").is_none() {
            self.float_of("attention.layer_norm_rms_epsilon", c, "layernorm_epsilon")?;
        }
        let kinds = c.get("hybrid_layer_pattern").and_then(Value::as_array);
        let kinds = kinds.ok_or("hybrid_layer_pattern: a list expected, 1 for a layer with a window")?;
        if kinds.len() as u64 != self.n_layer {
            return Err(format!(
                "hybrid_layer_pattern has {} entries, num_hidden_layers is {}",
                kinds.len(),
                self.n_layer
            ));
        }
        let slides: Vec<bool> = kinds.iter().map(|kind| *kind == 1).collect();
        let (d_key, d_value) = (c.need("head_dim", 65536)?, c.need("v_head_dim", 65536)?);
        for (name, own, n) in [
            ("swa_head_dim", "head_dim", d_key),
            ("swa_v_head_dim", "v_head_dim", d_value),
            ("swa_num_attention_heads", "num_attention_heads", self.n_head),
        ] {
            if let Some(other) = c.find(name, 65536)?.filter(|other| *other != n) {
                return Err(format!("{name} is {other}, {own} is {n}: files of mimo2 have one number for both"));
            }
        }
        let n_kv = |slides: bool| if slides { "swa_num_key_value_heads" } else { "num_key_value_heads" };
        let n_kv = [c.need(n_kv(false), 65536)?, c.need(n_kv(true), 65536)?];
        let of_layer = |slides: &bool| n_kv[usize::from(*slides)];
        self.list(
            "attention.head_count_kv",
            LayerList::I32(slides.iter().map(|s| of_layer(s) as i32).collect(), n_kv[1] as i32),
        );
        let rows = |n_kv: u64| (self.n_head * d_key, n_kv * d_key, n_kv * d_value);
        // The head's layers have a window.
        self.fused = slides.iter().map(of_layer).chain([n_kv[1]]).map(rows).collect();
        self.float_of("rope.freq_base_swa", c, "swa_rope_theta")?;
        self.number("attention.key_length", d_key);
        self.number("attention.value_length", d_value);
        self.number("expert_gating_func", SIGMOID);
        self.number("attention.sliding_window", c.need("sliding_window", u32::MAX.into())?);
        let pattern = slides.iter().map(|s| i32::from(*s)).collect();
        self.list("attention.sliding_window_pattern", LayerList::I32(pattern, 1));
        self.number("expert_feed_forward_length", c.need("moe_intermediate_size", MAX_DIM)?);
        let share = Sizes::turned_share(c, 1.0)?;
        self.number("rope.dimension_count", (d_key as f64 * share) as u64);
        self.float_of("attention.value_scale", c, "attention_value_scale")?;
        if let Some(scale) = c.float("routed_scaling_factor")?.filter(|scale| *scale != 1.0) {
            self.put("expert_weights_scale", Key::F32(scale as f32));
        }
        Ok(())
    }
}
