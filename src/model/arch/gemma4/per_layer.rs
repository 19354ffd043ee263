//! What each token brings for each layer beside its embedding: a row of a table, and a projection of the embedding.

use ggml::{Graph, Tensor, WeightId};

use super::config::GemmaConfig;
use crate::blocks::{Activation, Linear, RmsNorm, embedded};
use crate::error::LoadError;
use crate::tensors::Scope;

/// The weights that make the inputs of all layers.
pub(super) struct PerLayerInputs {
    /// Numbers for one layer.
    n: usize,
    n_layer: usize,
    n_embd: usize,
    table: WeightId,
    project: Linear,
    norm: RmsNorm,
}

/// The inputs of all layers: `[n_per_layer * n_layer, n_tokens]`.
pub(super) struct Inputs<'g> {
    all: Tensor<'g>,
    n: usize,
}

impl PerLayerInputs {
    /// Asks for the tensors outside of blocks.
    pub(super) fn open(t: &mut Scope<'_, '_>, c: &GemmaConfig, n: usize, n_vocab: usize) -> Result<Self, LoadError> {
        let (n_layer, n_embd) = (c.layers.len(), c.n_embd);
        let (name, ne) = ("per_layer_token_embd.weight", [n * n_layer, n_vocab]);
        let table = t.need(name, &ne)?;
        t.updatable_rows(name, table, &ne);
        let project = Linear::open(t, "per_layer_model_proj", n_embd, n * n_layer)?;
        Ok(Self { n, n_layer, n_embd, table, project, norm: RmsNorm::open(t, "per_layer_proj_norm", n, c.eps)? })
    }

    /// `x: [n_embd, n_tokens]`, the scaled embeddings of `tokens: [n_tokens]`.
    pub(super) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, tokens: Tensor<'g>) -> Inputs<'g> {
        let (n, n_layer, n_tokens) = (self.n as i64, self.n_layer as i64, tokens.ne()[0]);
        let projected = g.scale(self.project.forward(g, x), 1.0 / (self.n_embd as f32).sqrt());
        let projected = g.reshape(projected, [n, n_layer, n_tokens]); // was [n * n_layer, n_tokens]
        let projected = self.norm.forward(g, projected);
        let rows = g.scale(embedded(g, self.table, tokens), (self.n as f32).sqrt()); // [n * n_layer, n_tokens]
        let sum = g.add(g.reshape(projected, [n * n_layer, n_tokens]), rows); // was [n, n_layer, n_tokens]
        Inputs { all: g.scale(sum, std::f32::consts::FRAC_1_SQRT_2), n: self.n }
    }
}

impl<'g> Inputs<'g> {
    /// Those of layer `il`: `[n_per_layer, n_tokens]`, a view.
    pub(super) fn of(&self, g: &Graph<'g>, il: usize) -> Tensor<'g> {
        let ([_, n_tokens, ..], nb) = (self.all.ne(), self.all.nb());
        let strides = [nb[1], nb[1] * n_tokens as usize, nb[1] * n_tokens as usize];
        g.view(self.all, [self.n as i64, n_tokens, 1, 1], strides, il * self.n * nb[0])
    }
}

/// What a layer makes of its inputs.
pub(super) struct PerLayerGate {
    gate: Linear,
    project: Linear,
    norm: RmsNorm,
}

impl PerLayerGate {
    /// Asks for the tensors of a block.
    pub(super) fn open(t: &mut Scope<'_, '_>, c: &GemmaConfig, n: usize) -> Result<Self, LoadError> {
        Ok(Self {
            gate: Linear::open(t, "inp_gate", c.n_embd, n)?,
            project: Linear::open(t, "proj", n, c.n_embd)?,
            norm: RmsNorm::open(t, "post_norm", c.n_embd, c.eps)?,
        })
    }

    /// `x: [n_embd, n_tokens]`, the residual stream, `inputs: [n_per_layer, n_tokens]`; gives what is added to the stream.
    pub(super) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, inputs: Tensor<'g>) -> Tensor<'g> {
        let gated = Activation::Gelu.gated(g, self.gate.forward(g, x), inputs); // [n_per_layer, n_tokens]
        self.norm.forward(g, self.project.forward(g, gated))
    }
}
