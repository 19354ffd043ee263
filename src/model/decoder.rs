//! The decoder that most families share: blocks of a mixer and a feed-forward, each on a norm of its own, and a NextN head.
//! Owns the order of things; what a family's blocks are is its configuration.

use ggml::{Graph, Tensor, WeightId};
use memory::{LayerState, Recurrent, Segment, StateLayout};

use crate::architecture::{Architecture, Hparams, ModelFile, NextNHead, Opened, max_nodes};
use crate::blocks::{Attention, AttentionConfig, DeltaNet, DeltaNetConfig, Ffn, FfnConfig, Linear, RmsNorm, embedded};
use crate::draft::DraftStep;
use crate::error::LoadError;
use crate::head_file::refused;
use crate::keys::{Keys, WIDTH};
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
    /// Factor on the embeddings of tokens.
    embed_scale: Option<f32>,
    /// Logits are kept below it by a hyperbolic tangent.
    softcap: Option<f32>,
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
        let (n_embd, eps) = (keys.need("embedding_length", WIDTH)?, keys.rms_eps()?);
        Ok(Self { n_embd, eps, blocks, n_nextn, embed_scale: None, softcap: None })
    }

    /// The same with a factor on the embeddings of tokens.
    pub(crate) fn with_scaled_embeddings(self, scale: f32) -> Self {
        Self { embed_scale: Some(scale), ..self }
    }

    /// The same with logits that a hyperbolic tangent keeps below `cap`, where there is one.
    pub(crate) fn with_capped_logits(self, cap: Option<f32>) -> Self {
        Self { softcap: cap, ..self }
    }

    fn n_layer(&self) -> usize {
        self.blocks.len() - self.n_nextn
    }

    /// Experts, and how many of them a token uses; 0 in a dense model.
    fn n_expert(&self) -> (usize, usize) {
        let of = |block: &BlockConfig| match block.ffn {
            FfnConfig::Moe(moe) => (moe.router.n_expert, moe.router.n_used),
            FfnConfig::Dense { .. } | FfnConfig::Geglu { .. } => (0, 0),
        };
        self.blocks.iter().map(of).max().unwrap_or_default()
    }

    /// Query heads, where a layer has most.
    fn n_head(&self) -> usize {
        let of = |block: &BlockConfig| match block.mixer {
            MixerConfig::Attention(a) => a.n_head,
            MixerConfig::DeltaNet(_) => 0,
        };
        self.blocks.iter().map(of).max().unwrap_or(0)
    }
}

struct Decoder {
    n_expert_used: usize,
    embed: WeightId,
    embed_scale: Option<f32>,
    softcap: Option<f32>,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    rank: Option<RankHead>,
    mtp: Option<MtpLayer>,
}

struct Layer {
    norm: RmsNorm,
    mixer: Mixer,
    ffn_norm: RmsNorm,
    ffn: Ffn,
    /// Of what the mixer gives, and of what the feed-forward gives.
    after: Option<[RmsNorm; 2]>,
}

enum Mixer {
    Attention(Box<Attention>, LayerState),
    DeltaNet(Box<DeltaNet>, Recurrent),
}

/// The NextN head: one layer of attention on the embedding of a token and the hidden state before it.
struct MtpLayer {
    embed: WeightId,
    embed_norm: RmsNorm,
    hidden_norm: RmsNorm,
    project: Linear,
    layer: Layer,
    /// The target model's final norm if absent.
    norm: Option<RmsNorm>,
    /// The target model's output matrix if absent.
    head: Option<Linear>,
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
    let head = Linear::find(&mut t.globals(), "output", n_embd, n_vocab, false)?;
    let head = head.unwrap_or_else(|| {
        t.globals().updatable("output.weight", embed, &[n_embd, n_vocab]);
        Linear::tied(embed)
    });
    let norm = RmsNorm::open(&mut t.globals(), "output_norm", n_embd, c.eps)?;
    let rank = RankHead::find(&file.keys, t, n_embd)?;
    let (mtp, nextn) = match &file.head_keys {
        Some(keys) => {
            fits_after(keys, n_layer)?;
            (Some(mtp_of_file(t, &c, &config(keys)?, n_vocab, embed)?), NextNHead::Bound)
        }
        None => mtp_of_model(&file.keys, t, &c, n_vocab, embed)?,
    };
    let n_expert_used = c.n_expert().1;
    let n_head = c.n_head();
    let hparams = Hparams { n_layer, n_embd, n_vocab, n_ctx_train: 0, n_expert_used, n_head };
    let (embed_scale, softcap) = (c.embed_scale, c.softcap);
    let decoder = Decoder { n_expert_used, embed, embed_scale, softcap, layers, norm, head, rank, mtp };
    Ok(Opened { arch: Box::new(decoder), hparams, nextn })
}

/// The NextN head of the model's own file.
fn mtp_of_model(
    keys: &Keys<'_, '_>,
    t: &mut Tensors<'_>,
    c: &DecoderConfig,
    n_vocab: usize,
    embed: WeightId,
) -> Result<(Option<MtpLayer>, NextNHead), LoadError> {
    if c.n_nextn > 1 && matches!(t, Tensors::Bind { .. }) {
        return Err(keys.error("nextn_predict_layers", format!("{} found, 0 or 1 expected", c.n_nextn)));
    }
    let mut found = (None, NextNHead::Absent);
    for il in c.n_layer()..c.blocks.len() {
        found = match MtpLayer::open(t, il, c, n_vocab, embed)? {
            Ok(mtp) => (Some(mtp), NextNHead::Bound),
            Err(missing) => (None, NextNHead::Missing(missing)),
        };
    }
    Ok(found)
}

/// Whether a file has one NextN head, for a model of `n_layer` layers. Looked at before its lists of layers are.
fn fits_after(keys: &Keys<'_, '_>, n_layer: usize) -> Result<(), LoadError> {
    let (n_block, n_nextn) = (keys.n_block()?, keys.n_nextn()?);
    if n_nextn != 1 {
        let name = keys.full("nextn_predict_layers");
        return Err(refused(format!("its {name} is {n_nextn}, 1 expected: it holds no NextN head, or several")));
    }
    if n_block - n_nextn != n_layer {
        return Err(refused(format!("layers before the head: {} there, {n_layer} in the model", n_block - n_nextn)));
    }
    Ok(())
}

/// The NextN head of another file. Embedding, final norm and output matrix are the model's own unless the head brings some
/// of its own kind: copies of the model's in that file are left alone.
fn mtp_of_file(
    t: &mut Tensors<'_>,
    model: &DecoderConfig,
    own: &DecoderConfig,
    n_vocab: usize,
    embed: WeightId,
) -> Result<MtpLayer, LoadError> {
    let pairs = [("embedding_length", own.n_embd, model.n_embd), ("experts", own.n_expert().0, model.n_expert().0)];
    if let Some((what, own, wanted)) = pairs.into_iter().find(|(_, own, wanted)| own != wanted) {
        return Err(refused(format!("{what}: {own} there, {wanted} in the model")));
    }
    let mtp = t.in_head_file(|t| {
        if t.has("d2t") {
            let what = "its head is cut to a part of the vocabulary (tensor d2t): take the whole head, drafts use a part of it by themselves";
            return Err(refused(what));
        }
        MtpLayer::open(t, own.n_layer(), own, n_vocab, embed)
    })?;
    mtp.map_err(|missing| refused(format!("it lacks {}", missing.join(", "))))
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
        };
        let t = &mut t.block(il);
        let after = match block.norms.after {
            Some([mixer, ffn]) => Some([RmsNorm::open(t, mixer, n_embd, eps)?, RmsNorm::open(t, ffn, n_embd, eps)?]),
            None => None,
        };
        Ok(Self {
            ffn: Ffn::open(t, n_embd, block.ffn)?,
            norm: RmsNorm::open(t, "attn_norm", n_embd, eps)?,
            mixer,
            ffn_norm: RmsNorm::open(t, block.norms.ffn, n_embd, eps)?,
            after,
        })
    }

    fn state(&self) -> LayerState {
        match &self.mixer {
            Mixer::Attention(_, state) => *state,
            Mixer::DeltaNet(_, state) => LayerState::Recurrent(*state),
        }
    }

    /// What follows the mixer, token by token. `x: [n_embd, n_tokens]`, the residual stream, `mixed`: what the mixer gave for
    /// these tokens; gives the stream after the layer.
    fn rest<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, mixed: Tensor<'g>) -> Tensor<'g> {
        let mixed = match &self.mixer {
            Mixer::Attention(a, _) => a.out.forward(g, mixed),
            Mixer::DeltaNet(..) => mixed,
        };
        let after = |i: usize, y: Tensor<'g>| self.after.as_ref().map_or(y, |norms| norms[i].forward(g, y));
        let x = g.add(x, after(0, mixed));
        // The stream comes second: a sum that ends the block and this one are one launch on CUDA.
        g.add(after(1, self.ffn.forward(g, self.ffn_norm.forward(g, x))), x)
    }
}

impl MtpLayer {
    /// The head's block, or which of its tensors are missing.
    fn open(
        t: &mut Tensors<'_>,
        il: usize,
        c: &DecoderConfig,
        n_vocab: usize,
        embed: WeightId,
    ) -> Result<Result<Self, Vec<String>>, LoadError> {
        let needed = ["nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "attn_norm.weight"];
        let missing = t.block(il).missing(&needed);
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        let layer = match Layer::open(t, il, c) {
            Ok(layer) => layer,
            Err(LoadError::Missing(tensor)) => return Ok(Err(vec![tensor])),
            Err(error) => return Err(error),
        };
        let (d, eps, t) = (c.n_embd, c.eps, &mut t.block(il));
        Ok(Ok(Self {
            project: Linear::open(t, "nextn.eh_proj", 2 * d, d)?,
            embed_norm: RmsNorm::open(t, "nextn.enorm", d, eps)?,
            hidden_norm: RmsNorm::open(t, "nextn.hnorm", d, eps)?,
            layer,
            norm: RmsNorm::find(t, "nextn.shared_head_norm", d, eps)?,
            embed: t.find("nextn.embed_tokens.weight", &[d, n_vocab])?.unwrap_or(embed),
            head: Linear::find(t, "nextn.shared_head_head", d, n_vocab, false)?,
        }))
    }

    /// One entry a column: `tokens: [n_entries]`, `hidden: [n_embd, n_entries]`, after the target model's final norm or the
    /// head's own; gives the head's stream and what its attention adds, for [`Layer::rest`]. Its KV cache is layer 0 of the
    /// head's memory.
    fn attend<'g>(
        &self,
        g: &Graph<'g>,
        inputs: &AttentionInputs<'_, 'g>,
        tokens: Tensor<'g>,
        hidden: Tensor<'g>,
    ) -> (Tensor<'g>, Tensor<'g>) {
        let e = self.embed_norm.forward(g, embedded(g, self.embed, tokens)); // [n_embd, n_entries]
        let h = self.hidden_norm.forward(g, hidden);
        let x = self.project.forward(g, g.concat(e, h, 0)); // [n_embd, n_entries], of [2 * n_embd, n_entries]
        let y = self.layer.norm.forward(g, x);
        let Mixer::Attention(a, _) = &self.layer.mixer else { return (x, y) };
        (x, a.forward(g, inputs, 0, y))
    }
}

impl Decoder {
    /// `h: [n_embd, n_out]` gives `[n_vocab, n_out]`.
    fn logits<'g>(&self, g: &Graph<'g>, h: Tensor<'g>) -> Tensor<'g> {
        let logits = self.head.forward(g, h);
        self.softcap.map_or(logits, |cap| g.scale(g.tanh(g.scale(logits, 1.0 / cap)), cap))
    }
}

impl Architecture for Decoder {
    fn state(&self) -> StateLayout {
        StateLayout { layers: self.layers.iter().map(Layer::state).collect() }
    }

    fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>) {
        let x = embedded(g, self.embed, step.tokens); // [n_embd, n_tokens]
        let mut x = self.embed_scale.map_or(x, |scale| g.scale(x, scale));
        for (il, layer) in self.layers.iter().enumerate() {
            g.layer(il);
            let y = layer.norm.forward(g, x);
            let mixed = match &layer.mixer {
                Mixer::Attention(a, _) => a.forward(g, &step.inputs, il, y),
                Mixer::DeltaNet(net, _) => net.forward(g, step, il, y),
            };
            if il + 1 == self.layers.len() {
                let tail =
                    |cut: &dyn Fn(Tensor<'g>) -> Tensor<'g>| self.norm.forward(g, layer.rest(g, cut(x), cut(mixed)));
                return step.end(g, x, tail, |h| self.logits(g, h));
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

    fn mtp_state(&self) -> Option<LayerState> {
        Some(self.mtp.as_ref()?.layer.state())
    }

    fn draft_head(&self) -> Option<WeightId> {
        Some(self.mtp.as_ref()?.head.as_ref().unwrap_or(&self.head).weight())
    }

    fn draft<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>) {
        let Some(mtp) = &self.mtp else { return };
        let norm = mtp.norm.as_ref().unwrap_or(&self.norm);
        let head = mtp.head.as_ref().unwrap_or(&self.head);
        // Into the head's KV cache; where nothing is drafted, nothing else is needed.
        let (x, mixed) = mtp.attend(g, &step.inputs, step.tokens, step.hidden);
        let Some(last) = step.last else { return };
        let end = |(x, mixed)| norm.forward(g, mtp.layer.rest(g, x, mixed)); // [n_embd, n_seqs]
        // Only the last entry of a sequence gives draft tokens.
        let cut = |t: Tensor<'g>| if t.ne()[1] == last.ne()[0] { t } else { g.get_rows(t, last) };
        let mut h = end((cut(x), cut(mixed)));
        for i in 0..step.depth() {
            let ids = step.pick(g, i, h, head);
            if let Some(inputs) = step.chain.get(i) {
                h = end(mtp.attend(g, inputs, ids, h));
            }
        }
    }
}
