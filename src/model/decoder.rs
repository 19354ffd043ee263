//! The decoder that most families share: blocks of a mixer and a feed-forward, each on a norm of its own, and a NextN head.
//! Owns the order of things; what a family's blocks are is its configuration.

mod mtp;

use ggml::{Graph, Tensor, WeightId};
use memory::{LayerState, Recurrent, Segment, StateLayout};

use self::mtp::{MtpLayer, fits_after, mtp_of_file, mtp_of_model};
use crate::architecture::{Architecture, Hparams, ModelFile, NextNHead, Opened, Tables, max_nodes};
use crate::blocks::{
    Attention, AttentionConfig, DeltaNet, DeltaNetConfig, Ffn, FfnConfig, LatentAttention, LatentConfig, Linear, Mamba,
    MambaConfig, RmsNorm, ShortConv, ShortConvConfig, embedded,
};
use crate::draft::DraftStep;
use crate::error::LoadError;
use crate::head_shape::HeadShape;
use crate::keys::{Keys, WIDTH};
use crate::pictures::PictureKind;
use crate::rank_head::RankHead;
use crate::step::{AttentionInputs, Step};
use crate::tensors::Tensors;

/// What a family says of its files.
pub(crate) struct DecoderConfig {
    n_embd: usize,
    eps: f32,
    /// Blocks from first to last, with those of the NextN head.
    blocks: Vec<BlockConfig>,
    /// Of the blocks, those of the NextN head.
    n_nextn: usize,
    /// Logits are kept below it by a hyperbolic tangent.
    pub(crate) softcap: Option<f32>,
    pub(crate) mtp: MtpKind,
    pub(crate) factors: Factors,
    /// What the final norm is called.
    pub(crate) final_norm: &'static str,
    /// How pictures stand among tokens; `None` where there are none.
    pub(crate) pictures: Option<PictureKind>,
}

/// Factors of a family whose layers have other sizes than their sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factors {
    /// On embeddings of tokens.
    pub(crate) embedding: f32,
    /// On what a mixer and a feed-forward add to the stream.
    pub(crate) residual: f32,
    /// On logits.
    pub(crate) logits: f32,
}

impl Default for Factors {
    fn default() -> Self {
        Self { embedding: 1.0, residual: 1.0, logits: 1.0 }
    }
}

/// `x` times `factor`, without an operation where that is one.
fn times<'g>(g: &Graph<'g>, x: Tensor<'g>, factor: f32) -> Tensor<'g> {
    if factor == 1.0 { x } else { g.scale(x, factor) }
}

/// What the layers of a NextN head take as hidden states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MtpKind {
    /// Those before the final norm, which a layer hands on before its own, too.
    pub(crate) pre_norm: bool,
    /// Of several layers, each takes those of the one before it; else all take the target model's.
    pub(crate) chained: bool,
    /// Epsilon of the layer norm that a layer ends in; `None` where an RMS norm does.
    pub(crate) layer_norm: Option<f32>,
}

impl Default for MtpKind {
    /// As in DeepSeek V3 and Qwen3.5. Source: DeepSeek-AI 2024, 2.2.
    fn default() -> Self {
        Self { pre_norm: false, chained: true, layer_norm: None }
    }
}

/// One block.
#[derive(Clone, Copy)]
pub(crate) struct BlockConfig {
    pub(crate) mixer: MixerConfig,
    pub(crate) norms: NormNames,
    pub(crate) ffn: FfnConfig,
}

/// What mixes tokens in a block.
#[derive(Clone, Copy)]
pub(crate) enum MixerConfig {
    Attention(AttentionConfig),
    DeltaNet(DeltaNetConfig),
    Latent(LatentConfig),
    Mamba(MambaConfig),
    ShortConv(ShortConvConfig),
    /// Nothing: the feed-forward is all there is.
    None,
}

/// What a block's norms are called beside `attn_norm`, the one before the mixer.
#[derive(Clone, Copy)]
pub(crate) struct NormNames {
    /// Before the feed-forward.
    pub(crate) ffn: &'static str,
    /// After the mixer and after the feed-forward, where there are some.
    pub(crate) after: Option<[&'static str; 2]>,
}

impl NormNames {
    /// As in Llama.
    pub(crate) const LLAMA: Self = Self { ffn: "ffn_norm", after: None };
}

impl BlockConfig {
    /// A block of attention.
    pub(crate) fn attention(attention: AttentionConfig, norms: NormNames, ffn: FfnConfig) -> Self {
        Self { mixer: MixerConfig::Attention(attention), norms, ffn }
    }
}

impl DecoderConfig {
    /// With what all families read alike.
    pub(crate) fn read(keys: &Keys<'_, '_>, blocks: Vec<BlockConfig>, n_nextn: usize) -> Result<Self, LoadError> {
        if keys.flag("attention.causal")? == Some(false) {
            return Err(keys.error("attention.causal", "attention to later tokens (an encoder) is not supported"));
        }
        if n_nextn > MAX_MTP_LAYERS {
            let what = format!("{n_nextn} found, at most {MAX_MTP_LAYERS} expected");
            return Err(keys.error("nextn_predict_layers", what));
        }
        let (n_embd, eps, mtp) = (keys.need("embedding_length", WIDTH)?, keys.rms_eps()?, MtpKind::default());
        let factors = Factors::default();
        let (final_norm, softcap, pictures) = ("output_norm", None, None);
        Ok(Self { n_embd, eps, blocks, n_nextn, mtp, factors, final_norm, softcap, pictures })
    }

    /// All blocks.
    pub(crate) fn blocks(&self) -> &[BlockConfig] {
        &self.blocks
    }

    fn n_layer(&self) -> usize {
        self.blocks.len() - self.n_nextn
    }

    /// Experts, and how many of them a token uses; 0 in a dense model.
    fn n_expert(&self) -> (usize, usize) {
        let of = |block: &BlockConfig| block.ffn.moe().map_or((0, 0), |moe| (moe.router.n_expert, moe.router.n_used));
        self.blocks.iter().map(of).max().unwrap_or_default()
    }

    /// What a layer of the NextN head computes.
    fn head_shape(&self) -> Result<HeadShape, String> {
        let block = self.blocks[self.n_layer()..].first().ok_or("it has no NextN head")?;
        let MixerConfig::Attention(attention) = &block.mixer else {
            return Err("its NextN head has no plain attention".into());
        };
        if self.softcap.is_some() || self.factors != Factors::default() {
            return Err("its logits are capped, or factors stand between its layers".into());
        }
        if block.norms.after.is_some() || self.mtp.layer_norm.is_some() {
            return Err("its NextN head has norms after its parts, or a layer norm".into());
        }
        Ok(HeadShape {
            n_embd: self.n_embd,
            eps: self.eps,
            pre_norm: self.mtp.pre_norm,
            chained: self.mtp.chained,
            ffn_norm: block.norms.ffn,
            attention: attention.shape()?,
            ffn: block.ffn.shape()?,
        })
    }

    /// Query heads, where a layer has most.
    fn n_head(&self) -> usize {
        let of = |block: &BlockConfig| match block.mixer {
            MixerConfig::Attention(a) => a.n_head,
            MixerConfig::Latent(a) => a.n_head,
            MixerConfig::DeltaNet(_) | MixerConfig::Mamba(_) | MixerConfig::ShortConv(_) | MixerConfig::None => 0,
        };
        self.blocks.iter().map(of).max().unwrap_or(0)
    }
}

struct Decoder {
    n_expert_used: usize,
    embed: WeightId,
    softcap: Option<f32>,
    layers: Vec<Layer>,
    norm: RmsNorm,
    output: Linear,
    rank: Option<RankHead>,
    /// Those of the NextN head, in the order of the draft tokens.
    mtp: Vec<MtpLayer>,
    mtp_kind: MtpKind,
    factors: Factors,
    pictures: Option<PictureKind>,
}

struct Layer {
    /// Before the mixer; `None` where there is none.
    norm: Option<RmsNorm>,
    mixer: Mixer,
    /// The feed-forward and the norm before it, where there is one.
    ffn: Option<(RmsNorm, Ffn)>,
    /// Of what the mixer gives, and of what the feed-forward gives.
    after: Option<[RmsNorm; 2]>,
    /// Factor on what both add.
    factor: f32,
}

enum Mixer {
    Attention(Box<Attention>, LayerState),
    DeltaNet(Box<DeltaNet>, Recurrent),
    Latent(Box<LatentAttention>, LayerState),
    Mamba(Box<Mamba>, Recurrent),
    ShortConv(Box<ShortConv>, Recurrent),
    None,
}

/// Opens a file of a family whose metadata `config` reads.
pub(crate) fn open(
    file: &mut ModelFile<'_, '_, '_>,
    config: fn(&Keys<'_, '_>) -> Result<DecoderConfig, LoadError>,
) -> Result<Opened, LoadError> {
    let c = config(&file.keys)?;
    let (n_embd, n_vocab, n_layer) = (c.n_embd, file.n_vocab, c.n_layer());
    let t = &mut *file.tensors;
    let layers = (0..n_layer).map(|il| Layer::open(t, il, &c)).collect::<Result<Vec<_>, _>>()?;
    let embed = t.globals().need("token_embd.weight", &[n_embd, n_vocab])?;
    t.globals().refuse("output.bias", "biases are not supported")?;
    t.globals().updatable_rows("token_embd.weight", embed, &[n_embd, n_vocab]);
    let output = Linear::find(&mut t.globals(), "output", n_embd, n_vocab, false)?;
    let output = output.unwrap_or_else(|| {
        t.globals().updatable("output.weight", embed, &[n_embd, n_vocab]);
        Linear::tied(embed)
    });
    let norm = RmsNorm::open(&mut t.globals(), c.final_norm, n_embd, c.eps)?;
    let rank = RankHead::find(&file.keys, t, n_embd)?;
    let (mtp, nextn) = match &file.head_keys {
        Some(keys) => {
            fits_after(keys, n_layer)?;
            (mtp_of_file(t, &c, &config(keys)?, n_vocab, embed)?, NextNHead::Bound)
        }
        None if file.own_head => mtp_of_model(t, &c, n_vocab, embed)?,
        None => (Vec::new(), NextNHead::Absent),
    };
    let n_expert_used = c.n_expert().1;
    let (n_head, head) = (c.n_head(), c.head_shape());
    let hparams = Hparams { n_layer, n_embd, n_vocab, n_ctx_train: 0, n_expert_used, n_head };
    let DecoderConfig { softcap, factors, pictures, mtp: mtp_kind, .. } = c;
    let decoder =
        Decoder { n_expert_used, softcap, embed, layers, norm, output, rank, mtp, mtp_kind, factors, pictures };
    Ok(Opened { arch: Box::new(decoder), hparams, nextn, head })
}

impl Layer {
    fn open(t: &mut Tensors<'_>, il: usize, c: &DecoderConfig) -> Result<Self, LoadError> {
        let (n_embd, eps, block) = (c.n_embd, c.eps, c.blocks[il]);
        let mixer = match block.mixer {
            MixerConfig::Attention(a) => {
                let freq_factors = a.find_freq_factors(&mut t.globals())?;
                let attention = Attention::open(&mut t.block(il), il, a, freq_factors)?;
                Mixer::Attention(Box::new(attention), a.state())
            }
            MixerConfig::DeltaNet(d) => Mixer::DeltaNet(Box::new(DeltaNet::open(&mut t.block(il), d)?), d.state()),
            MixerConfig::Latent(a) => Mixer::Latent(Box::new(LatentAttention::open(&mut t.block(il), a)?), a.state()),
            MixerConfig::Mamba(m) => Mixer::Mamba(Box::new(Mamba::open(&mut t.block(il), m)?), m.state()),
            MixerConfig::ShortConv(s) => Mixer::ShortConv(Box::new(ShortConv::open(&mut t.block(il), s)?), s.state()),
            MixerConfig::None => Mixer::None,
        };
        let t = &mut t.block(il);
        let after = match block.norms.after {
            Some([mixer, ffn]) => Some([RmsNorm::open(t, mixer, n_embd, eps)?, RmsNorm::open(t, ffn, n_embd, eps)?]),
            None => None,
        };
        let ffn = Ffn::open(t, n_embd, block.ffn)?;
        let norm = match mixer {
            Mixer::None => None,
            _ => Some(RmsNorm::open(t, "attn_norm", n_embd, eps)?),
        };
        let ffn = match ffn {
            Some(ffn) => Some((RmsNorm::open(t, block.norms.ffn, n_embd, eps)?, ffn)),
            None => None,
        };
        Ok(Self { norm, mixer, ffn, after, factor: c.factors.residual })
    }

    fn state(&self) -> LayerState {
        match &self.mixer {
            Mixer::Attention(_, state) | Mixer::Latent(_, state) => *state,
            Mixer::DeltaNet(_, state) | Mixer::Mamba(_, state) | Mixer::ShortConv(_, state) => {
                LayerState::Recurrent(*state)
            }
            Mixer::None => LayerState::None,
        }
    }

    /// What the mixer gives of the residual stream `x: [n_embd, n_tokens]`, for [`Layer::rest`].
    fn mix<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        match &self.mixer {
            Mixer::DeltaNet(net, _) => net.forward(g, step, il, self.normed(g, x)),
            Mixer::Mamba(net, _) => net.forward(g, step, il, self.normed(g, x)),
            Mixer::ShortConv(net, _) => net.forward(g, step, il, self.normed(g, x)),
            Mixer::Attention(..) | Mixer::Latent(..) | Mixer::None => self.attend(g, &step.inputs, il, x),
        }
    }

    /// As [`Layer::mix`] of a layer without recurrent state.
    fn attend<'g>(&self, g: &Graph<'g>, inputs: &AttentionInputs<'_, 'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        match &self.mixer {
            Mixer::Attention(a, _) => a.forward(g, inputs, il, self.normed(g, x)),
            Mixer::Latent(a, _) => a.forward(g, inputs, il, self.normed(g, x)),
            Mixer::DeltaNet(..) | Mixer::Mamba(..) | Mixer::ShortConv(..) | Mixer::None => x,
        }
    }

    fn normed<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        self.norm.as_ref().map_or(x, |norm| norm.forward(g, x))
    }

    /// What follows the mixer, token by token. `x: [n_embd, n_tokens]`, the residual stream, `mixed`: what the mixer gave for
    /// these tokens; gives the stream after the layer.
    fn rest<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, mixed: Tensor<'g>) -> Tensor<'g> {
        let after = |i: usize, y: Tensor<'g>| {
            let y = self.after.as_ref().map_or(y, |norms| norms[i].forward(g, y));
            times(g, y, self.factor)
        };
        let mixed = match &self.mixer {
            Mixer::Attention(a, _) => Some(a.out.forward(g, mixed)),
            Mixer::Latent(a, _) => Some(a.out.forward(g, mixed)),
            Mixer::DeltaNet(..) | Mixer::Mamba(..) | Mixer::ShortConv(..) => Some(mixed),
            Mixer::None => None,
        };
        let x = mixed.map_or(x, |mixed| g.add(x, after(0, mixed)));
        // The stream comes second: a sum that ends the block and this one are one launch on CUDA.
        self.ffn.as_ref().map_or(x, |(norm, ffn)| g.add(after(1, ffn.forward(g, norm.forward(g, x))), x))
    }
}

impl Decoder {
    /// `h: [n_embd, n_out]` gives `[n_vocab, n_out]`.
    fn logits<'g>(&self, g: &Graph<'g>, h: Tensor<'g>) -> Tensor<'g> {
        let logits = times(g, self.output.forward(g, h), self.factors.logits);
        self.softcap.map_or(logits, |cap| g.scale(g.tanh(g.scale(logits, 1.0 / cap)), cap))
    }

    /// The stream of an MTP layer after its norm.
    fn normed<'g>(&self, g: &Graph<'g>, mtp: &MtpLayer, x: Tensor<'g>) -> Tensor<'g> {
        mtp.norm.as_ref().map_or_else(|| self.norm.forward(g, x), |norm| norm.forward(g, x))
    }

    /// The output matrix that an MTP layer's draft tokens come from.
    fn head_of<'m>(&'m self, mtp: &'m MtpLayer) -> &'m Linear {
        mtp.head.as_ref().unwrap_or(&self.output)
    }

    /// What the next entry takes as its hidden state: of a stream, and of the same after the norm.
    fn handed<'g>(&self, stream: Tensor<'g>, normed: impl FnOnce() -> Tensor<'g>) -> Tensor<'g> {
        if self.mtp_kind.pre_norm { stream } else { normed() }
    }

    /// A chain of draft tokens by one layer.
    fn draft_chain<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>, mtp: &MtpLayer) {
        // Into the head's KV cache; where nothing is drafted, nothing else is needed.
        let tokens = step.embedded(g, 0, mtp.embed, &[]);
        let (x, mixed) = mtp.attend(g, &step.inputs, 0, (tokens, step.hidden));
        if step.depth == 0 {
            return;
        }
        // Only the last entry of a sequence gives draft tokens.
        let mut x = mtp.layer.rest(g, step.cut(g, x), step.cut(g, mixed)); // [n_embd, n_seqs]
        for i in 0..step.depth {
            let h = self.normed(g, mtp, x);
            let ids = step.pick(g, i, h, self.head_of(mtp));
            let hidden = self.handed(x, || h);
            step.hand_on(g, i, hidden);
            if let Some(inputs) = step.chain.get(i) {
                let (stream, mixed) = mtp.attend(g, inputs, 0, (embedded(g, mtp.embed, ids), hidden));
                x = mtp.layer.rest(g, stream, mixed);
            }
        }
    }

    /// A draft token by each layer, on the tokens that those before it drafted. Layers beyond the draft only fill their KV
    /// caches.
    fn draft_by_layers<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>) {
        let mut hidden = step.hidden; // [n_embd, n_entries]
        let mut drafted = Vec::new();
        for (k, mtp) in self.mtp.iter().take(step.n_layers).enumerate() {
            let tokens = step.embedded(g, k, mtp.embed, &drafted);
            let (x, mixed) = mtp.attend(g, &step.inputs, k, (tokens, hidden));
            let feeds = self.mtp_kind.chained && k + 1 < step.n_layers;
            let stream = feeds.then(|| mtp.layer.rest(g, x, mixed));
            if k < step.depth {
                let alone = || mtp.layer.rest(g, step.cut(g, x), step.cut(g, mixed));
                let last = stream.map_or_else(alone, |stream| step.cut(g, stream)); // [n_embd, n_seqs]
                drafted.push(step.pick(g, k, self.normed(g, mtp, last), self.head_of(mtp)));
            }
            if let Some(stream) = stream {
                hidden = self.handed(stream, || self.normed(g, mtp, stream));
            }
        }
    }
}

/// Layers of a NextN head at most: no draft is longer.
const MAX_MTP_LAYERS: usize = 16;

impl Architecture for Decoder {
    fn state(&self) -> StateLayout {
        StateLayout { layers: self.layers.iter().map(Layer::state).collect() }
    }

    fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>) {
        let x = times(g, embedded(g, self.embed, step.tokens), self.factors.embedding);
        let mut x = step.placed(g, x); // [n_embd, n_tokens]
        for (il, layer) in self.layers.iter().enumerate() {
            g.layer(il);
            step.tap(il, x);
            let mixed = layer.mix(g, step, il, x);
            if il + 1 == self.layers.len() {
                let end = (|h| self.logits(g, h), self.mtp_takes_stream());
                return step.end(g, x, |cut| layer.rest(g, cut(x), cut(mixed)), &self.norm, end);
            }
            x = layer.rest(g, x, mixed);
        }
    }

    fn max_nodes(&self, segments: &[Segment]) -> usize {
        max_nodes(self.layers.len(), self.n_expert_used, segments)
    }

    fn rank_head(&self) -> Option<&RankHead> {
        self.rank.as_ref()
    }

    fn tables(&self) -> Option<Tables> {
        Some(Tables { embed: self.embed, output: self.output })
    }

    fn mtp_states(&self) -> Vec<LayerState> {
        self.mtp.iter().map(|mtp| mtp.layer.state()).collect()
    }

    fn draft_heads(&self) -> Vec<WeightId> {
        self.mtp.iter().map(|mtp| self.head_of(mtp).weight()).collect()
    }

    fn pictures(&self) -> Option<PictureKind> {
        self.pictures
    }

    fn rotates_as_long(&self, n_ctx: usize) -> bool {
        let is_long = |layer: &Layer| matches!(&layer.mixer, Mixer::Attention(a, _) if a.is_long(n_ctx));
        self.layers.iter().any(is_long)
    }

    fn mtp_takes_stream(&self) -> bool {
        self.mtp_kind.pre_norm && !self.mtp.is_empty()
    }

    fn draft<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>) {
        match &self.mtp[..] {
            [] => {}
            [mtp] => self.draft_chain(g, step, mtp),
            _ => self.draft_by_layers(g, step),
        }
    }
}
