//! Granite 3, dense.

use super::super::table::{Row, Vocabulary};

pub(super) const ROW: Row = Row {
    classes: &[("GraniteForCausalLM", "granite")],
    read: |c, s| {
        s.usual(c)?;
        s.llama(c)?;
        s.float_of("attention.scale", c, "attention_multiplier")?;
        s.float_of("embedding_scale", c, "embedding_multiplier")?;
        s.float_of("residual_scale", c, "residual_multiplier")?;
        s.float_of("logit_scale", c, "logits_scaling")
    },
    interleaves: true,
    vocabulary: Vocabulary::Llama,
    ..Row::PLAIN
};
