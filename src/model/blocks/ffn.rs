//! Feed-forward: dense with a gate, `down(silu(gate(x)) * up(x))` (Shazeer 2020, SwiGLU), or a mixture of experts.

use ggml::{Graph, Tensor};

use super::{Linear, MoeFfn, MoeSizes};
use crate::error::LoadError;
use crate::load::Loader;

/// The three matrices.
pub(crate) struct GatedFfn {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl GatedFfn {
    /// Binds `{prefix}ffn_gate{suffix}.weight` and its fellows.
    pub(crate) fn open(
        loader: &mut Loader<'_>,
        prefix: &str,
        suffix: &str,
        n_embd: usize,
        n_ff: usize,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            gate: Linear::open(loader, &format!("{prefix}ffn_gate{suffix}"), n_embd, n_ff)?,
            up: Linear::open(loader, &format!("{prefix}ffn_up{suffix}"), n_embd, n_ff)?,
            down: Linear::open(loader, &format!("{prefix}ffn_down{suffix}"), n_ff, n_embd)?,
        })
    }

    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let act = g.swiglu(self.gate.forward(g, x), self.up.forward(g, x)); // [n_ff, n_tokens]
        self.down.forward(g, act)
    }
}

/// What stands after the mixer of a layer.
pub(crate) enum Ffn {
    Dense(GatedFfn),
    Moe(Box<MoeFfn>),
}

impl Ffn {
    /// Binds the experts of a layer where there are some, else its dense matrices, which are `n_ff` wide.
    pub(crate) fn open(
        loader: &mut Loader<'_>,
        prefix: &str,
        n_embd: usize,
        n_ff: usize,
        moe: Option<MoeSizes>,
    ) -> Result<Self, LoadError> {
        Ok(match moe {
            Some(moe) => Self::Moe(Box::new(MoeFfn::open(loader, prefix, moe)?)),
            None => Self::Dense(GatedFfn::open(loader, prefix, "", n_embd, n_ff)?),
        })
    }

    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Self::Dense(ffn) => ffn.forward(g, x),
            Self::Moe(ffn) => ffn.forward(g, x),
        }
    }
}
