//! MiMo V2 Flash and V2.5: layers with a window and attention sinks among full ones, values by a factor, experts chosen by
//! corrected sigmoids; optional NextN head of several layers on the target model's hidden states before the norm.
//! Source: the MiMoV2Flash reference model; the head as in SGLang. GGUF name: mimo2.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, FfnConfig, Gating, MoeKind, RouterKind, SlidingKind};
use crate::decoder::{self, BlockConfig, DecoderConfig, MtpKind, NormNames};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ENTRY: Entry = Entry { names: &["mimo2"], nextn: true, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let (n_block, n_nextn) = (keys.n_block()?, keys.n_nextn()?);
    let n_layer = n_block - n_nextn;
    let kind = AttentionKind { neox: true, sinks_if_there: true, ..AttentionKind::default() };
    let sliding = SlidingKind { kind, base: None, scales: true };
    // A file without a list of windows is none of this family's, but its head's layers would have some.
    let mut attention = AttentionConfig::read_sliding(keys, n_block, kind, sliding, |il| il >= n_layer)?;
    let value_scale = keys.float("attention.value_scale", 0.0..=1e4)?.filter(|&scale| scale != 0.0 && scale != 1.0);
    attention.iter_mut().for_each(|block| block.value_scale = value_scale);
    let router = RouterKind { gating: Gating::Sigmoid, norm: true, correction: true, ..RouterKind::default() };
    let ffn = FfnConfig::by_tensors(keys, n_block, MoeKind { router, ..MoeKind::default() }, 1..n_layer)?;
    let block = |(attention, ffn)| BlockConfig::attention(attention, NormNames::LLAMA, ffn);
    let mut config = DecoderConfig::read(keys, attention.into_iter().zip(ffn).map(block).collect(), n_nextn)?;
    config.mtp = MtpKind { pre_norm: true, chained: false, ..MtpKind::default() };
    Ok(config)
}
