//! Dense feed-forward without a gate: `down(relu(up(x))^2)` (So et al. 2021, Primer).

use ggml::{Graph, Tensor};

use super::linear::Linear;
use crate::error::LoadError;
use crate::tensors::Scope;

/// The matrices of such a feed-forward.
pub(crate) struct SquaredReluFfn {
    up: Linear,
    down: Linear,
}

impl SquaredReluFfn {
    /// Asks for `ffn_up{suffix}` and `ffn_down{suffix}`, which may have biases.
    pub(crate) fn open(t: &mut Scope<'_, '_>, suffix: &str, n_embd: usize, n_ff: usize) -> Result<Self, LoadError> {
        t.refuse(&format!("ffn_gate{suffix}.weight"), "a gate is not expected here")?;
        Ok(Self {
            up: Linear::biased(t, &format!("ffn_up{suffix}"), n_embd, n_ff, true)?,
            down: Linear::biased(t, &format!("ffn_down{suffix}"), n_ff, n_embd, true)?,
        })
    }

    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        self.down.forward(g, g.sqr(g.relu(self.up.forward(g, x)))) // of [n_ff, n_tokens]
    }
}
