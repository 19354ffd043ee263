//! LFM2, dense: gated short convolutions, and attention with normed heads in some layers.
//! Source: the LFM2 reference model; GGUF name: lfm2.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, DenseKind, FfnConfig, MoeKind, ShortConvConfig};
use crate::decoder::{self, BlockConfig, DecoderConfig, MixerConfig, NormNames};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ENTRY: Entry = Entry { names: &["lfm2"], nextn: false, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let (n_block, key) = (keys.n_block()?, "attention.head_count_kv");
    let kind = AttentionKind { neox: true, qk_norm: true, ..AttentionKind::default() };
    // Layers without key heads are convolutions.
    let n_head_kv = keys.per_layer(key, n_block, 0..=1 << 16)?.ok_or_else(|| keys.error(key, "is missing"))?;
    let attention = AttentionConfig::read(keys, n_block, kind)?;
    let ffn = FfnConfig::read(keys, n_block, DenseKind::default(), MoeKind::default())?;
    let conv = ShortConvConfig::read(keys)?;
    let blocks = n_head_kv.into_iter().zip(attention).zip(ffn).map(|((n_head_kv, attention), ffn)| BlockConfig {
        mixer: if n_head_kv > 0 { MixerConfig::Attention(attention) } else { MixerConfig::ShortConv(conv) },
        norms: NormNames::LLAMA,
        ffn,
    });
    let mut config = DecoderConfig::read(keys, blocks.collect(), 0)?;
    config.final_norm = "token_embd_norm";
    Ok(config)
}
