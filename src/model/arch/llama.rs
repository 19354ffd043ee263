//! Llama 2 and 3, Mistral and Mixtral: grouped-query attention, neighbouring elements turn together, optional frequency
//! factors and biases; dense, or experts without a shared one. Mistral 3 also lengthens the queries of later positions.
//! Source: Touvron et al. 2023, Grattafiori et al. 2024, Jiang et al. 2023 and 2024; GGUF names: llama, mistral3.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, FfnConfig, MoeConfig, SharedExpert};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};

pub(super) const ENTRY: Entry = Entry { names: &["llama"], nextn: false, open: |file| decoder::open(file, llama) };
pub(super) const MISTRAL3: Entry =
    Entry { names: &["mistral3"], nextn: false, open: |file| decoder::open(file, mistral3) };

fn llama(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    config(keys, false)
}

fn mistral3(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    config(keys, true)
}

fn config(keys: &Keys<'_, '_>, temperature: bool) -> Result<DecoderConfig, LoadError> {
    let n_block = keys.n_block()?;
    let kind =
        AttentionKind { freq_factors: true, bias: true, out_bias: true, temperature, ..AttentionKind::default() };
    let ffn = match MoeConfig::read(keys, n_block, SharedExpert::None, true)? {
        Some(moe) => FfnConfig::Moe(moe),
        None => FfnConfig::Dense { n_ff: keys.need("feed_forward_length", WIDTH)?, fused: false, bias: true },
    };
    let block = |attention| BlockConfig::attention(attention, NormNames::LLAMA, ffn);
    let blocks = AttentionConfig::read(keys, n_block, kind)?.into_iter().map(block).collect();
    DecoderConfig::read(keys, blocks, 0)
}
