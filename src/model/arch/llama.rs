//! Llama 2 and 3, Mistral and Mixtral: grouped-query attention, neighbouring elements turn together, optional frequency
//! factors and biases; dense, or experts without a shared one. Mistral 3 also lengthens the queries of later positions.
//! Source: Touvron et al. 2023, Grattafiori et al. 2024, Jiang et al. 2023 and 2024; GGUF names: llama, mistral3.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, DenseKind, FfnConfig, MoeKind};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ENTRY: Entry = Entry { names: &["llama"], nextn: true, open: |file| decoder::open(file, llama) };
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
    let dense = DenseKind { bias: true, ..DenseKind::default() };
    let ffn = FfnConfig::read(keys, n_block, dense, MoeKind { wide: true, ..MoeKind::default() })?;
    let blocks = AttentionConfig::read(keys, n_block, kind)?.into_iter().zip(ffn);
    let block = |(attention, ffn)| BlockConfig::attention(attention, NormNames::LLAMA, ffn);
    DecoderConfig::read(keys, blocks.map(block).collect(), keys.n_nextn()?)
}
