//! A gated short convolution in the place of attention: `out(c * conv(b * x))`. Its state is the convolution's last inputs.
//! Source: Liquid AI's LFM2 reference model, 2025.

use ggml::{Graph, Tensor, WeightId};
use memory::Recurrent;

use super::causal_conv::causal_conv;
use super::linear::{Linear, join, vector};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};
use crate::step::Step;
use crate::tensors::Scope;

/// Sizes of such a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortConvConfig {
    n_embd: usize,
    n_taps: usize,
}

impl ShortConvConfig {
    /// The same in all blocks.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<Self, LoadError> {
        let n_embd = keys.need("embedding_length", WIDTH)?;
        Ok(Self { n_embd, n_taps: keys.need("shortconv.l_cache", 2..=64)? })
    }

    /// The state that such a layer keeps.
    pub(crate) fn state(&self) -> Recurrent {
        Recurrent {
            n_conv: self.n_taps - 1,
            n_channels: self.n_embd,
            n_heads: 0,
            d_state: 0,
            d_head: 0,
            is_delta_net: false,
        }
    }
}

/// The weights of such a layer.
pub(crate) struct ShortConv {
    /// Rows of b, c and x.
    inputs: Linear,
    conv: WeightId,
    out: Linear,
}

impl ShortConv {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, config: ShortConvConfig) -> Result<Self, LoadError> {
        let ShortConvConfig { n_embd, n_taps } = config;
        for name in ["shortconv.in_proj.bias", "shortconv.conv.bias", "shortconv.out_proj.bias"] {
            t.refuse(name, "biases are not supported")?;
        }
        Ok(Self {
            inputs: Linear::open(t, "shortconv.in_proj", n_embd, 3 * n_embd)?,
            conv: t.need("shortconv.conv.weight", &[n_taps, n_embd])?,
            out: Linear::open(t, "shortconv.out_proj", n_embd, n_embd)?,
        })
    }

    /// `x: [n_embd, n_tokens]`, normed; gives the same shape. Reads and writes the state of layer `il`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        let [n_embd, n_tokens, ..] = x.ne();
        let all = self.inputs.forward(g, x); // [3 * n_embd, n_tokens]
        let nb = all.nb();
        let third =
            |i: usize| g.view(all, [n_embd, n_tokens, 1, 1], [nb[1], nb[2], nb[3]], i * n_embd as usize * nb[0]);
        let inner = g.mul(third(0), third(2)); // [n_embd, n_tokens]
        let (view, conv) = (&step.inputs.view, vector(g, self.conv));
        let segments = view.segments().iter().zip(&step.inputs.numbers);
        let parts = segments.filter_map(|(seg, &numbers)| {
            let y = causal_conv(g, view, il, (seg, numbers), (inner, 0), conv)?; // [n_embd, n_rows, n_seqs]
            Some(g.reshape(y, [n_embd, seg.n_tokens() as i64]))
        });
        let y = join(g, parts).unwrap_or(inner);
        self.out.forward(g, g.mul(y, third(1)))
    }
}
