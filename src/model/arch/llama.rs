//! Llama 2 and 3, dense: grouped-query attention, neighbouring elements turn together, optional frequency factors.
//! Source: Touvron et al. 2023, Grattafiori et al. 2024; GGUF name: llama.

use ggml::{Graph, WeightId};
use memory::{Segment, StateLayout};

use super::{Architecture, Entry, Opened};
use crate::blocks::{AttentionSizes, GatedFfn, Linear, PlainAttention, RmsNorm};
use crate::error::LoadError;
use crate::head_file::HeadFile;
use crate::keys::{Keys, WIDTH};
use crate::load::Loader;
use crate::model::{Hparams, NextNHead};
use crate::step::Step;

pub(super) const ENTRY: Entry = Entry { names: &["llama"], nextn: false, open };

struct Llama {
    sizes: AttentionSizes,
    embed: WeightId,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
}

struct Layer {
    norm: RmsNorm,
    attention: PlainAttention,
    ffn_norm: RmsNorm,
    ffn: GatedFfn,
}

fn open(
    keys: &Keys<'_, '_>,
    loader: &mut Loader<'_>,
    n_vocab: usize,
    _: Option<&HeadFile<'_, '_>>,
) -> Result<Opened, LoadError> {
    if let Some(n) = keys.find("expert_count", 0..=1 << 16)?.filter(|&n| n > 0) {
        return Err(keys.error("expert_count", format!("{n} experts found, only dense llama models are supported")));
    }
    let n_layer = keys.need("block_count", 1..=1024)?;
    let sizes = AttentionSizes::read(keys, false)?;
    let (n_embd, eps) = (sizes.n_embd, sizes.eps);
    let n_ff = keys.need("feed_forward_length", WIDTH)?;
    let mut layers = Vec::with_capacity(n_layer);
    for il in 0..n_layer {
        let prefix = format!("blk.{il}.");
        layers.push(Layer {
            norm: RmsNorm::open(loader, &format!("{prefix}attn_norm.weight"), n_embd, eps)?,
            attention: PlainAttention::open(loader, &prefix, &sizes, false)?,
            ffn_norm: RmsNorm::open(loader, &format!("{prefix}ffn_norm.weight"), n_embd, eps)?,
            ffn: GatedFfn::open(loader, &prefix, "", n_embd, n_ff)?,
        });
    }
    let embed = loader.need("token_embd.weight", &[n_embd, n_vocab])?;
    let head = Linear::find(loader, "output", n_embd, n_vocab)?.unwrap_or(Linear::tied(embed));
    let norm = RmsNorm::open(loader, "output_norm.weight", n_embd, eps)?;
    let n_ctx_train = keys.need("context_length", 1..=1 << 28)?;
    let hparams = Hparams { n_layer, n_embd, n_vocab, n_ctx_train, n_expert_used: 0 };
    Ok(Opened { arch: Box::new(Llama { sizes, embed, layers, norm, head }), hparams, nextn: NextNHead::Absent })
}

impl Architecture for Llama {
    fn state(&self) -> StateLayout {
        StateLayout { layers: vec![self.sizes.state(); self.layers.len()] }
    }

    fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>) {
        let mut x = g.get_rows(g.weight(self.embed), step.tokens); // [n_embd, n_tokens]
        for (il, layer) in self.layers.iter().enumerate() {
            g.layer(il);
            let last = il + 1 == self.layers.len();
            let y = layer.attention.forward(g, step, il, last, layer.norm.forward(g, x));
            x = g.add(if last { step.crop(g, x) } else { x }, y);
            x = g.add(x, layer.ffn.forward(g, layer.ffn_norm.forward(g, x)));
        }
        step.finish(g, self.norm.forward(g, x), &self.head);
    }

    fn max_nodes(&self, segments: &[Segment]) -> usize {
        super::max_nodes(self.layers.len(), 0, segments)
    }
}
