//! Layer norm without a bias. Source: Ba et al. 2016.

use ggml::{Graph, Tensor, WeightId};

use super::linear::vector;
use crate::error::LoadError;
use crate::tensors::Scope;

/// Layer norm over dim 0, times a weight of that length.
pub(crate) struct LayerNorm {
    weight: WeightId,
    eps: f32,
}

impl LayerNorm {
    /// Asks for `{name}.weight`, a vector of `n`; there must be no bias.
    pub(crate) fn open(t: &mut Scope<'_, '_>, name: &str, n: usize, eps: f32) -> Result<Self, LoadError> {
        t.refuse(&format!("{name}.bias"), "biases are not supported")?;
        Ok(Self { weight: t.need(&format!("{name}.weight"), &[n])?, eps })
    }

    /// `x: [n, ..]`; gives the shape of `x`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        g.mul(g.layer_norm(x, self.eps), vector(g, self.weight))
    }
}
