//! Llama 2 and 3, dense: grouped-query attention, neighbouring elements turn together, optional frequency factors.
//! Source: Touvron et al. 2023, Grattafiori et al. 2024; GGUF name: llama.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, FfnConfig};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};

pub(super) const ENTRY: Entry = Entry { names: &["llama"], nextn: false, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    if let Some(n) = keys.find("expert_count", 0..=1 << 16)?.filter(|&n| n > 0) {
        return Err(keys.error("expert_count", format!("{n} experts found, only dense llama models are supported")));
    }
    let kind = AttentionKind { freq_factors: true, ..AttentionKind::default() };
    let ffn = FfnConfig::Dense { n_ff: keys.need("feed_forward_length", WIDTH)?, fused: false };
    let block = |attention| BlockConfig::attention(attention, NormNames::LLAMA, ffn);
    let blocks = AttentionConfig::read(keys, keys.n_block()?, kind)?.into_iter().map(block).collect();
    DecoderConfig::read(keys, blocks, 0)
}
