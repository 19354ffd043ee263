//! Dense feed-forward with a gate: `down(silu(gate(x)) * up(x))`. Source: Shazeer 2020, SwiGLU.

use ggml::{Graph, Tensor};

use super::Linear;
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
