//! The plain decoder that several families share: in each layer attention, then a feed-forward, each on a norm of its own.
//! Owns the graph; what a family's files are called and how their sizes are read is the family's.

use ggml::{Graph, WeightId};
use memory::{Segment, StateLayout};

use crate::arch::{Architecture, Opened, max_nodes};
use crate::blocks::{AttentionSizes, Ffn, Linear, MoeSizes, PlainAttention, RmsNorm};
use crate::error::LoadError;
use crate::keys::Keys;
use crate::load::Loader;
use crate::model::{Hparams, NextNHead};
use crate::step::Step;

/// What a family says of its files.
pub(crate) struct Family {
    pub(crate) n_layer: usize,
    pub(crate) sizes: AttentionSizes,
    /// Query and key heads have norms.
    pub(crate) head_norms: bool,
    /// Width of the dense feed-forward; not used with experts.
    pub(crate) n_ff: usize,
    pub(crate) moe: Option<MoeSizes>,
}

struct Decoder {
    sizes: AttentionSizes,
    n_expert_used: usize,
    embed: WeightId,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
}

struct Layer {
    norm: RmsNorm,
    attention: PlainAttention,
    ffn_norm: RmsNorm,
    ffn: Ffn,
}

/// Binds the tensors of a file with a vocabulary of `n_vocab`.
pub(crate) fn open(
    keys: &Keys<'_, '_>,
    loader: &mut Loader<'_>,
    n_vocab: usize,
    family: Family,
) -> Result<Opened, LoadError> {
    let Family { n_layer, sizes, head_norms, n_ff, moe } = family;
    let (n_embd, eps) = (sizes.n_embd, sizes.eps);
    let layer = |il: usize, loader: &mut Loader<'_>| -> Result<Layer, LoadError> {
        let prefix = format!("blk.{il}.");
        Ok(Layer {
            norm: RmsNorm::open(loader, &format!("{prefix}attn_norm.weight"), n_embd, eps)?,
            attention: PlainAttention::open(loader, &prefix, &sizes, head_norms)?,
            ffn_norm: RmsNorm::open(loader, &format!("{prefix}ffn_norm.weight"), n_embd, eps)?,
            ffn: Ffn::open(loader, &prefix, n_embd, n_ff, moe)?,
        })
    };
    let layers = (0..n_layer).map(|il| layer(il, loader)).collect::<Result<Vec<_>, _>>()?;
    let embed = loader.need("token_embd.weight", &[n_embd, n_vocab])?;
    let head = Linear::find(loader, "output", n_embd, n_vocab)?.unwrap_or(Linear::tied(embed));
    let norm = RmsNorm::open(loader, "output_norm.weight", n_embd, eps)?;
    let n_expert_used = moe.map_or(0, |m| m.n_used);
    let n_ctx_train = keys.need("context_length", 1..=1 << 28)?;
    let hparams = Hparams { n_layer, n_embd, n_vocab, n_ctx_train, n_expert_used, n_head: sizes.n_head };
    let arch = Box::new(Decoder { sizes, n_expert_used, embed, layers, norm, head });
    Ok(Opened { arch, hparams, nextn: NextNHead::Absent })
}

impl Architecture for Decoder {
    fn state(&self) -> StateLayout {
        StateLayout { layers: vec![self.sizes.state(); self.layers.len()] }
    }

    fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>) {
        let mut x = g.get_rows(g.weight(self.embed), step.tokens); // [n_embd, n_tokens]
        for (il, layer) in self.layers.iter().enumerate() {
            g.layer(il);
            let mixed = layer.attention.forward(g, step, il, layer.norm.forward(g, x));
            let rest = |x, mixed| {
                let x = g.add(x, layer.attention.out.forward(g, mixed));
                g.add(x, layer.ffn.forward(g, layer.ffn_norm.forward(g, x)))
            };
            if il + 1 == self.layers.len() {
                return step.end(g, x, |cut| self.norm.forward(g, rest(cut(x), cut(mixed))), &self.head);
            }
            x = rest(x, mixed);
        }
    }

    fn max_nodes(&self, segments: &[Segment]) -> usize {
        max_nodes(self.layers.len(), self.n_expert_used, segments)
    }
}
