//! GLM-4.5 to 4.7 and GLM-4.5-Air: dense layers first, then experts chosen by corrected sigmoids beside a shared one;
//! optional NextN head with a mixture of its own. Source: Zeng et al. 2025; GGUF name: glm4moe.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, DenseKind, FfnConfig, Gating, MoeKind, RouterKind, SharedExpert};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ENTRY: Entry = Entry { names: &["glm4moe"], nextn: true, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let (n_block, n_nextn) = (keys.n_block()?, keys.n_nextn()?);
    let kind = AttentionKind { neox: true, bias: true, qk_norm_if_there: true, ..AttentionKind::default() };
    let router = RouterKind { gating: Gating::Sigmoid, norm: false, correction: true, ..RouterKind::default() };
    let moe = MoeKind { router, shared: SharedExpert::Plain, ..MoeKind::default() };
    let norms = NormNames { ffn: "post_attention_norm", after: None };
    let ffn = FfnConfig::read(keys, n_block, DenseKind::default(), moe)?;
    let blocks = AttentionConfig::read(keys, n_block, kind)?.into_iter().zip(ffn);
    let block = |(attention, ffn)| BlockConfig::attention(attention, norms, ffn);
    DecoderConfig::read(keys, blocks.map(block).collect(), n_nextn)
}
