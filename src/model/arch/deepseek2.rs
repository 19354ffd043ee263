//! DeepSeek V2, V3 and R1, GLM-4.7-Flash and their kin: latent attention, dense layers first, then experts beside a shared
//! one; optional NextN head with a block of the same kind. Source: DeepSeek-V2 and V3 (2024); GGUF name: deepseek2.

use crate::architecture::Entry;
use crate::blocks::{DenseKind, FfnConfig, Gating, LatentConfig, MoeKind, RouterKind, SharedExpert};
use crate::decoder::{self, BlockConfig, DecoderConfig, MixerConfig, NormNames};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ENTRY: Entry = Entry { names: &["deepseek2"], nextn: true, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let (n_block, n_nextn) = (keys.n_block()?, keys.n_nextn()?);
    let gating = gating_of_old_files(keys, n_block - n_nextn)?;
    let router = RouterKind { gating, norm: false, correction: true, ..RouterKind::default() };
    let moe = MoeKind { router, shared: SharedExpert::Plain, ..MoeKind::default() };
    let ffn = FfnConfig::read(keys, n_block, DenseKind::default(), moe)?;
    let blocks = LatentConfig::read(keys, n_block)?.into_iter().zip(ffn);
    let block = |(latent, ffn)| BlockConfig { mixer: MixerConfig::Latent(latent), norms: NormNames::LLAMA, ffn };
    DecoderConfig::read(keys, blocks.map(block).collect(), n_nextn)
}

/// The gating of files that do not tell it: that of DeepSeek V2, but of files of GLM-4.7-Flash, which were published without
/// the key, that of theirs.
fn gating_of_old_files(keys: &Keys<'_, '_>, n_layer: usize) -> Result<Gating, LoadError> {
    let is_glm = matches!(n_layer, 47 | 48) && keys.n_vocab()? == Some(154_880);
    Ok(if is_glm { Gating::Sigmoid } else { Gating::Softmax })
}
