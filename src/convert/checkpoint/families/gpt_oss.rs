//! gpt-oss, with its experts in blocks of MXFP4 or in floats.

use super::super::fields::MAX_DIM;
use super::super::table::Row;

pub(super) const ROW: Row = Row {
    classes: &[("GptOssForCausalLM", "gpt-oss")],
    read: |c, s| {
        s.usual(c)?;
        s.number("attention.sliding_window", c.need("sliding_window", u32::MAX.into())?);
        s.number("expert_feed_forward_length", c.need("intermediate_size", MAX_DIM)?);
        Ok(())
    },
    layer: &[
        ("post_attention_layernorm.weight", "post_attention_norm.weight"),
        ("self_attn.sinks", "attn_sinks.weight"),
        ("mlp.router.weight", "ffn_gate_inp.weight"),
        ("mlp.router.bias", "ffn_gate_inp.bias"),
        ("mlp.experts.down_proj_blocks", "ffn_down_exps.weight"),
        ("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
    ],
    alternating: true,
    ..Row::PLAIN
};
