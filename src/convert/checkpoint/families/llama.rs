//! Llama, Mistral, Mixtral and Ministral 3.

use super::super::table::{Row, Sizes, Vocabulary};
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &[("LlamaForCausalLM", "llama"), ("MistralForCausalLM", "llama"), ("MixtralForCausalLM", "llama")],
    read: |c, s| {
        s.usual(c)?;
        s.llama(c)
    },
    layer: MIXTRAL,
    interleaves: true,
    vocabulary: Vocabulary::Llama,
    // Code Llama's.
    special: &[
        ("prefix", "\u{2581}<PRE>"),
        ("suffix", "\u{2581}<SUF>"),
        ("middle", "\u{2581}<MID>"),
        ("eot", "\u{2581}<EOT>"),
    ],
    ..Row::PLAIN
};

pub(super) const MISTRAL3: Row = Row {
    classes: &[("Ministral3ForCausalLM", "mistral3"), ("Mistral3ForConditionalGeneration", "mistral3")],
    read: |c, s| s.mistral3(c),
    interleaves: true,
    vocabulary: Vocabulary::Llama,
    ..Row::PLAIN
};

const MIXTRAL: &[(&str, &str)] = &[("block_sparse_moe.gate.weight", "ffn_gate_inp.weight")];

impl Sizes {
    /// What files of Mistral 3 say.
    pub(super) fn mistral3(&mut self, c: &super::super::fields::Fields<'_>) -> Result<(), String> {
        self.usual(c)?;
        self.llama(c)?;
        let rope = Sizes::rope_fields(c);
        self.float_of("rope.scaling.yarn_log_multiplier", &rope, "mscale_all_dim")?;
        self.float_of("attention.temperature_scale", &rope, "llama_4_scaling_beta")
    }

    /// What files of Llama say beside the usual.
    pub(super) fn llama(&mut self, c: &super::super::fields::Fields<'_>) -> Result<(), String> {
        let n_vocab = c.need("vocab_size", super::super::fields::MAX_VOCAB)?;
        self.put("vocab_size", Key::U32(n_vocab as u32));
        let head_dim = self.head_dim(c)?;
        self.number("rope.dimension_count", head_dim);
        Ok(())
    }
}
