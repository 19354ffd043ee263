//! The experts of a layer, each a feed-forward, and their sum by weight; computed on two devices where some experts have copies
//! on another one.

use ggml::{Graph, Tensor};

use super::experts::Experts;
use super::gated_ffn::limited_swiglu;
use super::router::Route;
use crate::error::LoadError;
use crate::head_shape::HeadGlu;
use crate::tensors::Scope;

/// What an expert makes of its gate and up rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum ExpertGlu {
    /// `silu(gate) * up`.
    #[default]
    Silu,
    /// `gelu(gate) * up`, GELU in its form of a hyperbolic tangent.
    Gelu,
    /// `x * sigmoid(slope * x) * (y + 1)` of gate and up that are clamped. Source: the gpt-oss reference model.
    Clamped { slope: f32, limit: f32 },
    /// `relu(up)^2`: there is no gate. The shared expert is made like this, too.
    SquaredRelu,
    /// `min(silu(gate), limit) * clamp(up, -limit, limit)`.
    Limited { limit: f32 },
}

impl ExpertGlu {
    /// As a NextN head has it, if it can be said.
    pub(crate) fn shape(self) -> Option<HeadGlu> {
        match self {
            Self::Silu => Some(HeadGlu::Silu),
            Self::Limited { limit } => Some(HeadGlu::Limited(limit)),
            Self::SquaredRelu => Some(HeadGlu::SquaredRelu),
            Self::Gelu | Self::Clamped { .. } => None,
        }
    }
}

/// What a layer's experts are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertShape {
    pub(crate) glu: ExpertGlu,
    /// Width of what they read and give.
    pub(crate) n_in: usize,
    /// Width of one expert.
    pub(crate) n_ff: usize,
    pub(crate) n_expert: usize,
    /// Those of a token.
    pub(crate) n_used: usize,
    /// There may be biases.
    pub(crate) bias: bool,
}

/// The weights of a layer's experts.
pub(crate) struct ExpertFfn {
    shape: ExpertShape,
    gate_up: GateUp,
    down: Experts,
}

enum GateUp {
    Split {
        gate: Experts,
        up: Experts,
    },
    /// Gate rows first, then up.
    Fused(Experts),
    /// There is no gate.
    Up(Experts),
}

impl GateUp {
    fn open(t: &mut Scope<'_, '_>, shape: ExpertShape) -> Result<Self, LoadError> {
        let ExpertShape { glu, n_in, n_ff, n_expert, bias, .. } = shape;
        let one = [n_in, n_ff, n_expert];
        if let ExpertGlu::SquaredRelu = glu {
            t.refuse("ffn_gate_exps.weight", "a gate is not expected here")?;
            return Ok(Self::Up(Experts::open(t, "ffn_up_exps", one, bias)?));
        }
        Ok(match Experts::find(t, "ffn_gate_up_exps", [n_in, 2 * n_ff, n_expert], bias)? {
            Some(both) => {
                for name in ["ffn_gate_exps.bias", "ffn_up_exps.bias"] {
                    t.refuse(name, "biases of joint experts are in ffn_gate_up_exps.bias")?;
                }
                Self::Fused(both)
            }
            None => Self::Split {
                gate: Experts::open(t, "ffn_gate_exps", one, bias)?,
                up: Experts::open(t, "ffn_up_exps", one, bias)?,
            },
        })
    }
}

impl ExpertFfn {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, shape: ExpertShape) -> Result<Self, LoadError> {
        let gate_up = GateUp::open(t, shape)?;
        let down = Experts::open(t, "ffn_down_exps", [shape.n_ff, shape.n_in, shape.n_expert], shape.bias)?;
        Ok(Self { shape, gate_up, down })
    }

    /// What the experts of each token make of `x: [n_in, n_tokens]`, summed by weight; gives the same shape.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, route: &Route<'g>) -> Tensor<'g> {
        let (Some(there), Some(copies)) = (self.copies(g), self.down.copies_for(g, route)) else {
            return self.sum(g, x, route);
        };
        // Experts with copies are zeros here, those without are zeros there.
        let left = route.with_ids(g.ids_without_copies(&copies, route.ids));
        let left = if self.down.has_bias() { left.without_weights_of_no_expert(g) } else { left };
        let here = self.sum(g, x, &left);
        let route = route.with_ids(g.ids_of_copies(&copies, route.ids));
        // Experts without a copy share one of zeros.
        let [n_in, n_tokens, ..] = x.ne();
        if there.down.take_one_twice(g, n_tokens) {
            return g.add(here, there.sum(g, x, &route));
        }
        let n_used = self.shape.n_used as i64;
        let rows = g.repeat_to(g.reshape(x, [n_in, 1, n_tokens]), [n_in, n_used, n_tokens, 1]);
        let rows = g.reshape(rows, [n_in, 1, n_used * n_tokens]); // was [n_in, n_used, n_tokens]
        let out = there.outputs(g, rows, &route.one_by_one(g)); // [n_in, 1, n_used * n_tokens]
        g.add(here, self.added(g, g.reshape(out, [n_in, n_used, n_tokens])))
    }

    /// The same over the copies of these experts.
    fn copies(&self, g: &Graph<'_>) -> Option<Self> {
        let gate_up = match &self.gate_up {
            GateUp::Split { gate, up } => GateUp::Split { gate: gate.copies(g)?, up: up.copies(g)? },
            GateUp::Fused(both) => GateUp::Fused(both.copies(g)?),
            GateUp::Up(up) => GateUp::Up(up.copies(g)?),
        };
        Some(Self { gate_up, down: self.down.copies(g)?, ..*self })
    }

    fn sum<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, route: &Route<'g>) -> Tensor<'g> {
        let [n_in, n_tokens, ..] = x.ne();
        let rows = g.reshape(x, [n_in, 1, n_tokens]); // was [n_in, n_tokens]
        self.added(g, self.outputs(g, rows, route))
    }

    /// What experts make of `rows: [n_in, 1, n_tokens]`, times their weights: `[n_in, n_used, n_tokens]`.
    fn outputs<'g>(&self, g: &Graph<'g>, rows: Tensor<'g>, route: &Route<'g>) -> Tensor<'g> {
        let n_ff = self.shape.n_ff as i64;
        let [n_used, n_tokens, ..] = route.ids.ne();
        let (gate, up) = match &self.gate_up {
            GateUp::Split { gate, up } => (gate.forward(g, rows, route), up.forward(g, rows, route)),
            GateUp::Up(up) => {
                let up = up.forward(g, rows, route);
                (up, up)
            }
            GateUp::Fused(both) => {
                let both = both.forward(g, rows, route); // [2 * n_ff, n_used, n_tokens]
                let (nb, ne) = (both.nb(), [n_ff, n_used, n_tokens, 1]);
                let half = |offset| g.view(both, ne, [nb[1], nb[2], nb[3]], offset);
                (half(0), half(n_ff as usize * nb[0]))
            }
        }; // [n_ff, n_used, n_tokens]
        let inner = match self.shape.glu {
            ExpertGlu::Silu => g.swiglu(gate, up),
            ExpertGlu::Gelu => g.geglu(gate, up),
            ExpertGlu::Clamped { slope, limit } => g.swiglu_clamped(gate, up, slope, limit),
            ExpertGlu::SquaredRelu => g.sqr(g.relu(up)),
            ExpertGlu::Limited { limit } => limited_swiglu(g, gate, up, limit),
        };
        let out = self.down.forward(g, inner, route); // [n_in, n_used, n_tokens]
        g.mul(out, route.weights)
    }

    /// The sum of each token's experts: `[n_in, n_used, n_tokens]` gives `[n_in, n_tokens]`.
    fn added<'g>(&self, g: &Graph<'g>, out: Tensor<'g>) -> Tensor<'g> {
        let ([n_in, _, n_tokens, _], nb) = (out.ne(), out.nb());
        let expert = |i: usize| g.view(out, [n_in, n_tokens, 1, 1], [nb[2], nb[3], nb[3]], i * nb[1]);
        let mut sum = expert(0); // [n_in, n_tokens]
        for i in 1..self.shape.n_used {
            sum = g.add(sum, expert(i));
        }
        if self.shape.n_used == 1 { g.cont(sum) } else { sum }
    }
}
