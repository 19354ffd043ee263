//! Step 3.5 and 3.7 Flash: layers with a window among full ones, which have other numbers of heads and rotate half of each;
//! a gate for each head; dense layers first, then experts chosen by corrected sigmoids beside a shared one, limited in some
//! layers; optional NextN head of several layers, each on the hidden states of the one before it.
//! Source: the Step3p5 reference model; the head as in SGLang. GGUF name: step35.

use crate::architecture::Entry;
use crate::blocks::{
    AttentionConfig, AttentionKind, FfnConfig, Gating, MoeKind, RouterKind, SharedExpert, SlidingKind,
};
use crate::decoder::{self, BlockConfig, DecoderConfig, MtpKind, NormNames};
use crate::error::LoadError;
use crate::keys::{Keys, MAX_BLOCKS};

pub(super) const ENTRY: Entry = Entry { names: &["step35"], nextn: true, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let (n_block, n_nextn) = (keys.n_block()?, keys.n_nextn()?);
    let n_layer = n_block - n_nextn;
    let n_dense = keys.find("leading_dense_block_count", 0..=MAX_BLOCKS)?.unwrap_or(0);
    let router = RouterKind { gating: Gating::Sigmoid, correction: true, ..RouterKind::default() };
    let moe = MoeKind { router, shared: SharedExpert::Plain, ..MoeKind::default() };
    let ffn = FfnConfig::by_tensors(keys, n_block, moe, n_dense..n_layer)?;
    let limits = keys.limits("swiglu_clamp_exp", n_block)?;
    let shared_limits = keys.limits("swiglu_clamp_shexp", n_block)?;
    let ffn = ffn.into_iter().zip(limits.into_iter().zip(shared_limits));
    let blocks = attention(keys, n_block, n_layer)?.into_iter().zip(ffn).map(|(attention, (ffn, (limit, shared)))| {
        BlockConfig::attention(attention, NormNames::LLAMA, ffn.limited(limit, shared))
    });
    let mut config = DecoderConfig::read(keys, blocks.collect(), n_nextn)?;
    config.mtp = MtpKind { pre_norm: true, ..MtpKind::default() };
    Ok(config)
}

fn attention(keys: &Keys<'_, '_>, n_block: usize, n_layer: usize) -> Result<Vec<AttentionConfig>, LoadError> {
    let full = AttentionKind {
        neox: true,
        qk_norm_if_there: true,
        head_gate: true,
        freq_factors: true,
        wide_factors: true,
        ..AttentionKind::default()
    };
    let sliding = SlidingKind { kind: AttentionKind { own_frequencies: true, ..full }, base: None, scales: false };
    let mut blocks = AttentionConfig::read_sliding(keys, n_block, full, sliding, |il| il >= n_layer)?;
    for block in blocks.iter_mut().filter(|block| block.window.is_none()) {
        let Some(rope) = &mut block.rope else { continue };
        if rope.n_dims % 4 != 0 {
            let what = format!("{} rotated elements have no half of pairs", rope.n_dims);
            return Err(keys.error("attention.key_length", what));
        }
        rope.n_dims /= 2;
    }
    Ok(blocks)
}
