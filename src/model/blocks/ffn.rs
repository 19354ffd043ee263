//! Feed-forward: dense with a gate, `down(silu(gate(x)) * up(x))` (Shazeer 2020, SwiGLU), or a mixture of experts.

use ggml::{Graph, Tensor};

use super::{Linear, MoeConfig, MoeFfn};
use crate::error::LoadError;
use crate::tensors::Scope;

/// The matrices of a dense feed-forward.
pub(crate) struct GatedFfn {
    /// `None` where `up` has the rows of the gate before its own.
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
}

impl GatedFfn {
    /// Asks for `ffn_gate{suffix}` and its fellows. `fused`: gate and up are one matrix by the name of the latter.
    pub(crate) fn open(
        t: &mut Scope<'_, '_>,
        suffix: &str,
        n_embd: usize,
        n_ff: usize,
        fused: bool,
    ) -> Result<Self, LoadError> {
        let mut part = |what: &str, n_in, n_out| Linear::open(t, &format!("ffn_{what}{suffix}"), n_in, n_out);
        Ok(Self {
            gate: if fused { None } else { Some(part("gate", n_embd, n_ff)?) },
            up: part("up", n_embd, if fused { 2 * n_ff } else { n_ff })?,
            down: part("down", n_ff, n_embd)?,
        })
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
        self.down.forward(g, g.swiglu(gate, up)) // of [n_ff, n_tokens]
    }
}

/// What stands after the mixer of a layer, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FfnConfig {
    Dense {
        n_ff: usize,
        /// Gate and up are one matrix.
        fused: bool,
    },
    Moe(MoeConfig),
}

/// The weights of a layer's feed-forward.
pub(crate) enum Ffn {
    Dense(GatedFfn),
    Moe(Box<MoeFfn>),
}

impl Ffn {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, n_embd: usize, config: FfnConfig) -> Result<Self, LoadError> {
        Ok(match config {
            FfnConfig::Moe(moe) => Self::Moe(Box::new(MoeFfn::open(t, n_embd, moe)?)),
            FfnConfig::Dense { n_ff, fused } => Self::Dense(GatedFfn::open(t, "", n_embd, n_ff, fused)?),
        })
    }

    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Self::Dense(ffn) => ffn.forward(g, x),
            Self::Moe(ffn) => ffn.forward(g, x),
        }
    }
}
