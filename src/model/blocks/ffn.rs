//! The feed-forward of a layer: dense with a gate, or a mixture of experts.

use ggml::{Graph, Tensor};

use super::gated_ffn::{Activation, GatedFfn};
use super::moe::{MoeConfig, MoeFfn};
use crate::error::LoadError;
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
    Moe(MoeConfig),
}

/// The weights of a layer's feed-forward.
pub(crate) enum Ffn {
    Dense(GatedFfn),
    Moe(Box<MoeFfn>),
}

impl Ffn {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, n_embd: usize, config: FfnConfig) -> Result<Self, LoadError> {
        Ok(match config {
            FfnConfig::Moe(moe) => Self::Moe(Box::new(MoeFfn::open(t, n_embd, moe)?)),
            FfnConfig::Geglu { n_ff } => {
                Self::Dense(GatedFfn::open(t, "", n_embd, n_ff, false, false)?.with(Activation::Gelu))
            }
            FfnConfig::Dense { n_ff, fused, bias } => Self::Dense(GatedFfn::open(t, "", n_embd, n_ff, fused, bias)?),
        })
    }

    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Self::Dense(ffn) => ffn.forward(g, x),
            Self::Moe(ffn) => ffn.forward(g, x),
        }
    }
}
