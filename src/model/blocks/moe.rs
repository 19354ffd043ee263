//! Feed-forward by experts: a router picks some for each token, their outputs are summed by weight; with or without a
//! shared expert that every token uses. Source: Shazeer et al. 2017; the shared expert's gate as in Qwen2-MoE.

use ggml::{Graph, Tensor, WeightId};

use super::experts::Experts;
use super::gated_ffn::GatedFfn;
use super::linear::{updated, vector};
use super::router::{Router, RouterConfig, RouterKind};
use crate::error::LoadError;
use crate::keys::Keys;
use crate::tensors::Scope;

/// The expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum SharedExpert {
    /// There is none.
    #[default]
    None,
    /// It is multiplied with a sigmoid of the input.
    Gated,
    /// It is added as it is, where the file counts one or tells its width.
    Plain,
}

/// What an expert makes of its gate and up rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum ExpertGlu {
    /// `silu(gate) * up`.
    #[default]
    Silu,
    /// `x * sigmoid(slope * x) * (y + 1)` of gate and up that are clamped. Source: the gpt-oss reference model.
    Clamped { slope: f32, limit: f32 },
}

/// What a family says of its experts, where files do not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MoeKind {
    pub(crate) router: RouterKind,
    pub(crate) shared: SharedExpert,
    /// An expert's width that the file does not tell is that of the dense feed-forward; of others it is that width, shared
    /// out among the experts that a token uses.
    pub(crate) wide: bool,
    /// Experts may have biases.
    pub(crate) bias: bool,
    pub(crate) glu: ExpertGlu,
}

/// Sizes and constants of an MoE layer, the same in all blocks that have experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeConfig {
    pub(crate) router: RouterConfig,
    kind: MoeKind,
    /// Width of one expert.
    n_ff: usize,
    /// Width of the shared expert; 0 when there is none.
    n_ff_shared: usize,
}

impl MoeConfig {
    /// `None` for a dense model.
    pub(crate) fn read(keys: &Keys<'_, '_>, n_block: usize, kind: MoeKind) -> Result<Option<Self>, LoadError> {
        let n_expert = keys.find("expert_count", 0..=1 << 16)?.unwrap_or(0);
        if n_expert == 0 {
            return Ok(None);
        }
        let uniform = |key: &str| -> Result<Option<usize>, LoadError> {
            match keys.per_layer(key, n_block, 0..=1 << 22)? {
                Some(values) if values.iter().any(|v| *v != values[0]) => {
                    Err(keys.error(key, "differs between blocks, which is not supported"))
                }
                values => Ok(values.map(|values| values[0])),
            }
        };
        let found = |key: &str, fallback: Option<usize>| {
            uniform(key)?.or(fallback).ok_or_else(|| keys.error(key, "is missing"))
        };
        let router = RouterConfig::read(keys, kind.router, n_expert, found("expert_used_count", None)?)?;
        let dense = keys.per_layer("feed_forward_length", n_block, 0..=1 << 22)?.map(|n| n[0]);
        let n_ff = found("expert_feed_forward_length", dense.map(|n| if kind.wide { n } else { n / router.n_used }))?;
        if n_ff == 0 {
            return Err(keys.error("expert_feed_forward_length", "0 found, a width expected"));
        }
        let shared = "expert_shared_feed_forward_length";
        let counted = || Ok::<_, LoadError>(keys.find("expert_shared_count", 0..=1 << 8)?.map(|n| n * n_ff));
        let n_ff_shared = match kind.shared {
            SharedExpert::None => 0,
            SharedExpert::Gated => found(shared, dense)?,
            SharedExpert::Plain => match uniform(shared)?.filter(|&n| n > 0) {
                Some(n) => n,
                None => counted()?.unwrap_or(0),
            },
        };
        Ok(Some(Self { router, kind, n_ff, n_ff_shared }))
    }
}

/// The weights of an MoE layer.
pub(crate) struct MoeFfn {
    config: MoeConfig,
    router: Router,
    gate_up: GateUp,
    down: Experts,
    shared: Option<Shared>,
}

enum GateUp {
    Split {
        gate: Experts,
        up: Experts,
    },
    /// Gate rows first, then up.
    Fused(Experts),
}

/// The expert that every token uses, and its gate.
struct Shared {
    ffn: GatedFfn,
    gate: Option<WeightId>,
}

impl Shared {
    fn open(t: &mut Scope<'_, '_>, n_embd: usize, config: &MoeConfig) -> Result<Option<Self>, LoadError> {
        let name = "ffn_gate_inp_shexp.weight";
        if config.n_ff_shared == 0 {
            for name in [name, "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"] {
                t.refuse(name, "a shared expert is not expected here")?;
            }
            return Ok(None);
        }
        let gate = match config.kind.shared {
            SharedExpert::Gated => {
                let gate = t.need(name, &[n_embd])?;
                t.updatable(name, gate, &[n_embd]);
                Some(gate)
            }
            SharedExpert::None | SharedExpert::Plain => {
                t.refuse(name, "a gate of the shared expert is not expected here")?;
                None
            }
        };
        Ok(Some(Self { ffn: GatedFfn::open(t, "_shexp", n_embd, config.n_ff_shared, false, false)?, gate }))
    }

    fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let Some(gate) = self.gate else { return self.ffn.forward(g, x) };
        let matrix = g.reshape(vector(g, gate), [x.ne()[0], 1]); // was [n_embd]
        let gate = g.sigmoid(updated(g, gate, x, g.mul_mat(matrix, x))); // [1, n_tokens]
        g.mul(self.ffn.forward(g, x), gate)
    }
}

impl MoeFfn {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, n_embd: usize, config: MoeConfig) -> Result<Self, LoadError> {
        let MoeConfig { router, kind: MoeKind { bias, .. }, n_ff, .. } = config;
        let n_expert = router.n_expert;
        let router = Router::open(t, n_embd, router)?;
        let gate_up = match Experts::find(t, "ffn_gate_up_exps", [n_embd, 2 * n_ff, n_expert], bias)? {
            Some(both) => GateUp::Fused(both),
            None => GateUp::Split {
                gate: Experts::open(t, "ffn_gate_exps", [n_embd, n_ff, n_expert], bias)?,
                up: Experts::open(t, "ffn_up_exps", [n_embd, n_ff, n_expert], bias)?,
            },
        };
        let down = Experts::open(t, "ffn_down_exps", [n_ff, n_embd, n_expert], bias)?;
        let shared = Shared::open(t, n_embd, &config)?;
        Ok(Self { config, router, gate_up, down, shared })
    }

    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let (n_used, n_ff) = (self.config.router.n_used as i64, self.config.n_ff as i64);
        let [n_embd, n_tokens, ..] = x.ne();
        let route = self.router.route(g, x);
        let rows = g.reshape(x, [n_embd, 1, n_tokens]); // was [n_embd, n_tokens]
        let (gate, up) = match &self.gate_up {
            GateUp::Split { gate, up } => (gate.forward(g, rows, &route), up.forward(g, rows, &route)),
            GateUp::Fused(both) => {
                let both = both.forward(g, rows, &route); // [2 * n_ff, n_used, n_tokens]
                let (nb, ne) = (both.nb(), [n_ff, n_used, n_tokens, 1]);
                let half = |offset| g.view(both, ne, [nb[1], nb[2], nb[3]], offset);
                (half(0), half(n_ff as usize * nb[0]))
            }
        }; // [n_ff, n_used, n_tokens]
        let inner = match self.config.kind.glu {
            ExpertGlu::Silu => g.swiglu(gate, up),
            ExpertGlu::Clamped { slope, limit } => g.swiglu_clamped(gate, up, slope, limit),
        };
        let out = self.down.forward(g, inner, &route); // [n_embd, n_used, n_tokens]
        let out = g.mul(out, route.weights);
        let nb = out.nb();
        let expert = |i: usize| g.view(out, [n_embd, n_tokens, 1, 1], [nb[2], nb[3], nb[3]], i * nb[1]);
        let mut sum = expert(0); // [n_embd, n_tokens]
        for i in 1..self.config.router.n_used {
            sum = g.add(sum, expert(i));
        }
        if self.config.router.n_used == 1 {
            sum = g.cont(sum);
        }
        self.shared.as_ref().map_or(sum, |shared| g.add(sum, shared.forward(g, x)))
    }
}
