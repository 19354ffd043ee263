//! EAGLE-3: a head of one layer that reads the streams of three of the target's layers. Its entries are a token and what it made
//! of the streams of the token before; a draft token's own stream takes the place of those.
//! Source: Li et al. 2025, arXiv 2503.01840; GGUF name: eagle3.

use ggml::{Graph, Tensor, WeightId};
use memory::LayerState;

use crate::blocks::MoeKind;
use crate::blocks::{Attention, AttentionConfig, AttentionKind, DenseKind, Ffn, FfnConfig, Linear, RmsNorm, embedded};
use crate::draft::DraftStep;
use crate::error::LoadError;
use crate::feature_head::{FeatureHead, FeatureHeadEntry, FeatureTarget};
use crate::features::Features;
use crate::keys::{Keys, WIDTH};
use crate::step::AttentionInputs;
use crate::tensors::Tensors;

pub(super) const ENTRY: FeatureHeadEntry = FeatureHeadEntry { name: "eagle3", label: "eagle3.", open };

/// Layers of the target that it reads.
const N_FEATURES: usize = 3;

struct Eagle3 {
    n_embd: usize,
    layers: Vec<usize>,
    /// Before the streams are projected, where the file says so.
    before_fc: Option<RmsNorm>,
    fc: Linear,
    embed: WeightId,
    embed_norm: RmsNorm,
    hidden_norm: RmsNorm,
    /// What is added to is the normed hidden state, not that before the norm.
    adds_to_normed: bool,
    attention: Attention,
    state: LayerState,
    ffn_norm: RmsNorm,
    ffn: Ffn,
    norm: RmsNorm,
    head: Linear,
    words: Option<Vec<u32>>,
}

fn open(keys: &Keys<'_, '_>, t: &mut Tensors<'_>, target: &FeatureTarget) -> Result<Box<dyn FeatureHead>, LoadError> {
    let (n_embd, eps) = (FeatureTarget::width(keys)?, keys.rms_eps()?);
    let n_embd_target = keys.need("target_hidden_size", WIDTH)?;
    let layers = target.layers(keys, n_embd_target)?;
    if layers.len() != N_FEATURES {
        return Err(keys.error("target_layers", format!("{} layers found, {N_FEATURES} expected", layers.len())));
    }
    let n_block = keys.need("block_count", 1..=1)?;
    let kind = AttentionKind { freq_factors: true, ..AttentionKind::default() };
    let config = AttentionConfig::read(keys, n_block, kind)?.remove(0).of_width(2 * n_embd);
    let ffn = FfnConfig::read(keys, n_block, DenseKind::default(), MoeKind::default())?.remove(0);
    let embed = target.embedding(t, n_embd)?;
    let (head, words) = target.output(t, n_embd)?;
    let g = &mut t.globals();
    let n_streams = N_FEATURES * n_embd_target;
    let before_fc = match keys.flag("norm_before_fc")? {
        Some(true) => Some(RmsNorm::open(g, "enc.output_norm", n_streams, eps)?),
        _ => None,
    };
    let fc = Linear::open(g, "fc", n_streams, n_embd)?;
    let norm = RmsNorm::open(g, "output_norm", n_embd, eps)?;
    let freq_factors = config.find_freq_factors(g)?;
    let b = &mut t.block(0);
    let ffn = Ffn::open(b, n_embd, ffn)?.ok_or_else(|| keys.error("feed_forward_length", "is missing or 0"))?;
    Ok(Box::new(Eagle3 {
        n_embd,
        layers,
        before_fc,
        fc,
        embed,
        embed_norm: RmsNorm::open(b, "attn_norm", n_embd, eps)?,
        hidden_norm: RmsNorm::open(b, "attn_norm_2", n_embd, eps)?,
        adds_to_normed: keys.flag("norm_before_residual")? == Some(true),
        attention: Attention::open(b, 0, config, freq_factors)?,
        state: config.state(),
        ffn_norm: RmsNorm::open(b, "ffn_norm", n_embd, eps)?,
        ffn,
        norm,
        head,
        words,
    }))
}

impl Eagle3 {
    /// Entries of tokens i32 `[n]` and hidden states `[n_embd, n]`: the stream, and what attention gives, `[.., n]` each.
    fn attend<'g>(
        &self,
        g: &Graph<'g>,
        inputs: &AttentionInputs<'_, 'g>,
        (tokens, hidden): (Tensor<'g>, Tensor<'g>),
    ) -> (Tensor<'g>, Tensor<'g>) {
        let e = self.embed_norm.forward(g, embedded(g, self.embed, tokens)); // [n_embd, n]
        let h = self.hidden_norm.forward(g, hidden);
        let mixed = self.attention.forward(g, inputs, 0, g.concat(e, h, 0)); // of [2 * n_embd, n]
        (if self.adds_to_normed { h } else { hidden }, mixed)
    }

    /// The stream after the layer.
    fn rest<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, mixed: Tensor<'g>) -> Tensor<'g> {
        let x = g.add(self.attention.out.forward(g, mixed), x);
        g.add(self.ffn.forward(g, self.ffn_norm.forward(g, x)), x)
    }
}

impl Features for Eagle3 {
    fn layers(&self) -> &[usize] {
        &self.layers
    }

    fn n_embd(&self) -> usize {
        self.n_embd
    }

    fn fuse<'g>(&self, g: &Graph<'g>, streams: &[Tensor<'g>]) -> Tensor<'g> {
        let joined = streams.iter().copied().reduce(|all, x| g.concat(all, x, 0)).expect("there are three layers");
        let joined = self.before_fc.as_ref().map_or(joined, |norm| norm.forward(g, joined)); // [3 * n_embd_target, n_tokens]
        self.fc.forward(g, joined)
    }
}

impl FeatureHead for Eagle3 {
    fn states(&self) -> Vec<LayerState> {
        vec![self.state]
    }

    fn output(&self) -> WeightId {
        self.head.weight()
    }

    fn words(&self) -> Option<&[u32]> {
        self.words.as_deref()
    }

    fn draft<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>) {
        let (x, mixed) = self.attend(g, &step.inputs, (step.tokens, step.hidden));
        if step.depth == 0 {
            return;
        }
        let mut x = self.rest(g, step.cut(g, x), step.cut(g, mixed)); // [n_embd, n_seqs]
        for i in 0..step.depth {
            let ids = step.pick(g, i, self.norm.forward(g, x), &self.head);
            step.hand_on(g, i, x);
            if let Some(inputs) = step.chain.get(i) {
                let (stream, mixed) = self.attend(g, inputs, (ids, x));
                x = self.rest(g, stream, mixed);
            }
        }
    }
}
