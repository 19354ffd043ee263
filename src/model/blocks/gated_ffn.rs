//! Dense feed-forward with a gate: `down(silu(gate(x)) * up(x))`, or with GELU (Shazeer 2020, SwiGLU and GEGLU).

use ggml::{Graph, Tensor};

use super::linear::Linear;
use crate::error::LoadError;
use crate::tensors::Scope;

/// What a gate goes through before the other half is multiplied with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Activation {
    #[default]
    Silu,
    /// In its form of a hyperbolic tangent.
    Gelu,
}

impl Activation {
    /// Both of one shape, which is the result's.
    pub(crate) fn gated<'g>(self, g: &Graph<'g>, gate: Tensor<'g>, up: Tensor<'g>) -> Tensor<'g> {
        match self {
            Self::Silu => g.swiglu(gate, up),
            Self::Gelu => g.geglu(gate, up),
        }
    }
}

/// `min(silu(gate), limit) * clamp(up, -limit, limit)`, both of one shape. Source: the Step 3.5 reference model.
pub(crate) fn limited_swiglu<'g>(g: &Graph<'g>, gate: Tensor<'g>, up: Tensor<'g>, limit: f32) -> Tensor<'g> {
    g.mul(g.clamp(g.silu(gate), f32::NEG_INFINITY, limit), g.clamp(g.cont(up), -limit, limit))
}

/// The matrices of a dense feed-forward.
pub(crate) struct GatedFfn {
    activation: Activation,
    /// `None` where `up` has the rows of the gate before its own.
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    /// See [`limited_swiglu`].
    limit: Option<f32>,
}

impl GatedFfn {
    /// Asks for `ffn_gate{suffix}` and its fellows. `fused`: gate and up are one matrix by the name of the latter. `bias`:
    /// there may be biases.
    pub(crate) fn open(
        t: &mut Scope<'_, '_>,
        suffix: &str,
        n_embd: usize,
        n_ff: usize,
        fused: bool,
        bias: bool,
    ) -> Result<Self, LoadError> {
        let mut part = |what: &str, n_in, n_out| {
            if !bias {
                t.refuse(&format!("ffn_{what}{suffix}.bias"), "biases are not supported")?;
            }
            Linear::biased(t, &format!("ffn_{what}{suffix}"), n_in, n_out, bias)
        };
        Ok(Self {
            activation: Activation::Silu,
            gate: if fused { None } else { Some(part("gate", n_embd, n_ff)?) },
            up: part("up", n_embd, if fused { 2 * n_ff } else { n_ff })?,
            down: part("down", n_ff, n_embd)?,
            limit: None,
        })
    }

    /// The same with another activation.
    pub(crate) fn with(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// The same with a limit on both factors.
    pub(crate) fn limited(self, limit: Option<f32>) -> Self {
        Self { limit, ..self }
    }

    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let (gate, up) = match &self.gate {
            Some(gate) => (gate.forward(g, x), self.up.forward(g, x)),
            None => {
                let both = self.up.forward(g, x); // [2 * n_ff, n_tokens]
                let ([n, n_tokens, ..], nb) = (both.ne(), both.nb());
                let half = |offset| g.view(both, [n / 2, n_tokens, 1, 1], [nb[1], nb[2], nb[3]], offset);
                (half(0), half(n as usize / 2 * nb[0]))
            }
        };
        let inner = match self.limit {
            None => self.activation.gated(g, gate, up),
            Some(limit) => limited_swiglu(g, gate, up, limit),
        }; // [n_ff, n_tokens]
        self.down.forward(g, inner)
    }
}
