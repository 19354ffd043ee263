//! Qwen3, dense and MoE: grouped-query attention with normed heads in every layer.
//! Source: the Qwen3 reference model; GGUF names as llama.cpp's converter writes them: qwen3, qwen3moe.

use ggml::{Graph, WeightId};
use memory::{Segment, StateLayout};

use super::{Architecture, Entry, Opened};
use crate::blocks::{AttentionSizes, GatedFfn, Linear, MoeFfn, MoeSizes, PlainAttention, RmsNorm};
use crate::error::LoadError;
use crate::head_file::HeadFile;
use crate::keys::{Keys, WIDTH};
use crate::load::Loader;
use crate::model::{Hparams, NextNHead};
use crate::step::Step;

pub(super) const ENTRY: Entry = Entry { names: &["qwen3", "qwen3moe"], nextn: false, open };

struct Qwen3 {
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

enum Ffn {
    Dense(GatedFfn),
    Moe(Box<MoeFfn>),
}

fn open(
    keys: &Keys<'_, '_>,
    loader: &mut Loader<'_>,
    n_vocab: usize,
    _: Option<&HeadFile<'_, '_>>,
) -> Result<Opened, LoadError> {
    let n_layer = keys.need("block_count", 1..=1024)?;
    let sizes = AttentionSizes::read(keys, true)?;
    let (n_embd, eps) = (sizes.n_embd, sizes.eps);
    let moe = match keys.find("expert_count", 0..=1 << 16)?.unwrap_or(0) {
        0 => None,
        n_expert => {
            let n_used = keys.need("expert_used_count", 1..=n_expert as u32)?;
            let n_ff = keys.find("expert_feed_forward_length", WIDTH)?;
            let n_ff = match n_ff {
                Some(n_ff) => n_ff,
                None => keys.need("feed_forward_length", WIDTH)? / n_used,
            };
            let scale = keys.float("expert_weights_scale", 0.0..=1e4)?.filter(|&s| s > 0.0).unwrap_or(1.0);
            Some(MoeSizes { n_embd, n_expert, n_used, n_ff, n_ff_shared: 0, scale, normalize: true })
        }
    };
    let mut layers = Vec::with_capacity(n_layer);
    for il in 0..n_layer {
        let prefix = format!("blk.{il}.");
        let ffn = match moe {
            Some(moe) => Ffn::Moe(Box::new(MoeFfn::open(loader, &prefix, moe)?)),
            None => {
                let n_ff = keys.need("feed_forward_length", WIDTH)?;
                Ffn::Dense(GatedFfn::open(loader, &prefix, "", n_embd, n_ff)?)
            }
        };
        layers.push(Layer {
            norm: RmsNorm::open(loader, &format!("{prefix}attn_norm.weight"), n_embd, eps)?,
            attention: PlainAttention::open(loader, &prefix, &sizes, true)?,
            ffn_norm: RmsNorm::open(loader, &format!("{prefix}ffn_norm.weight"), n_embd, eps)?,
            ffn,
        });
    }
    let embed = loader.need("token_embd.weight", &[n_embd, n_vocab])?;
    let head = Linear::find(loader, "output", n_embd, n_vocab)?.unwrap_or(Linear::tied(embed));
    let norm = RmsNorm::open(loader, "output_norm.weight", n_embd, eps)?;
    let n_expert_used = moe.map_or(0, |m| m.n_used);
    let n_ctx_train = keys.need("context_length", 1..=1 << 28)?;
    let hparams = Hparams { n_layer, n_embd, n_vocab, n_ctx_train, n_expert_used };
    let arch = Box::new(Qwen3 { sizes, n_expert_used, embed, layers, norm, head });
    Ok(Opened { arch, hparams, nextn: NextNHead::Absent })
}

impl Architecture for Qwen3 {
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
            let y = layer.ffn_norm.forward(g, x);
            let y = match &layer.ffn {
                Ffn::Dense(ffn) => ffn.forward(g, y),
                Ffn::Moe(ffn) => ffn.forward(g, y),
            };
            x = g.add(x, y);
        }
        step.finish(g, self.norm.forward(g, x), &self.head);
    }

    fn max_nodes(&self, segments: &[Segment]) -> usize {
        super::max_nodes(self.layers.len(), self.n_expert_used, segments)
    }
}
