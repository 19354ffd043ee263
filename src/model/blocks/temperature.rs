//! Queries of later stretches of a long context are longer. Source: the Ministral 3 reference model, after Llama 4.

use ggml::{Dtype, Graph, Tensor};

use crate::error::LoadError;
use crate::head_shape::HeadTemperature;
use crate::keys::Keys;
use crate::rope::n_ctx_orig;

/// `1 + rate * ln(1 + floor(position / stretch))`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Temperature {
    rate: f32,
    stretch: usize,
}

impl Temperature {
    /// That of the file, if its scores grow with the position.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<Option<Self>, LoadError> {
        let rate = keys.float("attention.temperature_scale", 0.0..=1e3)?.filter(|&rate| rate > 0.0);
        rate.map(|rate| Ok(Self { rate, stretch: n_ctx_orig(keys)? })).transpose()
    }

    /// As a NextN head has it.
    pub(crate) fn shape(&self) -> HeadTemperature {
        HeadTemperature { rate: self.rate, stretch: self.stretch }
    }

    /// `q: [d_k, n_head, n_tokens]`, `positions: [n_tokens]` (i32); gives the shape of `q`.
    pub(crate) fn scaled<'g>(&self, g: &Graph<'g>, q: Tensor<'g>, positions: Tensor<'g>) -> Tensor<'g> {
        // The half keeps whole stretches clear of rounding.
        let one = 1.0 / self.stretch as f32;
        let stretches = g.floor(g.scale_and_add(g.cast(positions, Dtype::F32), one, 0.5 * one));
        let length = g.scale_and_add(g.log(g.scale_and_add(stretches, 1.0, 1.0)), self.rate, 1.0);
        g.mul(q, g.reshape(length, [1, 1, q.ne()[2]])) // was [n_tokens]
    }
}
