//! Qwen3.5 and 3.6, dense and MoE: delta-net layers with one of gated attention after each few; optional NextN head.
//! Source: the Qwen3.5 reference model; GGUF names as llama.cpp's converter writes them: qwen35, qwen35moe.

use crate::architecture::Entry;
use crate::blocks::{
    AttentionConfig, AttentionKind, DeltaNetConfig, DenseKind, FfnConfig, HeadOrder, MoeKind, SharedExpert,
};
use crate::decoder::{self, BlockConfig, DecoderConfig, MixerConfig, NormNames};
use crate::error::LoadError;
use crate::keys::{Keys, MAX_BLOCKS};
use crate::pictures::PictureKind;

pub(super) const ENTRY: Entry =
    Entry { names: &["qwen35", "qwen35moe"], nextn: true, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    if keys.flag("ssm.v_head_reordered")? == Some(false) {
        let what = "the value heads are in Hugging Face order; convert the file again with a current converter";
        return Err(keys.error("ssm.v_head_reordered", what));
    }
    let mut c = hybrid(keys, HeadOrder::Tiled)?;
    // Files without sections are of models for text.
    let turns = |block: &BlockConfig| matches!(block.mixer, MixerConfig::Attention(a) if a.sections.is_some());
    c.pictures = c.blocks().iter().any(turns).then_some(PictureKind::Sections);
    Ok(c)
}

/// Delta nets with attention after each few, whose heads belong together by `order`.
pub(super) fn hybrid(keys: &Keys<'_, '_>, order: HeadOrder) -> Result<DecoderConfig, LoadError> {
    let (n_block, n_nextn) = (keys.n_block()?, keys.n_nextn()?);
    let kind = AttentionKind { neox: true, qk_norm: true, gate: true, sections: true, ..AttentionKind::default() };
    let attention = AttentionConfig::read(keys, n_block, kind)?;
    let delta = DeltaNetConfig::read(keys, order)?;
    let moe = MoeKind { shared: SharedExpert::Gated, ..MoeKind::default() };
    let ffn = FfnConfig::read(keys, n_block, DenseKind::default(), moe)?;
    let recurrent = recurrent_layers(keys, n_block, n_block - n_nextn)?;
    let blocks = attention.into_iter().zip(recurrent).zip(ffn).map(|((attention, recurrent), ffn)| BlockConfig {
        mixer: if recurrent { MixerConfig::DeltaNet(delta) } else { MixerConfig::Attention(attention) },
        norms: NormNames { ffn: "post_attention_norm", after: None },
        ffn,
    });
    DecoderConfig::read(keys, blocks.collect(), n_nextn)
}

/// Which blocks are delta nets: by the file's list, or all but each `full_attention_interval`-th of the target model.
fn recurrent_layers(keys: &Keys<'_, '_>, n_block: usize, n_layer: usize) -> Result<Vec<bool>, LoadError> {
    if let Some(flags) = keys.flags("attention.recurrent_layers", n_block)? {
        return Ok((0..n_block).map(|il| il < n_layer && flags[il]).collect());
    }
    let interval = keys.find("full_attention_interval", 1..=MAX_BLOCKS)?.unwrap_or(4);
    Ok((0..n_block).map(|il| il < n_layer && !(il + 1).is_multiple_of(interval)).collect())
}
