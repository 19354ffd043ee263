//! Qwen2 and Qwen2.5, dense: grouped-query attention with biases on queries, keys and values.
//! Source: Yang et al. 2024; GGUF name: qwen2.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, FfnConfig};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};

pub(super) const ENTRY: Entry = Entry { names: &["qwen2"], nextn: true, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let kind = AttentionKind { neox: true, bias: true, ..AttentionKind::default() };
    let ffn = FfnConfig::Dense { n_ff: keys.need("feed_forward_length", WIDTH)?, fused: false, bias: false };
    let block = |attention| BlockConfig::attention(attention, NormNames::LLAMA, ffn);
    let blocks = AttentionConfig::read(keys, keys.n_block()?, kind)?.into_iter().map(block).collect();
    DecoderConfig::read(keys, blocks, keys.n_nextn()?)
}
