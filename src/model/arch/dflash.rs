//! DFlash: a head that drafts a block at once. Its layers keep keys and values of what it made of the streams of the target's
//! layers, one cell for each token; the rows of the block, the last token and masks in the places of those that follow, see
//! these and each other.
//! Source: the DFlash reference model of z-lab; GGUF name: dflash.

use ggml::{Graph, Tensor, WeightId};
use memory::LayerState;

use crate::blocks::{
    Attention, AttentionConfig, AttentionKind, Ffn, FfnConfig, Linear, RmsNorm, SlidingKind, embedded,
};
use crate::draft::{DraftBlock, DraftStep};
use crate::error::LoadError;
use crate::feature_head::{FeatureHead, FeatureHeadEntry, FeatureTarget};
use crate::features::Features;
use crate::keys::{Keys, WIDTH};
use crate::step::AttentionInputs;
use crate::tensors::Tensors;

pub(super) const ENTRY: FeatureHeadEntry = FeatureHeadEntry { name: "dflash", label: "dflash.", open };

struct Dflash {
    n_embd: usize,
    features: Vec<usize>,
    fc: Linear,
    hidden_norm: RmsNorm,
    embed: WeightId,
    /// On embeddings of tokens.
    embed_scale: f32,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    words: Option<Vec<u32>>,
    block: DraftBlock,
}

struct Layer {
    norm: RmsNorm,
    attention: Attention,
    state: LayerState,
    ffn_norm: RmsNorm,
    ffn: Ffn,
    /// Of what attention and the feed-forward give, where the file has them.
    after: [Option<RmsNorm>; 2],
}

/// Kinds of DFlash files that draft otherwise, by a tensor or key that they have.
const OTHER_KINDS: [(&str, &str); 3] = [
    ("markov_w1.weight", "a DSpark head (it has markov_w1.weight)"),
    ("selector_hidden.weight", "a DFlash 2 head (it has selector_hidden.weight)"),
    ("output_hc_fn.weight", "a DSpark head of DeepSeek V4 (it has output_hc_fn.weight)"),
];

fn open(keys: &Keys<'_, '_>, t: &mut Tensors<'_>, target: &FeatureTarget) -> Result<Box<dyn FeatureHead>, LoadError> {
    if let Some((tensor, what)) = OTHER_KINDS.iter().find(|(tensor, _)| t.has(tensor)) {
        let what = format!("{what} is not read, a plain DFlash head expected");
        return Err(LoadError::Tensor { name: (*tensor).to_owned(), what });
    }
    if keys.flag("attention.causal")? == Some(true) {
        return Err(keys.error("attention.causal", "a block whose rows do not see later ones is not supported"));
    }
    let (n_embd, eps, n_block) = (FeatureTarget::width(keys)?, keys.rms_eps()?, keys.n_block()?);
    // The target's width is told by no key: streams are as wide as the head.
    let features = target.layers(keys, n_embd)?;
    let kind = AttentionKind {
        neox: true,
        qk_norm: true,
        freq_factors: true,
        wide_factors: true,
        sinks_if_there: true,
        ..AttentionKind::default()
    };
    let sliding = SlidingKind { kind, base: None, scales: true };
    let attention = AttentionConfig::read_sliding(keys, n_block, kind, sliding, |_| false)?;
    let value_scale = keys.float("attention.value_scale", 0.0..=1e4)?.filter(|&scale| scale > 0.0);
    let n_ff = keys.need("feed_forward_length", WIDTH)?;
    let ffn = match keys.text("hidden_activation")? {
        None | Some("silu") => FfnConfig::Dense { n_ff, fused: false, bias: false },
        Some("gelu" | "gelu_pytorch_tanh") => FfnConfig::Geglu { n_ff },
        Some(other) => return Err(keys.error("hidden_activation", format!("`{other}` found, silu or gelu expected"))),
    };
    let embed_scale = keys.float("embedding_scale", 0.0..=1e6)?.filter(|&scale| scale > 0.0);
    let block = DraftBlock {
        n_rows: keys.find("block_size", 2..=MAX_BLOCK)?.unwrap_or(DEFAULT_BLOCK),
        mask: keys.mask_token(target.n_vocab)?,
    };
    let embed = target.embedding(t, n_embd)?;
    let (head, words) = target.output(t, n_embd)?;
    let g = &mut t.globals();
    let fc = Linear::open(g, "fc", features.len() * n_embd, n_embd)?;
    let hidden_norm = RmsNorm::open(g, "enc.output_norm", n_embd, eps)?;
    let norm = RmsNorm::open(g, "output_norm", n_embd, eps)?;
    let layers = attention.into_iter().enumerate();
    let layers =
        layers.map(|(il, config)| Layer::open(t, il, config.with_value_scale(value_scale), (n_embd, eps, ffn)));
    Ok(Box::new(Dflash {
        n_embd,
        features,
        fc,
        hidden_norm,
        embed,
        embed_scale: embed_scale.unwrap_or(1.0),
        layers: layers.collect::<Result<_, _>>()?,
        norm,
        head,
        words,
        block,
    }))
}

/// Rows of a block at most, and where the file does not say.
const MAX_BLOCK: u32 = 256;
const DEFAULT_BLOCK: usize = 16;

impl Layer {
    fn open(
        t: &mut Tensors<'_>,
        il: usize,
        config: AttentionConfig,
        (n_embd, eps, ffn): (usize, f32, FfnConfig),
    ) -> Result<Self, LoadError> {
        let factors = config.find_freq_factors(&mut t.globals())?;
        let t = &mut t.block(il);
        t.refuse("layer_output_scale.weight", "a factor on a layer's output is not supported in a head")?;
        let ffn = Ffn::open(t, n_embd, ffn)?;
        Ok(Self {
            norm: RmsNorm::open(t, "attn_norm", n_embd, eps)?,
            attention: Attention::open(t, il, config, factors)?,
            state: config.state(),
            ffn_norm: RmsNorm::open(t, "ffn_norm", n_embd, eps)?,
            ffn: ffn.expect("it is dense"),
            after: [
                RmsNorm::find(t, "post_attention_norm", n_embd, eps)?,
                RmsNorm::find(t, "post_ffw_norm", n_embd, eps)?,
            ],
        })
    }

    /// `x: [n_embd, n]`, the rows of blocks, before and after the layer.
    fn forward<'g>(&self, g: &Graph<'g>, inputs: &AttentionInputs<'_, 'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        let after = |i: usize, y: Tensor<'g>| self.after[i].as_ref().map_or(y, |norm| norm.forward(g, y));
        let mixed = self.attention.forward(g, inputs, il, self.norm.forward(g, x));
        let x = g.add(after(0, self.attention.out.forward(g, mixed)), x);
        g.add(after(1, self.ffn.forward(g, self.ffn_norm.forward(g, x))), x)
    }
}

impl Features for Dflash {
    fn layers(&self) -> &[usize] {
        &self.features
    }

    fn n_embd(&self) -> usize {
        self.n_embd
    }

    fn fuse<'g>(&self, g: &Graph<'g>, streams: &[Tensor<'g>]) -> Tensor<'g> {
        let joined = streams.iter().copied().reduce(|all, x| g.concat(all, x, 0)).expect("there is a layer");
        self.hidden_norm.forward(g, self.fc.forward(g, joined)) // of [n_features * n_embd, n_tokens]
    }
}

impl FeatureHead for Dflash {
    fn states(&self) -> Vec<LayerState> {
        self.layers.iter().map(|layer| layer.state).collect()
    }

    fn output(&self) -> WeightId {
        self.head.weight()
    }

    fn words(&self) -> Option<&[u32]> {
        self.words.as_deref()
    }

    fn block(&self) -> Option<DraftBlock> {
        Some(self.block)
    }

    fn draft<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>) {
        for (il, layer) in self.layers.iter().enumerate() {
            layer.attention.fill(g, &step.inputs, il, step.hidden);
        }
        let (Some(tokens), Some(inputs)) = (step.block, step.chain.first()) else { return };
        let mut x = embedded(g, self.embed, tokens); // [n_embd, n_rows * n_seqs]
        if self.embed_scale != 1.0 {
            x = g.scale(x, self.embed_scale);
        }
        for (il, layer) in self.layers.iter().enumerate() {
            x = layer.forward(g, inputs, il, x);
        }
        // The rows of each token to come, of all sequences: [n_embd, n_seqs, depth].
        let (depth, n_embd) = (step.depth as i64, self.n_embd as i64);
        let (n_seqs, nb) = (x.ne()[1] / (depth + 1), x.nb()[1]);
        let rows = [nb, nb * (depth as usize + 1), nb * (depth as usize + 1) * n_seqs as usize];
        let x = g.view(x, [n_embd, depth, n_seqs, 1], rows, nb);
        let x = g.reshape(g.cont(g.permute(x, [0, 2, 1, 3])), [n_embd, n_seqs * depth]);
        let logits = step.logits(g, self.norm.forward(g, x), &self.head); // [n_words, n_seqs * depth]
        let ([n_words, ..], nb) = (logits.ne(), logits.nb());
        for i in 0..step.depth {
            let ne = [n_words, n_seqs, 1, 1];
            let at = g.view(
                logits,
                ne,
                [nb[1], nb[1] * n_seqs as usize, nb[1] * n_seqs as usize],
                i * nb[1] * n_seqs as usize,
            );
            step.choose(g, i, at);
        }
    }
}
