//! A block of a decoder: its norms, its mixer, its feed-forward, in their order. Owns the residual stream's way through them.

use ggml::{Graph, Tensor};
use memory::{LayerState, Recurrent};

use crate::blocks::{Attention, DeltaNet, Ffn, LatentAttention, Mamba, RmsNorm, ShortConv};
use crate::decoder_config::{DecoderConfig, MixerConfig};
use crate::error::LoadError;
use crate::step::{AttentionInputs, Step};
use crate::tensors::Tensors;

/// A block: a mixer and a feed-forward.
pub(crate) struct Layer {
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

/// What mixes tokens, and the state that it keeps.
enum Mixer {
    Attention(Box<Attention>, LayerState),
    DeltaNet(Box<DeltaNet>, Recurrent),
    Latent(Box<LatentAttention>, LayerState),
    Mamba(Box<Mamba>, Recurrent),
    ShortConv(Box<ShortConv>, Recurrent),
    None,
}

impl Layer {
    /// Asks for the tensors of block `il`.
    pub(crate) fn open(t: &mut Tensors<'_>, il: usize, c: &DecoderConfig) -> Result<Self, LoadError> {
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

    /// The state that it keeps.
    pub(crate) fn state(&self) -> LayerState {
        match &self.mixer {
            Mixer::Attention(_, state) | Mixer::Latent(_, state) => *state,
            Mixer::DeltaNet(_, state) | Mixer::Mamba(_, state) | Mixer::ShortConv(_, state) => {
                LayerState::Recurrent(*state)
            }
            Mixer::None => LayerState::None,
        }
    }

    /// Its rotation is another one in a context of so many positions than in short ones.
    pub(crate) fn rotates_as_long(&self, n_ctx: usize) -> bool {
        matches!(&self.mixer, Mixer::Attention(a, _) if a.is_long(n_ctx))
    }

    /// What the mixer gives of the residual stream `x: [n_embd, n_tokens]`, for [`Layer::rest`].
    pub(crate) fn mix<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        match &self.mixer {
            Mixer::DeltaNet(net, _) => net.forward(g, step, il, self.normed(g, x)),
            Mixer::Mamba(net, _) => net.forward(g, step, il, self.normed(g, x)),
            Mixer::ShortConv(net, _) => net.forward(g, step, il, self.normed(g, x)),
            Mixer::Attention(..) | Mixer::Latent(..) | Mixer::None => self.attend(g, &step.inputs, il, x),
        }
    }

    /// As [`Layer::mix`] of a layer without recurrent state.
    pub(crate) fn attend<'g>(
        &self,
        g: &Graph<'g>,
        inputs: &AttentionInputs<'_, 'g>,
        il: usize,
        x: Tensor<'g>,
    ) -> Tensor<'g> {
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
    pub(crate) fn rest<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, mixed: Tensor<'g>) -> Tensor<'g> {
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
        let x = mixed.map_or(x, |mixed| g.add(x, after(0, g.all_reduce(mixed))));
        // The stream comes second: a sum that ends the block and this one are one launch on CUDA.
        self.ffn.as_ref().map_or(x, |(norm, ffn)| g.add(after(1, g.all_reduce(ffn.forward(g, norm.forward(g, x)))), x))
    }
}

/// `x` times `factor`, without an operation where that is one.
pub(crate) fn times<'g>(g: &Graph<'g>, x: Tensor<'g>, factor: f32) -> Tensor<'g> {
    if factor == 1.0 { x } else { g.scale(x, factor) }
}
