//! Phi-3, 3.5 and 4, dense: queries, keys and values of one matrix, gate and up of another; frequencies may be divided by one
//! list of factors in short contexts and by another in long ones (LongRoPE). A window, where there is one, is in all layers.
//! Source: Abdin et al. 2024, Ding et al. 2024, the Phi3 reference model; GGUF name: phi3.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, FfnConfig, SlidingKind};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};
use crate::rope::n_ctx_orig;

pub(super) const ENTRY: Entry = Entry { names: &["phi3"], nextn: false, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let kind = AttentionKind { neox: true, ..AttentionKind::default() };
    let sliding = SlidingKind { kind, base: None, scales: true };
    let mut attention = AttentionConfig::read_sliding(keys, keys.n_block()?, kind, sliding, |_| true)?;
    // As llama.cpp chooses: once, by the size of the context. The reference model looks at each text's length.
    let long_above = Some(n_ctx_orig(keys).unwrap_or(usize::MAX));
    attention.iter_mut().for_each(|a| a.long_above = long_above);
    let ffn = FfnConfig::Dense { n_ff: keys.need("feed_forward_length", WIDTH)?, fused: true, bias: false };
    let block = |attention| BlockConfig::attention(attention, NormNames::LLAMA, ffn);
    DecoderConfig::read(keys, attention.into_iter().map(block).collect(), 0)
}
