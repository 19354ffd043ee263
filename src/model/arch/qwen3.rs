//! Qwen3, dense and MoE: grouped-query attention with normed heads in every layer.
//! Source: the Qwen3 reference model; GGUF names as llama.cpp's converter writes them: qwen3, qwen3moe.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, FfnConfig, MoeConfig, SharedExpert};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};

pub(super) const ENTRY: Entry =
    Entry { names: &["qwen3", "qwen3moe"], nextn: false, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let n_block = keys.n_block()?;
    let kind = AttentionKind { neox: true, qk_norm: true, freq_factors: true, ..AttentionKind::default() };
    let ffn = match MoeConfig::read(keys, n_block, SharedExpert::None, false)? {
        Some(moe) => FfnConfig::Moe(moe),
        None => FfnConfig::Dense { n_ff: keys.need("feed_forward_length", WIDTH)?, fused: false, bias: false },
    };
    let block = |attention| BlockConfig::attention(attention, NormNames::LLAMA, ffn);
    let blocks = AttentionConfig::read(keys, n_block, kind)?.into_iter().map(block).collect();
    DecoderConfig::read(keys, blocks, 0)
}
