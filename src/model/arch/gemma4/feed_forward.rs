//! Gemma 4's feed-forward: dense, or a dense part and experts side by side, each with norms of its own.

use ggml::{Graph, Tensor};

use super::config::GemmaConfig;
use crate::blocks::{Activation, GatedFfn, RmsNorm};
use crate::error::LoadError;
use crate::tensors::Scope;

/// The weights of a layer's feed-forward.
pub(super) struct FeedForward {
    norm: RmsNorm,
    dense: GatedFfn,
    after: RmsNorm,
}

impl FeedForward {
    /// Asks for the tensors of block `il`.
    pub(super) fn open(t: &mut Scope<'_, '_>, c: &GemmaConfig, il: usize) -> Result<Self, LoadError> {
        let norm = |t: &mut Scope<'_, '_>, name: &str| RmsNorm::open(t, name, c.n_embd, c.eps);
        Ok(Self {
            norm: norm(t, "ffn_norm")?,
            dense: GatedFfn::open(t, "", c.n_embd, c.layers[il].n_ff, false, false)?.with(Activation::Gelu),
            after: norm(t, "post_ffw_norm")?,
        })
    }

    /// `x: [n_embd, n_tokens]`, the residual stream after attention; gives what is added to it.
    pub(super) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let dense = self.dense.forward(g, self.norm.forward(g, x));
        self.after.forward(g, dense)
    }
}
