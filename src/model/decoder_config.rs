//! What a family of decoders says of its files: blocks of a mixer and a feed-forward, and a NextN head.
//! Plain data. What is made of it is the decoder's.

use crate::blocks::{AttentionConfig, DeltaNetConfig, FfnConfig, LatentConfig, MambaConfig, ShortConvConfig};
use crate::error::LoadError;
use crate::head_shape::HeadShape;
use crate::keys::{Keys, WIDTH};
use crate::pictures::PictureKind;
use crate::tensors::{Scope, Tensors};

/// What a family says of its files.
pub(crate) struct DecoderConfig {
    pub(crate) n_embd: usize,
    pub(crate) eps: f32,
    /// Blocks from first to last, with those of the NextN head.
    pub(crate) blocks: Vec<BlockConfig>,
    /// Of the blocks, those of the NextN head.
    pub(crate) n_nextn: usize,
    /// Logits are kept below it by a hyperbolic tangent.
    pub(crate) softcap: Option<f32>,
    pub(crate) mtp: MtpKind,
    pub(crate) factors: Factors,
    /// What the final norm is called.
    pub(crate) final_norm: &'static str,
    /// How pictures stand among tokens; `None` where there are none.
    pub(crate) pictures: Option<PictureKind>,
}

/// Factors of a family whose layers have other sizes than their sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factors {
    /// On embeddings of tokens.
    pub(crate) embedding: f32,
    /// On what a mixer and a feed-forward add to the stream.
    pub(crate) residual: f32,
    /// On logits.
    pub(crate) logits: f32,
}

impl Default for Factors {
    fn default() -> Self {
        Self { embedding: 1.0, residual: 1.0, logits: 1.0 }
    }
}

/// What the layers of a NextN head take as hidden states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MtpKind {
    /// Those before the final norm, which a layer hands on before its own, too.
    pub(crate) pre_norm: bool,
    /// Of several layers, each takes those of the one before it; else all take the target model's.
    pub(crate) chained: bool,
    /// Epsilon of the layer norm that a layer ends in; `None` where an RMS norm does.
    pub(crate) layer_norm: Option<f32>,
}

impl Default for MtpKind {
    /// As in DeepSeek V3 and Qwen3.5. Source: DeepSeek-AI 2024, 2.2.
    fn default() -> Self {
        Self { pre_norm: false, chained: true, layer_norm: None }
    }
}

/// One block.
#[derive(Clone, Copy)]
pub(crate) struct BlockConfig {
    pub(crate) mixer: MixerConfig,
    pub(crate) norms: NormNames,
    pub(crate) ffn: FfnConfig,
}

/// What mixes tokens in a block.
#[derive(Clone, Copy)]
pub(crate) enum MixerConfig {
    Attention(AttentionConfig),
    DeltaNet(DeltaNetConfig),
    Latent(LatentConfig),
    Mamba(MambaConfig),
    ShortConv(ShortConvConfig),
    /// Nothing: the feed-forward is all there is.
    None,
}

/// What a block's norms are called beside `attn_norm`, the one before the mixer.
#[derive(Clone, Copy)]
pub(crate) struct NormNames {
    /// Before the feed-forward.
    pub(crate) ffn: &'static str,
    /// After the mixer and after the feed-forward, where there are some.
    pub(crate) after: Option<[&'static str; 2]>,
}

impl NormNames {
    /// As in Llama.
    pub(crate) const LLAMA: Self = Self { ffn: "ffn_norm", after: None };
}

impl BlockConfig {
    /// A block of attention.
    pub(crate) fn attention(attention: AttentionConfig, norms: NormNames, ffn: FfnConfig) -> Self {
        Self { mixer: MixerConfig::Attention(attention), norms, ffn }
    }
}

impl DecoderConfig {
    /// With what all families read alike.
    pub(crate) fn read(keys: &Keys<'_, '_>, blocks: Vec<BlockConfig>, n_nextn: usize) -> Result<Self, LoadError> {
        if keys.flag("attention.causal")? == Some(false) {
            return Err(keys.error("attention.causal", "attention to later tokens (an encoder) is not supported"));
        }
        if n_nextn > MAX_MTP_LAYERS {
            let what = format!("{n_nextn} found, at most {MAX_MTP_LAYERS} expected");
            return Err(keys.error("nextn_predict_layers", what));
        }
        let (n_embd, eps, mtp) = (keys.need("embedding_length", WIDTH)?, keys.rms_eps()?, MtpKind::default());
        let factors = Factors::default();
        let (final_norm, softcap, pictures) = ("output_norm", None, None);
        Ok(Self { n_embd, eps, blocks, n_nextn, mtp, factors, final_norm, softcap, pictures })
    }

    /// All blocks.
    pub(crate) fn blocks(&self) -> &[BlockConfig] {
        &self.blocks
    }

    pub(crate) fn n_layer(&self) -> usize {
        self.blocks.len() - self.n_nextn
    }

    /// Experts, and how many of them a token uses; 0 in a dense model.
    pub(crate) fn n_expert(&self) -> (usize, usize) {
        let of = |block: &BlockConfig| block.ffn.moe().map_or((0, 0), |moe| (moe.router.n_expert, moe.router.n_used));
        self.blocks.iter().map(of).max().unwrap_or_default()
    }

    /// What a layer of the NextN head computes; else what of it cannot be said. All layers must compute the same.
    pub(crate) fn head_shape(&self, t: &mut Tensors<'_>) -> Result<HeadShape, String> {
        let mut shapes = (self.n_layer()..self.blocks.len()).map(|il| self.shape_of(&self.blocks[il], &t.block(il)));
        let first = shapes.next().ok_or("it has no NextN head")??;
        for shape in shapes {
            if shape? != first {
                return Err("the layers of its NextN head differ from each other".into());
            }
        }
        Ok(first)
    }

    fn shape_of(&self, block: &BlockConfig, t: &Scope<'_, '_>) -> Result<HeadShape, String> {
        let attention = match &block.mixer {
            MixerConfig::Attention(attention) => attention.shape(t)?,
            MixerConfig::Latent(latent) => latent.shape(),
            _ => return Err("its NextN head has no attention".into()),
        };
        if self.softcap.is_some() || self.factors != Factors::default() {
            return Err("its logits are capped, or factors stand between its layers".into());
        }
        if block.norms.after.is_some() {
            return Err("its NextN head has norms after its parts".into());
        }
        Ok(HeadShape {
            n_embd: self.n_embd,
            eps: self.eps,
            pre_norm: self.mtp.pre_norm,
            chained: self.mtp.chained,
            ffn_norm: block.norms.ffn,
            layer_norm: self.mtp.layer_norm,
            attention,
            ffn: block.ffn.shape(t)?,
        })
    }

    /// Query heads, where a layer has most.
    pub(crate) fn n_head(&self) -> usize {
        let of = |block: &BlockConfig| match block.mixer {
            MixerConfig::Attention(a) => a.n_head,
            MixerConfig::Latent(a) => a.n_head,
            MixerConfig::DeltaNet(_) | MixerConfig::Mamba(_) | MixerConfig::ShortConv(_) | MixerConfig::None => 0,
        };
        self.blocks.iter().map(of).max().unwrap_or(0)
    }
}

/// Layers of a NextN head at most: no draft is longer.
const MAX_MTP_LAYERS: usize = 16;
