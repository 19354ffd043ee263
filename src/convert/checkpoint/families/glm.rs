//! GLM-4 and GLM-4.5: dense, and with experts and a NextN head.

use super::super::fields::Fields;
use super::super::table::{Behind, Row, SIGMOID, Sizes};
use crate::gguf_model::Key;

pub(super) const GLM4: Row = Row {
    classes: &[("Glm4ForCausalLM", "glm4")],
    read: |c, s| {
        s.usual(c)?;
        s.partly_turned(c)
    },
    layer: &[
        ("post_attention_layernorm.weight", "ffn_norm.weight"),
        ("post_self_attn_layernorm.weight", "post_attention_norm.weight"),
        ("post_mlp_layernorm.weight", "post_ffw_norm.weight"),
        ("mlp.gate_up_proj.weight", "ffn_up.weight"),
    ],
    special: &[("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("unknown", "<|endoftext|>"), ("bos", "<|endoftext|>")],
    ..Row::PLAIN
};

pub(super) const GLM4_MOE: Row = Row {
    classes: &[("Glm4MoeForCausalLM", "glm4moe")],
    read: |c, s| {
        s.usual(c)?;
        s.partly_turned(c)?;
        s.number_of("expert_feed_forward_length", c, "moe_intermediate_size")?;
        s.number_of("expert_shared_count", c, "n_shared_experts")?;
        s.number_of("leading_dense_block_count", c, "first_k_dense_replace")?;
        s.number("expert_gating_func", SIGMOID);
        s.float_of("expert_weights_scale", c, "routed_scaling_factor")?;
        if let Some(yes) = c.flag("norm_topk_prob") {
            s.put("expert_weights_norm", Key::Bool(yes));
        }
        Ok(())
    },
    layer: &[("post_attention_layernorm.weight", "post_attention_norm.weight")],
    behind: Behind::Head,
    special: SPECIAL,
    ..Row::PLAIN
};

/// Special tokens of GLM-4.5 and later.
pub(super) const SPECIAL: &[(&str, &str)] =
    &[("bos", "[gMASK]"), ("eot", "<|user|>"), ("unknown", "<|endoftext|>"), ("eom", "<|observation|>")];

impl Sizes {
    /// Half of a head turns, where nothing else is said.
    fn partly_turned(&mut self, c: &Fields<'_>) -> Result<(), String> {
        let share = Sizes::turned_share(c, 0.5)?;
        let head_dim = self.head_dim(c)?;
        self.number("rope.dimension_count", (head_dim as f64 * share) as u64);
        Ok(())
    }
}
