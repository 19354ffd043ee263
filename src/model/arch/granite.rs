//! Granite 3 and 4, dense: Llama's block with factors on embeddings, residuals, scores and logits.
//! Source: the Granite reference model; GGUF name: granite.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, DenseKind, FfnConfig, MoeKind};
use crate::decoder::{self, BlockConfig, DecoderConfig, Factors, NormNames};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ENTRY: Entry = Entry { names: &["granite"], nextn: false, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let n_block = keys.n_block()?;
    let kind = AttentionKind { freq_factors: true, bias: true, out_bias: true, ..AttentionKind::default() };
    let ffn = FfnConfig::read(keys, n_block, DenseKind { bias: true, ..DenseKind::default() }, MoeKind::default())?;
    let blocks = AttentionConfig::read(keys, n_block, kind)?.into_iter().zip(ffn);
    let block = |(attention, ffn)| BlockConfig::attention(attention, NormNames::LLAMA, ffn);
    let mut config = DecoderConfig::read(keys, blocks.map(block).collect(), 0)?;
    // 0 is as good as absent.
    let factor = |key: &str| Ok::<_, LoadError>(keys.float(key, 0.0..=1e6)?.filter(|&f| f > 0.0).unwrap_or(1.0));
    config.factors = Factors {
        embedding: factor("embedding_scale")?,
        residual: factor("residual_scale")?,
        logits: 1.0 / factor("logit_scale")?,
    };
    Ok(config)
}
