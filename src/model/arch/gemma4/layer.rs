//! One layer of Gemma 4 and of its assistant: attention and feed-forward, each between two norms, then the layer's scale.

use ggml::{Graph, Tensor, WeightId};
use memory::Segment;

use super::attention::Attention;
use super::config::GemmaConfig;
use super::feed_forward::FeedForward;
use super::per_layer::PerLayerGate;
use crate::architecture::max_nodes;
use crate::blocks::{RmsNorm, vector};
use crate::error::LoadError;
use crate::step::AttentionInputs;
use crate::tensors::Scope;

/// The weights of a layer.
pub(super) struct Layer {
    norm: RmsNorm,
    attention: Attention,
    attention_norm: RmsNorm,
    ffn: FeedForward,
    per_layer: Option<PerLayerGate>,
    /// Factor on the whole residual stream: `[1]`.
    scale: Option<WeightId>,
}

impl Layer {
    /// Asks for the tensors of block `il` of the target.
    pub(super) fn open(
        t: &mut Scope<'_, '_>,
        c: &GemmaConfig,
        il: usize,
        factors: Option<WeightId>,
    ) -> Result<Self, LoadError> {
        let attention = Attention::open(t, c, il, factors)?;
        Self::with(t, c, il, attention)
    }

    /// Asks for those of block `il` of the assistant, whose attention reads layer `cells` of the target.
    pub(super) fn of_assistant(
        t: &mut Scope<'_, '_>,
        c: &GemmaConfig,
        il: usize,
        cells: usize,
        factors: Option<WeightId>,
    ) -> Result<Self, LoadError> {
        let attention = Attention::of_queries(t, c, il, cells, factors)?;
        Self::with(t, c, il, attention)
    }

    fn with(t: &mut Scope<'_, '_>, c: &GemmaConfig, il: usize, attention: Attention) -> Result<Self, LoadError> {
        Ok(Self {
            norm: RmsNorm::open(t, "attn_norm", c.n_embd, c.eps)?,
            attention,
            attention_norm: RmsNorm::open(t, "post_attention_norm", c.n_embd, c.eps)?,
            ffn: FeedForward::open(t, c, il)?,
            per_layer: c.n_per_layer.map(|n| PerLayerGate::open(t, c, n)).transpose()?,
            scale: t.find("layer_output_scale.weight", &[1])?,
        })
    }

    /// What attention gives for `x: [n_embd, n_tokens]`, before its output matrix, for [`Layer::rest`].
    pub(super) fn attend<'g>(&self, g: &Graph<'g>, inputs: &AttentionInputs<'_, 'g>, x: Tensor<'g>) -> Tensor<'g> {
        self.attention.forward(g, inputs, self.norm.forward(g, x))
    }

    /// What follows attention, token by token: `x: [n_embd, n_tokens]`, the residual stream, `mixed`: what attention gave for
    /// these tokens, `own: [n_per_layer, n_tokens]`; gives the stream after the layer.
    pub(super) fn rest<'g>(
        &self,
        g: &Graph<'g>,
        x: Tensor<'g>,
        mixed: Tensor<'g>,
        own: Option<Tensor<'g>>,
    ) -> Tensor<'g> {
        let x = g.add(self.attention_norm.forward(g, self.attention.out.forward(g, mixed)), x);
        let x = g.add(self.ffn.forward(g, x), x);
        let x = match self.per_layer.as_ref().zip(own) {
            Some((gate, own)) => g.add(gate.forward(g, x, own), x),
            None => x,
        };
        self.scale.map_or(x, |scale| g.mul(x, vector(g, scale)))
    }
}

/// Nodes of so many layers, with room to spare.
pub(super) fn nodes(n_layer: usize, n_expert_used: usize, segments: &[Segment]) -> usize {
    max_nodes(n_layer, n_expert_used, segments) + MORE_NODES * (n_layer + 1)
}

/// Nodes of a layer beside those of a plain one: post-norms, experts beside a dense part, inputs of the layer.
const MORE_NODES: usize = 48;
