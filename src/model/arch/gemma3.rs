//! Gemma 2 and 3: scaled embeddings, a norm before and after both parts of a layer, GELU; most layers (Gemma 3) or every
//! other one (Gemma 2) have a window. Gemma 2 caps scores and logits, Gemma 3 norms queries and keys.
//! Source: Gemma Team 2024 and 2025; GGUF names: gemma2, gemma3.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, FfnConfig, SlidingKind};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};
use crate::pictures::{BothWays, PictureKind};

pub(super) const ENTRY: Entry = Entry { names: &["gemma3"], nextn: false, open: |file| decoder::open(file, gemma3) };
pub(super) const GEMMA2: Entry = Entry { names: &["gemma2"], nextn: false, open: |file| decoder::open(file, gemma2) };

/// Blocks of the 27B models, whose scores are scaled by the width, not by their heads'. No key tells it.
const BLOCKS_OF_27B: [usize; 2] = [46, 62];

fn gemma2(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let kind = AttentionKind { neox: true, ..AttentionKind::default() };
    let sliding = SlidingKind { kind, base: None, scales: true };
    let mut attention = attention(keys, kind, sliding, 2)?;
    let softcap = keys.float("attn_logit_softcapping", SOFTCAP)?.unwrap_or(50.0);
    attention.iter_mut().for_each(|a| a.softcap = Some(softcap));
    config(keys, attention, Some(30.0))
}

fn gemma3(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let kind = AttentionKind { neox: true, qk_norm: true, ..AttentionKind::default() };
    // Files of before the key have this base; a scaling is the full layers' alone.
    let sliding = SlidingKind { kind, base: Some(10_000.0), scales: false };
    let mut config = config(keys, attention(keys, kind, sliding, 6)?, None)?;
    config.pictures = Some(PictureKind::Plain { both_ways: BothWays::Everywhere });
    Ok(config)
}

/// Each `period`-th layer has no window.
fn attention(
    keys: &Keys<'_, '_>,
    kind: AttentionKind,
    sliding: SlidingKind,
    period: usize,
) -> Result<Vec<AttentionConfig>, LoadError> {
    let n_block = keys.n_block()?;
    let slides = |il: usize| !(il + 1).is_multiple_of(period);
    let mut blocks = AttentionConfig::read_sliding(keys, n_block, kind, sliding, slides)?;
    if BLOCKS_OF_27B.contains(&n_block) {
        let n_embd = keys.need("embedding_length", WIDTH)?;
        blocks.iter_mut().for_each(|a| a.scale = 1.0 / ((n_embd / a.n_head.max(1)) as f32).sqrt());
    }
    Ok(blocks)
}

fn config(
    keys: &Keys<'_, '_>,
    attention: Vec<AttentionConfig>,
    softcap: Option<f32>,
) -> Result<DecoderConfig, LoadError> {
    let norms = NormNames { ffn: "ffn_norm", after: Some(["post_attention_norm", "post_ffw_norm"]) };
    let ffn = FfnConfig::Geglu { n_ff: keys.need("feed_forward_length", WIDTH)? };
    let blocks = attention.into_iter().map(|attention| BlockConfig::attention(attention, norms, ffn)).collect();
    let scale = (keys.need("embedding_length", WIDTH)? as f32).sqrt();
    let softcap = keys.float("final_logit_softcapping", 0.0..=1e6)?.or(softcap).filter(|&cap| cap > 0.0);
    let mut config = DecoderConfig::read(keys, blocks, 0)?;
    config.factors.embedding = scale;
    config.softcap = softcap;
    Ok(config)
}

/// Caps that are believed.
const SOFTCAP: std::ops::RangeInclusive<f32> = 1e-3..=1e6;
