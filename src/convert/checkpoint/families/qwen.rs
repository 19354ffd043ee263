//! Qwen2, and Qwen3 with experts and without.

use super::super::table::Row;

pub(super) const QWEN2: Row = Row { classes: &[("Qwen2ForCausalLM", "qwen2")], ..Row::PLAIN };

pub(super) const QWEN3: Row = Row { classes: &[("Qwen3ForCausalLM", "qwen3")], ..Row::PLAIN };

pub(super) const QWEN3_MOE: Row = Row {
    classes: &[("Qwen3MoeForCausalLM", "qwen3moe")],
    read: |c, s| {
        let some = |v: &serde_json::Value| v.as_array().is_some_and(|list| !list.is_empty());
        if c.get("mlp_only_layers").is_some_and(some) || c.get("decoder_sparse_step").is_some_and(|v| *v != 1) {
            return Err(
                "mlp_only_layers or decoder_sparse_step names layers without experts, which are not supported".into()
            );
        }
        s.usual(c)?;
        s.number_of("expert_feed_forward_length", c, "moe_intermediate_size")?;
        s.number_of("expert_shared_feed_forward_length", c, "shared_expert_intermediate_size")
    },
    ..Row::PLAIN
};
