//! Feed-forward by experts: a router picks some for each token, their outputs are summed by weight; with or without a
//! shared expert that every token uses. Source: Shazeer et al. 2017; the shared expert's gate as in Qwen2-MoE.

use ggml::{Graph, Tensor, WeightId};

use super::{GatedFfn, Linear, vector};
use crate::error::LoadError;
use crate::load::Loader;

/// The smallest sum that weights are divided by: the smallest normal F16, as the reference models have it.
const MIN_WEIGHT_SUM: f32 = 1.0 / 16384.0;

/// Sizes of an MoE layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeSizes {
    pub(crate) n_embd: usize,
    pub(crate) n_expert: usize,
    pub(crate) n_used: usize,
    /// Width of one expert.
    pub(crate) n_ff: usize,
    /// Width of the shared expert; 0 when there is none.
    pub(crate) n_ff_shared: usize,
    /// Factor on the routed sum.
    pub(crate) scale: f32,
    /// Divide the chosen weights by their sum.
    pub(crate) normalize: bool,
}

/// The weights of an MoE layer.
pub(crate) struct MoeFfn {
    sizes: MoeSizes,
    router: Linear,
    gate_up: GateUp,
    down: WeightId,
    shared: Option<(GatedFfn, WeightId)>,
}

enum GateUp {
    Split {
        gate: WeightId,
        up: WeightId,
    },
    /// Gate rows first, then up.
    Fused(WeightId),
}

impl MoeFfn {
    /// Binds the tensors of block `prefix`, such as `blk.3.`.
    pub(crate) fn open(loader: &mut Loader<'_>, prefix: &str, sizes: MoeSizes) -> Result<Self, LoadError> {
        let MoeSizes { n_embd, n_expert, n_ff, n_ff_shared, .. } = sizes;
        let name = |what: &str| format!("{prefix}ffn_{what}.weight");
        for what in ["gate_exps", "up_exps", "gate_up_exps", "down_exps"] {
            let scale = format!("{prefix}ffn_{what}.scale");
            if loader.has(&scale) {
                return Err(LoadError::Tensor { name: scale, what: "scales of experts are not supported yet".into() });
            }
        }
        let gate_up = match loader.find(&name("gate_up_exps"), &[n_embd, 2 * n_ff, n_expert])? {
            Some(both) => GateUp::Fused(both),
            None => GateUp::Split {
                gate: loader.need(&name("gate_exps"), &[n_embd, n_ff, n_expert])?,
                up: loader.need(&name("up_exps"), &[n_embd, n_ff, n_expert])?,
            },
        };
        let shared = if n_ff_shared > 0 {
            let ffn = GatedFfn::open(loader, prefix, "_shexp", n_embd, n_ff_shared)?;
            Some((ffn, loader.need(&name("gate_inp_shexp"), &[n_embd])?))
        } else {
            None
        };
        Ok(Self {
            sizes,
            router: Linear::open(loader, &format!("{prefix}ffn_gate_inp"), n_embd, n_expert)?,
            gate_up,
            down: loader.need(&name("down_exps"), &[n_ff, n_embd, n_expert])?,
            shared,
        })
    }

    /// Picks experts: their ids i32 `[n_used, n_tokens]` and weights `[1, n_used, n_tokens]`. These ops stand in the graph one
    /// after the other and in this order, which CUDA's backend computes in one launch (docs/GPU.md).
    fn route<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> (Tensor<'g>, Tensor<'g>) {
        let (n_expert, n_used) = (self.sizes.n_expert as i64, self.sizes.n_used as i64);
        let n_tokens = x.ne()[1];
        let probs = g.soft_max(self.router.forward(g, x), None, 1.0); // [n_expert, n_tokens]
        let ids = g.top_k(probs, n_used);
        let mut weights = g.get_rows(g.reshape(probs, [1, n_expert, n_tokens]), ids);
        if self.sizes.normalize {
            let chosen = g.reshape(weights, [n_used, n_tokens]); // was [1, n_used, n_tokens]
            let sum = g.clamp(g.sum_rows(chosen), MIN_WEIGHT_SUM, f32::INFINITY); // [1, n_tokens]
            weights = g.reshape(g.div(chosen, sum), [1, n_used, n_tokens]); // was [n_used, n_tokens]
        }
        if self.sizes.scale != 1.0 {
            weights = g.scale(weights, self.sizes.scale);
        }
        g.order(weights);
        (ids, weights)
    }

    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let MoeSizes { n_embd, n_used, n_ff, .. } = self.sizes;
        let (n_embd, n_used, n_ff) = (n_embd as i64, n_used as i64, n_ff as i64);
        let n_tokens = x.ne()[1];
        let (ids, weights) = self.route(g, x); // [n_used, n_tokens], [1, n_used, n_tokens]
        let rows = g.reshape(x, [n_embd, 1, n_tokens]); // was [n_embd, n_tokens]
        let (gate, up) = match self.gate_up {
            GateUp::Split { gate, up } => {
                (g.mul_mat_id(g.weight(gate), rows, ids), g.mul_mat_id(g.weight(up), rows, ids))
            }
            GateUp::Fused(both) => {
                let both = g.mul_mat_id(g.weight(both), rows, ids); // [2 * n_ff, n_used, n_tokens]
                let (nb, ne) = (both.nb(), [n_ff, n_used, n_tokens, 1]);
                let half = |offset| g.view(both, ne, [nb[1], nb[2], nb[3]], offset);
                (half(0), half(n_ff as usize * nb[0]))
            }
        }; // [n_ff, n_used, n_tokens]
        let out = g.mul_mat_id(g.weight(self.down), g.swiglu(gate, up), ids); // [n_embd, n_used, n_tokens]
        let out = g.mul(out, weights);
        let nb = out.nb();
        let expert = |i: usize| g.view(out, [n_embd, n_tokens, 1, 1], [nb[2], nb[3], nb[3]], i * nb[1]);
        let mut sum = expert(0); // [n_embd, n_tokens]
        for i in 1..self.sizes.n_used {
            sum = g.add(sum, expert(i));
        }
        if self.sizes.n_used == 1 {
            sum = g.cont(sum);
        }
        let Some((ffn, gate)) = &self.shared else { return sum };
        let gate = g.reshape(vector(g, *gate), [n_embd, 1]); // was [n_embd]
        let gate = g.sigmoid(g.mul_mat(gate, x)); // [1, n_tokens]
        g.add(sum, g.mul(ffn.forward(g, x), gate))
    }
}
