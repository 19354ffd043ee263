//! The decoder that most families share: blocks of a mixer and a feed-forward, each on a norm of its own, and a NextN head.
//! Owns the order of things; what a family's blocks are is its configuration.

use ggml::{Graph, Tensor, WeightId};
use memory::{LayerState, Segment, StateLayout};

use crate::architecture::{Architecture, Hparams, ModelFile, NextNHead, Opened, Tables, max_nodes};
use crate::blocks::{Linear, RmsNorm, embedded};
pub(crate) use crate::decoder_config::{BlockConfig, DecoderConfig, Factors, MixerConfig, MtpKind, NormNames};
use crate::draft::{DraftStep, WhichHead};
use crate::error::LoadError;
use crate::keys::Keys;
use crate::layer::{Layer, times};
use crate::mtp_layer::{MtpLayer, fits_after, mtp_of_file, mtp_of_model, own_beside};
use crate::pictures::PictureKind;
use crate::rank_head::RankHead;
use crate::share::SharedRows;
use crate::step::Step;

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
    /// As many of the model's own head, where `mtp` is that of another file and both are kept; else none.
    own: Vec<MtpLayer>,
    mtp_kind: MtpKind,
    factors: Factors,
    pictures: Option<PictureKind>,
}

/// Opens a file of a family whose metadata `config` reads.
pub(crate) fn open(
    file: &mut ModelFile<'_, '_, '_>,
    config: fn(&Keys<'_, '_>) -> Result<DecoderConfig, LoadError>,
) -> Result<Opened, LoadError> {
    let whole = config(&file.keys)?;
    whole.segments().for_each(|(name, segments)| file.tensors.made_of(name, segments));
    let head = whole.head_shape(file.tensors);
    let c = whole.shared(file.share)?;
    let (n_embd, n_vocab, n_layer) = (c.n_embd, file.n_vocab, c.n_layer());
    let t = &mut *file.tensors;
    let layers = (0..n_layer).map(|il| Layer::open(t, il, &c)).collect::<Result<Vec<_>, _>>()?;
    let embed = t.globals().need("token_embd.weight", &[n_embd, n_vocab])?;
    t.globals().refuse("output.bias", "biases are not supported")?;
    t.globals().updatable_rows("token_embd.weight", embed, &[n_embd, n_vocab]);
    let rows = SharedRows::of(file.share, n_vocab);
    if rows.is_some() {
        t.made_of("output.weight".into(), SharedRows::segments(n_vocab));
    }
    let n_rows = if rows.is_some() { n_vocab / file.share.of } else { n_vocab };
    let output = Linear::find(&mut t.globals(), "output", n_embd, n_rows, false)?;
    let output = output.map(|output| output.with_rows(rows)).unwrap_or_else(|| {
        t.globals().updatable("output.weight", embed, &[n_embd, n_vocab]);
        Linear::tied(embed)
    });
    let norm = RmsNorm::open(&mut t.globals(), c.final_norm, n_embd, c.eps)?;
    let rank = RankHead::find(&file.keys, t, n_embd)?;
    let (mtp, own, nextn) = match &file.head_keys {
        Some(keys) => {
            fits_after(keys, n_layer)?;
            let given = config(keys)?.shared(file.share)?;
            // Adapters update what is bound last.
            let own = if file.own_head { own_beside(t, &c, given.n_nextn, n_vocab, embed) } else { Vec::new() };
            (mtp_of_file(t, &c, &given, n_vocab, embed)?, own, NextNHead::Bound)
        }
        None if file.own_head => {
            let (mtp, nextn) = mtp_of_model(t, &c, n_vocab, embed)?;
            (mtp, Vec::new(), nextn)
        }
        None => (Vec::new(), Vec::new(), NextNHead::Absent),
    };
    let n_expert_used = c.n_expert().1;
    let n_head = c.n_head();
    let hparams = Hparams { n_layer, n_embd, n_vocab, n_ctx_train: 0, n_expert_used, n_head };
    let DecoderConfig { softcap, factors, pictures, mtp: mtp_kind, .. } = c;
    let decoder =
        Decoder { n_expert_used, softcap, embed, layers, norm, output, rank, mtp, own, mtp_kind, factors, pictures };
    Ok(Opened { arch: Box::new(decoder), hparams, nextn, share: file.share, head })
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
    fn draft_by_layers<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>, head: &[MtpLayer]) {
        let mut hidden = step.hidden; // [n_embd, n_entries]
        let mut drafted = Vec::new();
        for (k, mtp) in head.iter().take(step.n_layers).enumerate() {
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

    fn own_mtp_states(&self) -> Vec<LayerState> {
        self.own.iter().map(|mtp| mtp.layer.state()).collect()
    }

    fn draft_heads(&self) -> Vec<WeightId> {
        self.mtp.iter().chain(&self.own).map(|mtp| self.head_of(mtp).weight()).collect()
    }

    fn pictures(&self) -> Option<PictureKind> {
        self.pictures
    }

    fn rotates_as_long(&self, n_ctx: usize) -> bool {
        self.layers.iter().any(|layer| layer.rotates_as_long(n_ctx))
    }

    fn mtp_takes_stream(&self) -> bool {
        self.mtp_kind.pre_norm && !self.mtp.is_empty()
    }

    fn draft<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>) {
        let head = match step.head {
            WhichHead::First => &self.mtp[..],
            WhichHead::Own => &self.own,
        };
        match head {
            [] => {}
            [mtp] => self.draft_chain(g, step, mtp),
            layers => self.draft_by_layers(g, step, layers),
        }
    }
}
