//! Feed-forward by experts: a router picks some for each token, their outputs are summed by weight; with or without a
//! shared expert that every token uses. Source: Shazeer et al. 2017; the shared expert's gate as in Qwen2-MoE.

use ggml::{Graph, Tensor, WeightId};

use super::gated_ffn::GatedFfn;
use super::linear::{Linear, updated, updated_experts, vector};
use crate::error::LoadError;
use crate::keys::Keys;
use crate::tensors::Scope;

/// The smallest sum that weights are divided by: the smallest normal F16, as the reference models have it.
const MIN_WEIGHT_SUM: f32 = 1.0 / 16384.0;

/// The expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedExpert {
    /// There is none.
    None,
    /// It is multiplied with a sigmoid of the input.
    Gated,
}

/// Sizes and constants of an MoE layer, the same in all blocks. The router is a softmax.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeConfig {
    pub(crate) n_expert: usize,
    pub(crate) n_used: usize,
    /// Width of one expert.
    n_ff: usize,
    /// Width of the shared expert; 0 when there is none.
    n_ff_shared: usize,
    /// Factor on the routed sum.
    scale: f32,
}

impl MoeConfig {
    /// `None` for a dense model. An expert's width that the file does not tell is that of the dense feed-forward, shared out
    /// among those that a token uses, or for each of them where `wide`.
    pub(crate) fn read(
        keys: &Keys<'_, '_>,
        n_block: usize,
        shared: SharedExpert,
        wide: bool,
    ) -> Result<Option<Self>, LoadError> {
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
        let n_used = found("expert_used_count", None)?;
        if n_used == 0 || n_used > n_expert {
            return Err(keys.error("expert_used_count", format!("{n_used} of {n_expert} experts")));
        }
        let dense = keys.per_layer("feed_forward_length", n_block, 0..=1 << 22)?.map(|n| n[0]);
        let n_ff = found("expert_feed_forward_length", dense.map(|n| if wide { n } else { n / n_used }))?;
        let n_ff_shared = match shared {
            SharedExpert::None => 0,
            SharedExpert::Gated => found("expert_shared_feed_forward_length", dense)?,
        };
        let scale = keys.float("expert_weights_scale", 0.0..=1e4)?.filter(|&s| s > 0.0).unwrap_or(1.0);
        Ok(Some(Self { n_expert, n_used, n_ff, n_ff_shared, scale }))
    }
}

/// The weights of an MoE layer.
pub(crate) struct MoeFfn {
    config: MoeConfig,
    router: Linear,
    gate_up: GateUp,
    down: Experts,
    shared: Option<(GatedFfn, WeightId)>,
}

enum GateUp {
    Split {
        gate: Experts,
        up: Experts,
    },
    /// Gate rows first, then up.
    Fused(Experts),
}

/// One matrix `[n_in, n_out]` for each expert, with the scales that NVFP4 files put beside them, one for each expert.
struct Experts {
    weight: WeightId,
    scales: Option<WeightId>,
}

impl Experts {
    /// Asks for `{name}.weight` and, if there, `{name}.scale`.
    fn find(t: &mut Scope<'_, '_>, name: &str, dims: [usize; 3]) -> Result<Option<Self>, LoadError> {
        let name_of_weight = format!("{name}.weight");
        let Some(weight) = t.find(&name_of_weight, &dims)? else { return Ok(None) };
        t.updatable(&name_of_weight, weight, &dims);
        Ok(Some(Self { weight, scales: t.companion(&format!("{name}.scale"), &dims[2..])? }))
    }

    /// As [`Experts::find`]; the matrices must be there.
    fn open(t: &mut Scope<'_, '_>, name: &str, dims: [usize; 3]) -> Result<Self, LoadError> {
        let name_of_weight = format!("{name}.weight");
        let weight = t.need(&name_of_weight, &dims)?;
        t.updatable(&name_of_weight, weight, &dims);
        Ok(Self { weight, scales: t.companion(&format!("{name}.scale"), &dims[2..])? })
    }

    /// `x: [n_in, n_used or 1, n_tokens]` gives `[n_out, n_used, n_tokens]`.
    fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, route: &Route<'g>) -> Tensor<'g> {
        let y = g.mul_mat_id(g.weight(self.weight), x, route.ids);
        let y = match self.scales {
            Some(scales) => {
                let n_expert = route.by_token.ne()[1];
                let scales = g.repeat(g.reshape(vector(g, scales), [1, n_expert]), route.by_token); // was [n_expert]
                g.mul(y, g.get_rows(scales, route.ids)) // [1, n_used, n_tokens]
            }
            None => y,
        };
        updated_experts(g, self.weight, x, route.ids, y)
    }
}

/// Which experts the tokens go to.
struct Route<'g> {
    /// i32 `[n_used, n_tokens]`.
    ids: Tensor<'g>,
    /// `[1, n_used, n_tokens]`.
    weights: Tensor<'g>,
    /// A number for each expert and token, `[1, n_expert, n_tokens]`: the shape to which scales of experts are repeated.
    by_token: Tensor<'g>,
}

impl MoeFfn {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, n_embd: usize, config: MoeConfig) -> Result<Self, LoadError> {
        let MoeConfig { n_expert, n_ff, n_ff_shared, .. } = config;
        let router = Linear::open(t, "ffn_gate_inp", n_embd, n_expert)?;
        let gate_up = match Experts::find(t, "ffn_gate_up_exps", [n_embd, 2 * n_ff, n_expert])? {
            Some(both) => GateUp::Fused(both),
            None => GateUp::Split {
                gate: Experts::open(t, "ffn_gate_exps", [n_embd, n_ff, n_expert])?,
                up: Experts::open(t, "ffn_up_exps", [n_embd, n_ff, n_expert])?,
            },
        };
        let down = Experts::open(t, "ffn_down_exps", [n_ff, n_embd, n_expert])?;
        let shared = if n_ff_shared > 0 {
            let name = "ffn_gate_inp_shexp.weight";
            let gate = t.need(name, &[n_embd])?;
            t.updatable(name, gate, &[n_embd]);
            Some((GatedFfn::open(t, "_shexp", n_embd, n_ff_shared, false, false)?, gate))
        } else {
            None
        };
        Ok(Self { config, router, gate_up, down, shared })
    }

    /// Picks experts. These ops stand in the graph one after the other and in this order, which CUDA's backend computes in one
    /// launch (docs/GPU.md).
    fn route<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Route<'g> {
        let (n_expert, n_used) = (self.config.n_expert as i64, self.config.n_used as i64);
        let n_tokens = x.ne()[1];
        let probs = g.soft_max(self.router.forward(g, x), None, 1.0); // [n_expert, n_tokens]
        let ids = g.top_k(probs, n_used);
        let by_token = g.reshape(probs, [1, n_expert, n_tokens]); // was [n_expert, n_tokens]
        let chosen = g.reshape(g.get_rows(by_token, ids), [n_used, n_tokens]); // was [1, n_used, n_tokens]
        let sum = g.clamp(g.sum_rows(chosen), MIN_WEIGHT_SUM, f32::INFINITY); // [1, n_tokens]
        let mut weights = g.reshape(g.div(chosen, sum), [1, n_used, n_tokens]); // was [n_used, n_tokens]
        if self.config.scale != 1.0 {
            weights = g.scale(weights, self.config.scale);
        }
        g.order(weights);
        Route { ids, weights, by_token }
    }

    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let (n_used, n_ff) = (self.config.n_used as i64, self.config.n_ff as i64);
        let [n_embd, n_tokens, ..] = x.ne();
        let route = self.route(g, x);
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
        let out = self.down.forward(g, g.swiglu(gate, up), &route); // [n_embd, n_used, n_tokens]
        let out = g.mul(out, route.weights);
        let nb = out.nb();
        let expert = |i: usize| g.view(out, [n_embd, n_tokens, 1, 1], [nb[2], nb[3], nb[3]], i * nb[1]);
        let mut sum = expert(0); // [n_embd, n_tokens]
        for i in 1..self.config.n_used {
            sum = g.add(sum, expert(i));
        }
        if self.config.n_used == 1 {
            sum = g.cont(sum);
        }
        let Some((ffn, gate)) = &self.shared else { return sum };
        let matrix = g.reshape(vector(g, *gate), [n_embd, 1]); // was [n_embd]
        let gate = g.sigmoid(updated(g, *gate, x, g.mul_mat(matrix, x))); // [1, n_tokens]
        g.add(sum, g.mul(ffn.forward(g, x), gate))
    }
}
