//! The feed-forward of a layer: dense with a gate, or a mixture of experts.

use ggml::{Graph, Tensor};

use super::gated_ffn::{Activation, GatedFfn};
use super::moe::{MoeConfig, MoeFfn, MoeKind};
use super::squared_relu::SquaredReluFfn;
use crate::error::LoadError;
use crate::head_shape::{HeadFfn, HeadGlu, HeadInner};
use crate::keys::{Keys, MAX_BLOCKS};
use crate::share::Share;
use crate::tensors::Scope;

/// What stands after the mixer of a layer, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FfnConfig {
    Dense {
        n_ff: usize,
        /// Gate and up are one matrix.
        fused: bool,
        /// There may be biases.
        bias: bool,
    },
    /// Dense, with GELU in place of SiLU.
    Geglu {
        n_ff: usize,
    },
    /// Without a gate.
    SquaredRelu {
        n_ff: usize,
    },
    Moe(MoeConfig),
    /// Nothing: the mixer is all there is.
    None,
    /// Experts where the file has a router, else dense; a block of no file is what `likely` says.
    Either {
        n_ff: usize,
        moe: MoeConfig,
        limit: Option<f32>,
        likely: Likely,
    },
}

/// What a block is where no tensor tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Likely {
    Dense,
    Moe,
}

/// What a family says of its dense feed-forwards.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DenseKind {
    /// Gate and up are one matrix.
    pub(crate) fused: bool,
    /// There may be biases.
    pub(crate) bias: bool,
}

impl FfnConfig {
    /// That of each block: experts, where the file has some, after `leading_dense_block_count` dense blocks.
    pub(crate) fn read(
        keys: &Keys<'_, '_>,
        n_block: usize,
        dense: DenseKind,
        moe: MoeKind,
    ) -> Result<Vec<Self>, LoadError> {
        let moe = MoeConfig::read(keys, n_block, moe)?;
        let n_dense = match moe {
            Some(_) => keys.find("leading_dense_block_count", 0..=MAX_BLOCKS)?.unwrap_or(0).min(n_block),
            None => n_block,
        };
        let mut blocks = Self::dense(keys, n_block, n_dense, dense)?;
        blocks.extend(moe.map(|moe| vec![Self::Moe(moe); n_block - n_dense]).into_iter().flatten());
        Ok(blocks)
    }

    /// That of each block, of a file whose tensors tell which blocks have experts: likely those from `first` to before `end`.
    pub(crate) fn by_tensors(
        keys: &Keys<'_, '_>,
        n_block: usize,
        moe: MoeKind,
        likely: std::ops::Range<usize>,
    ) -> Result<Vec<Self>, LoadError> {
        let (key, moe) = ("feed_forward_length", MoeConfig::read(keys, n_block, moe)?);
        let moe = moe.ok_or_else(|| keys.error("expert_count", "is missing or 0"))?;
        let n_ff = keys.per_layer(key, n_block, 0..=1 << 22)?.ok_or_else(|| keys.error(key, "is missing"))?;
        let either = |(il, n_ff)| {
            let likely = if likely.contains(&il) { Likely::Moe } else { Likely::Dense };
            Self::Either { n_ff, moe, limit: None, likely }
        };
        Ok(n_ff.into_iter().enumerate().map(either).collect())
    }

    /// The same with limits on the factors of inner rows: those of experts, and those of the shared expert and of dense
    /// blocks.
    pub(crate) fn limited(self, limit: Option<f32>, shared: Option<f32>) -> Self {
        match self {
            Self::Moe(moe) => Self::Moe(moe.limited(limit, shared)),
            Self::Either { n_ff, moe, likely, .. } => {
                Self::Either { n_ff, moe: moe.limited(limit, shared), limit: shared, likely }
            }
            dense @ (Self::Dense { .. } | Self::Geglu { .. } | Self::SquaredRelu { .. } | Self::None) => dense,
        }
    }

    /// The sizes of a share.
    pub(crate) fn shared(self, share: Share) -> Result<Self, LoadError> {
        let count = |n_ff| share.count(n_ff, "inner rows");
        Ok(match self {
            Self::Dense { n_ff, fused, bias } => Self::Dense { n_ff: count(n_ff)?, fused, bias },
            Self::Geglu { n_ff } => Self::Geglu { n_ff: count(n_ff)? },
            Self::SquaredRelu { n_ff } => Self::SquaredRelu { n_ff: count(n_ff)? },
            Self::Moe(moe) => Self::Moe(moe.shared(share)?),
            Self::None => Self::None,
            Self::Either { n_ff, moe, limit, likely } => {
                Self::Either { n_ff: count(n_ff)?, moe: moe.shared(share)?, limit, likely }
            }
        })
    }

    /// Rows of the gate, where gate and up are one matrix.
    pub(crate) fn fused_rows(&self) -> Option<usize> {
        match *self {
            Self::Dense { n_ff, fused: true, .. } => Some(n_ff),
            _ => None,
        }
    }

    /// The experts, where there may be some.
    pub(crate) fn moe(&self) -> Option<MoeConfig> {
        match self {
            Self::Moe(moe) | Self::Either { moe, .. } => Some(*moe),
            Self::Dense { .. } | Self::Geglu { .. } | Self::SquaredRelu { .. } | Self::None => None,
        }
    }

    /// As a NextN head has it in the block of `t`; else what of it cannot be said.
    pub(crate) fn shape(&self, t: &Scope<'_, '_>) -> Result<HeadFfn, String> {
        let dense = |n_ff, glu| Ok(HeadFfn::Dense(HeadInner { n_ff, glu }));
        match *self {
            Self::Dense { n_ff, fused: false, .. } => dense(n_ff, HeadGlu::Silu),
            Self::SquaredRelu { n_ff } => dense(n_ff, HeadGlu::SquaredRelu),
            Self::Moe(moe) => moe.shape().map(HeadFfn::Moe),
            Self::Either { moe, likely, .. } if has_experts(t, likely) => moe.shape().map(HeadFfn::Moe),
            Self::Either { n_ff, limit, .. } => dense(n_ff, limit.map_or(HeadGlu::Silu, HeadGlu::Limited)),
            Self::Dense { .. } | Self::Geglu { .. } | Self::None => {
                Err("the feed-forward of its NextN head is of another kind than SwiGLU or a squared ReLU".into())
            }
        }
    }

    /// The first `n` of `n_block` blocks, dense.
    fn dense(keys: &Keys<'_, '_>, n_block: usize, n: usize, kind: DenseKind) -> Result<Vec<Self>, LoadError> {
        let key = "feed_forward_length";
        if n == 0 {
            return Ok(Vec::new());
        }
        let n_ff = keys.per_layer(key, n_block, 0..=1 << 22)?.ok_or_else(|| keys.error(key, "is missing"))?;
        if let Some(il) = n_ff[..n].iter().position(|&n_ff| n_ff == 0) {
            return Err(keys.error(key, format!("0 found for block {il}, a width expected")));
        }
        let DenseKind { fused, bias } = kind;
        Ok(n_ff[..n].iter().map(|&n_ff| Self::Dense { n_ff, fused, bias }).collect())
    }
}

/// Whether the block of `t` has experts, where its tensors tell.
fn has_experts(t: &Scope<'_, '_>, likely: Likely) -> bool {
    let dense = t.has("ffn_gate.weight") || t.has("ffn_up.weight") || likely == Likely::Dense;
    t.has("ffn_gate_inp.weight") || !dense
}

/// The weights of a layer's feed-forward.
pub(crate) enum Ffn {
    Dense(GatedFfn),
    SquaredRelu(SquaredReluFfn),
    Moe(Box<MoeFfn>),
}

impl Ffn {
    /// Asks for the tensors of a block; `None` where it has no feed-forward.
    pub(crate) fn open(t: &mut Scope<'_, '_>, n_embd: usize, config: FfnConfig) -> Result<Option<Self>, LoadError> {
        Ok(Some(match config {
            FfnConfig::Moe(moe) => Self::Moe(Box::new(MoeFfn::open(t, n_embd, moe)?)),
            FfnConfig::Geglu { n_ff } => {
                Self::Dense(GatedFfn::open(t, "", n_embd, n_ff, false, false)?.with(Activation::Gelu))
            }
            FfnConfig::Either { n_ff, moe, limit, likely } => {
                if has_experts(t, likely) {
                    return Self::open(t, n_embd, FfnConfig::Moe(moe));
                }
                if n_ff == 0 {
                    return Err(LoadError::Key {
                        key: "feed_forward_length".into(),
                        what: "0 for a dense block".into(),
                    });
                }
                Self::Dense(GatedFfn::open(t, "", n_embd, n_ff, false, false)?.limited(limit))
            }
            FfnConfig::Dense { n_ff, fused, bias } => Self::Dense(GatedFfn::open(t, "", n_embd, n_ff, fused, bias)?),
            FfnConfig::SquaredRelu { n_ff } => Self::SquaredRelu(SquaredReluFfn::open(t, "", n_embd, n_ff)?),
            FfnConfig::None => return Ok(None),
        }))
    }

    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Self::Dense(ffn) => ffn.forward(g, x),
            Self::SquaredRelu(ffn) => ffn.forward(g, x),
            Self::Moe(ffn) => ffn.forward(g, x),
        }
    }
}
