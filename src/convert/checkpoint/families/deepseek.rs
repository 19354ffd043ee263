//! DeepSeek V2 and V3, and GLM-4.7-Flash: latent attention, whose keys are absorbed into queries.

use super::super::fields::{Fields, MAX_DIM};
use super::super::table::{Behind, Row, SIGMOID, Sizes};
use super::glm;
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &[("DeepseekV2ForCausalLM", "deepseek2"), ("DeepseekV3ForCausalLM", "deepseek2")],
    read: |c, s| s.latent(c),
    layer: LATENT,
    behind: Behind::LeftOut,
    ..Row::PLAIN
};

pub(super) const GLM_FLASH: Row = Row {
    classes: &[("Glm4MoeLiteForCausalLM", "deepseek2")],
    read: |c, s| {
        s.latent(c)?;
        s.number("expert_gating_func", SIGMOID);
        Ok(())
    },
    layer: LATENT,
    behind: Behind::Head,
    special: glm::SPECIAL,
    ..Row::PLAIN
};

const LATENT: &[(&str, &str)] = &[
    ("self_attn.q_a_proj.weight", "attn_q_a.weight"),
    ("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"),
    ("self_attn.q_b_proj.weight", "attn_q_b.weight"),
    ("self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"),
    ("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"),
];

impl Sizes {
    fn latent(&mut self, c: &Fields<'_>) -> Result<(), String> {
        self.usual(c)?;
        // All queries read one latent head.
        self.number("attention.head_count_kv", 1);
        let rank = c.find("kv_lora_rank", MAX_DIM)?.unwrap_or(512);
        let (turned, not_turned) = (c.need("qk_rope_head_dim", 65536)?, c.need("qk_nope_head_dim", 65536)?);
        let value = c.need("v_head_dim", 65536)?;
        self.latent = Some((not_turned, value));
        let n_dense = c.count("first_k_dense_replace", 4096)?;
        self.number("leading_dense_block_count", n_dense.unwrap_or(0));
        self.number("vocab_size", c.need("vocab_size", super::super::fields::MAX_VOCAB)?);
        self.number_of("attention.q_lora_rank", c, "q_lora_rank")?;
        self.number("attention.kv_lora_rank", rank);
        self.number("attention.key_length", rank + turned);
        self.number("attention.value_length", rank);
        self.number("attention.key_length_mla", not_turned + turned);
        self.number("attention.value_length_mla", value);
        self.number_of("expert_feed_forward_length", c, "moe_intermediate_size")?;
        self.number("expert_shared_count", c.count("n_shared_experts", 4096)?.unwrap_or(0));
        self.float_of("expert_weights_scale", c, "routed_scaling_factor")?;
        if c.flag("norm_topk_prob") == Some(true) {
            self.put("expert_weights_norm", Key::Bool(true));
        }
        self.number("rope.dimension_count", turned);
        let gating = match c.get("scoring_func").and_then(|v| v.as_str()) {
            Some("sigmoid") => Some(SIGMOID),
            Some("softmax") => Some(1),
            Some(other) => return Err(format!("scoring_func is {other:?}, sigmoid or softmax expected")),
            None => None,
        };
        if let Some(gating) = gating {
            self.number("expert_gating_func", gating);
        }
        if let Some(all) = Sizes::rope_fields(c).float("mscale_all_dim")? {
            self.put("rope.scaling.yarn_log_multiplier", Key::F32((0.1 * all) as f32));
        }
        Ok(())
    }
}
