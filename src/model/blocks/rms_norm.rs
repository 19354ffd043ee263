//! RMS norm. Source: Zhang and Sennrich 2019.

use ggml::{Graph, Tensor, WeightId};

use super::linear::vector;
use crate::error::LoadError;
use crate::tensors::Scope;

/// RMS norm over dim 0, times a weight of that length.
pub(crate) struct RmsNorm {
    weight: WeightId,
    eps: f32,
}

impl RmsNorm {
    /// Asks for `{name}.weight`, a vector of `n`.
    pub(crate) fn open(t: &mut Scope<'_, '_>, name: &str, n: usize, eps: f32) -> Result<Self, LoadError> {
        Ok(Self { weight: t.need(&format!("{name}.weight"), &[n])?, eps })
    }

    /// As [`RmsNorm::open`], or `None` when there is no such vector.
    pub(crate) fn find(t: &mut Scope<'_, '_>, name: &str, n: usize, eps: f32) -> Result<Option<Self>, LoadError> {
        Ok(t.find(&format!("{name}.weight"), &[n])?.map(|weight| Self { weight, eps }))
    }

    /// `x: [n, ..]`; gives the shape of `x`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        g.mul(g.rms_norm(x, self.eps), vector(g, self.weight))
    }
}
