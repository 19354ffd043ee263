//! Nemotron-H and Nemotron 3: each layer is one thing, a Mamba-2 mixer, attention without positions, or a feed-forward,
//! dense or of experts; optional NextN head, whose one block has attention and experts and ends in a layer norm.
//! Source: Nemotron-H (2025), Nemotron 3 (2025); GGUF names: nemotron_h, nemotron_h_moe.

use crate::architecture::Entry;
use crate::blocks::{
    AttentionConfig, AttentionKind, ExpertGlu, FfnConfig, Gating, MambaConfig, MoeConfig, MoeKind, RouterKind,
    SharedExpert,
};
use crate::decoder::{self, BlockConfig, DecoderConfig, MixerConfig, NormNames};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ENTRY: Entry =
    Entry { names: &["nemotron_h", "nemotron_h_moe"], nextn: true, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let (n_block, n_nextn) = (keys.n_block()?, keys.n_nextn()?);
    let counts = |key: &str| {
        keys.per_layer(key, n_block, 0..=1 << 22)?.ok_or_else(|| keys.error(key, "is missing: it tells layers apart"))
    };
    let (n_head_kv, n_ff) = (counts("attention.head_count_kv")?, counts("feed_forward_length")?);
    let kind = AttentionKind { no_rope: true, bias: true, out_bias: true, ..AttentionKind::default() };
    let attention = AttentionConfig::read(keys, n_block, kind)?;
    let router = RouterKind { gating: Gating::Sigmoid, norm: false, correction: true, ..RouterKind::default() };
    let moe = MoeKind {
        router,
        shared: SharedExpert::Plain,
        glu: ExpertGlu::SquaredRelu,
        latent: true,
        ..MoeKind::default()
    };
    let mamba = MambaConfig::read(keys)?;
    let block = |il: usize| {
        let is_head = il >= n_block - n_nextn;
        let ffn = match n_ff[il] {
            0 => FfnConfig::None,
            n_ff => match MoeConfig::of_block(keys, n_block, il, moe)? {
                Some(moe) => FfnConfig::Moe(moe),
                None => FfnConfig::SquaredRelu { n_ff },
            },
        };
        let mixer = match (n_head_kv[il] > 0, n_ff[il] > 0) {
            (true, true) if !is_head => {
                let what = format!("block {il} has attention and a feed-forward, one of them expected");
                return Err(keys.error("feed_forward_length", what));
            }
            (true, _) => MixerConfig::Attention(attention[il]),
            (false, true) => MixerConfig::None,
            (false, false) => MixerConfig::Mamba(mamba),
        };
        let norm = if is_head { "post_attention_norm" } else { "attn_norm" };
        Ok(BlockConfig { mixer, norms: NormNames { ffn: norm, after: None }, ffn })
    };
    let blocks = (0..n_block).map(block).collect::<Result<_, LoadError>>()?;
    let layer_norm = keys.float("attention.layer_norm_epsilon", 1e-12..=0.1)?.map_or_else(|| keys.rms_eps(), Ok)?;
    let mut config = DecoderConfig::read(keys, blocks, n_nextn)?;
    config.mtp.layer_norm = Some(layer_norm);
    Ok(config)
}
