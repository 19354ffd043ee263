//! Qwen3, dense and MoE: grouped-query attention with normed heads in every layer.
//! Source: the Qwen3 reference model; GGUF names as llama.cpp's converter writes them: qwen3, qwen3moe.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, DenseKind, FfnConfig, MoeKind};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ENTRY: Entry =
    Entry { names: &["qwen3", "qwen3moe"], nextn: true, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let n_block = keys.n_block()?;
    let kind = AttentionKind { neox: true, qk_norm: true, freq_factors: true, ..AttentionKind::default() };
    let ffn = FfnConfig::read(keys, n_block, DenseKind::default(), MoeKind::default())?;
    let blocks = AttentionConfig::read(keys, n_block, kind)?.into_iter().zip(ffn);
    let block = |(attention, ffn)| BlockConfig::attention(attention, NormNames::LLAMA, ffn);
    DecoderConfig::read(keys, blocks.map(block).collect(), keys.n_nextn()?)
}
