//! Gemma 4's feed-forward: dense, or a dense part and experts side by side, each between norms of its own. The router reads
//! the residual stream, not the experts' input.

use ggml::{Graph, Tensor};

use super::config::GemmaConfig;
use crate::blocks::{Activation, GatedFfn, MoeFfn, RmsNorm};
use crate::error::LoadError;
use crate::tensors::Scope;

/// The weights of a layer's feed-forward.
pub(super) struct FeedForward {
    norm: RmsNorm,
    dense: GatedFfn,
    experts: Option<Beside>,
    after: RmsNorm,
}

/// Experts beside the dense part.
struct Beside {
    n_embd: usize,
    eps: f32,
    dense_after: RmsNorm,
    norm: RmsNorm,
    experts: MoeFfn,
    after: RmsNorm,
}

impl FeedForward {
    /// Asks for the tensors of block `il`.
    pub(super) fn open(t: &mut Scope<'_, '_>, c: &GemmaConfig, il: usize) -> Result<Self, LoadError> {
        let norm = |t: &mut Scope<'_, '_>, name: &str| RmsNorm::open(t, name, c.n_embd, c.eps);
        let experts = match c.moe {
            Some(moe) => Some(Beside {
                n_embd: c.n_embd,
                eps: c.eps,
                dense_after: norm(t, "post_ffw_norm_1")?,
                norm: norm(t, "pre_ffw_norm_2")?,
                experts: {
                    // Read beside the matrices, as another format's scales would be.
                    t.need("ffn_down_exps.scale", &[moe.router.n_expert])?;
                    MoeFfn::open(t, c.n_embd, moe)?
                },
                after: norm(t, "post_ffw_norm_2")?,
            }),
            None => None,
        };
        Ok(Self {
            norm: norm(t, "ffn_norm")?,
            dense: GatedFfn::open(t, "", c.n_embd, c.layers[il].n_ff, false, false)?.with(Activation::Gelu),
            experts,
            after: norm(t, "post_ffw_norm")?,
        })
    }

    /// `x: [n_embd, n_tokens]`, the residual stream after attention; gives what is added to it.
    pub(super) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let dense = self.dense.forward(g, self.norm.forward(g, x));
        let both = match &self.experts {
            Some(beside) => g.add(beside.dense_after.forward(g, dense), beside.forward(g, x)),
            None => dense,
        };
        self.after.forward(g, both)
    }
}

impl Beside {
    fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let seen = g.scale(g.rms_norm(x, self.eps), 1.0 / (self.n_embd as f32).sqrt());
        let experts = self.experts.forward_by(g, self.norm.forward(g, x), seen);
        self.after.forward(g, experts)
    }
}
