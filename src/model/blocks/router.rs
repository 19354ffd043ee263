//! Which experts a token goes to, and how much each of them counts.
//! Sources: Shazeer et al. 2017; Dai et al. 2024 and DeepSeek-AI 2024 (sigmoid scores, their correction, groups of experts).

use ggml::{Dtype, Graph, Tensor, WeightId};

use super::linear::{Linear, vector};
use crate::error::LoadError;
use crate::head_shape::{HeadRouter, HeadScores};
use crate::keys::Keys;
use crate::tensors::Scope;

/// The smallest sum that weights are divided by: the smallest normal F16, as the reference models have it.
const MIN_WEIGHT_SUM: f32 = 1.0 / 16384.0;

/// What makes scores of a router's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Gating {
    /// Softmax over all experts.
    #[default]
    Softmax,
    /// Sigmoid, each expert for itself.
    Sigmoid,
    /// The outputs choose as they are; weights are a softmax over the chosen.
    SoftmaxOfChosen,
}

/// What a family says of its router, where files do not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterKind {
    /// For files without `expert_gating_func`.
    pub(crate) gating: Gating,
    /// Weights are divided by their sum, for files without `expert_weights_norm`.
    pub(crate) norm: bool,
    /// Files may bring a correction of the scores, and must where scores are sigmoids.
    pub(crate) correction: bool,
    /// There may be biases.
    pub(crate) bias: bool,
    /// The input is multiplied with `ffn_gate_inp.scale`, element by element.
    pub(crate) input_scale: bool,
}

impl Default for RouterKind {
    fn default() -> Self {
        Self { gating: Gating::Softmax, norm: true, correction: false, bias: false, input_scale: false }
    }
}

/// Sizes and constants of a router.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterConfig {
    kind: RouterKind,
    pub(crate) n_expert: usize,
    pub(crate) n_used: usize,
    groups: Option<Groups>,
    /// Factor on the weights.
    scale: f32,
}

/// Experts stand in groups of equal size; only those of the best groups are chosen.
#[derive(Clone, Copy, Debug)]
struct Groups {
    n: usize,
    n_used: usize,
}

/// Experts whose scores are a group's, summed.
const N_BEST_OF_GROUP: usize = 2;

impl RouterConfig {
    /// That of all blocks: `n_used` of `n_expert` experts for a token.
    pub(crate) fn read(
        keys: &Keys<'_, '_>,
        kind: RouterKind,
        n_expert: usize,
        n_used: usize,
    ) -> Result<Self, LoadError> {
        if n_used == 0 || n_used > n_expert {
            return Err(keys.error("expert_used_count", format!("{n_used} of {n_expert} experts")));
        }
        let gating = match keys.find("expert_gating_func", 0..=u32::MAX)? {
            None | Some(0) => kind.gating,
            Some(1) => Gating::Softmax,
            Some(2) => Gating::Sigmoid,
            Some(3) => Gating::SoftmaxOfChosen,
            Some(n) => {
                let what = format!("{n} found; 1 (softmax), 2 (sigmoid) and 3 (softmax of the chosen) are supported");
                return Err(keys.error("expert_gating_func", what));
            }
        };
        // A softmax over the chosen has the sum one.
        let norm = gating != Gating::SoftmaxOfChosen && keys.flag("expert_weights_norm")?.unwrap_or(kind.norm);
        let scale = keys.float("expert_weights_scale", 0.0..=1e4)?.filter(|&s| s > 0.0).unwrap_or(1.0);
        let groups = Groups::read(keys, n_expert, n_used)?;
        Ok(Self { kind: RouterKind { gating, norm, ..kind }, n_expert, n_used, groups, scale })
    }

    /// As a NextN head has it; else what of it cannot be said.
    pub(crate) fn shape(&self) -> Result<HeadRouter, String> {
        let Self { kind, n_expert, n_used, groups, scale } = *self;
        if kind.input_scale {
            return Err("the router of its NextN head has a factor on its input".into());
        }
        let scores = match kind.gating {
            Gating::Softmax => HeadScores::Softmax,
            Gating::Sigmoid => HeadScores::Sigmoid,
            Gating::SoftmaxOfChosen => HeadScores::SoftmaxOfChosen,
        };
        let groups = groups.map(|groups| (groups.n, groups.n_used));
        Ok(HeadRouter { n_expert, n_used, scores, groups, norm: kind.norm.then_some(MIN_WEIGHT_SUM), scale })
    }
}

impl Groups {
    /// `None` where all groups are used.
    fn read(keys: &Keys<'_, '_>, n_expert: usize, n_expert_used: usize) -> Result<Option<Self>, LoadError> {
        let (count, used) = ("expert_group_count", "expert_group_used_count");
        let n = keys.find(count, 0..=1 << 16)?.unwrap_or(0);
        if n <= 1 {
            return Ok(None);
        }
        let n_used = keys.need(used, 1..=n as u32)?;
        if n_used == n {
            return Ok(None);
        }
        let size = n_expert / n;
        if !n_expert.is_multiple_of(n) || size < N_BEST_OF_GROUP {
            let what = format!("{n_expert} experts in {n} groups; equal groups of {N_BEST_OF_GROUP} or more expected");
            return Err(keys.error(count, what));
        }
        if n_used * size < n_expert_used {
            let what = format!("{n_used} groups of {size} experts, of which a token uses {n_expert_used}");
            return Err(keys.error(used, what));
        }
        Ok(Some(Self { n, n_used }))
    }

    /// The scores with minus infinity for experts outside of the best groups: `[n_expert, n_tokens]` both.
    ///
    /// In this order CUDA's backend computes these ops and those around them in one launch (docs/GPU.md).
    fn of_best<'g>(&self, g: &Graph<'g>, scores: Tensor<'g>) -> Tensor<'g> {
        let [n_expert, n_tokens, ..] = scores.ne();
        let n = self.n as i64;
        let size = n_expert / n.max(1);
        let groups = g.reshape(scores, [size, n, n_tokens]); // was [n_expert, n_tokens]
        let ids = g.top_k(groups, N_BEST_OF_GROUP as i64); // [2, n, n_tokens]
        let best = g.get_rows(g.reshape(groups, [1, size, n, n_tokens]), ids); // [1, 2, n, n_tokens]
        let sums = g.sum_rows(g.reshape(best, [N_BEST_OF_GROUP as i64, n, n_tokens])); // [1, n, n_tokens]
        let used = g.top_k(g.reshape(sums, [n, n_tokens]), self.n_used as i64); // [n_used, n_tokens]
        let kept = g.set_rows(g.fill(groups, f32::NEG_INFINITY), g.get_rows(groups, used), used);
        g.reshape(kept, [n_expert, n_tokens]) // was [size, n, n_tokens]
    }
}

/// The weights of a router.
pub(crate) struct Router {
    config: RouterConfig,
    matrix: Linear,
    /// Added to the scores that choose, not to those that become weights: `[n_expert]`.
    correction: Option<WeightId>,
    /// On the input: `[n_embd]`.
    input_scale: Option<WeightId>,
}

/// Which experts the tokens go to.
#[derive(Clone, Copy)]
pub(crate) struct Route<'g> {
    /// i32 `[n_used, n_tokens]`.
    pub(crate) ids: Tensor<'g>,
    /// `[1, n_used, n_tokens]`.
    pub(crate) weights: Tensor<'g>,
    /// A number for each expert and token, `[1, n_expert, n_tokens]`: the shape to which scales of experts are repeated, to be
    /// looked up by ids that are not contiguous. `None` where they are.
    by_token: Option<Tensor<'g>>,
}

impl<'g> Route<'g> {
    /// The same by other ids, which are contiguous.
    pub(crate) fn with_ids(&self, ids: Tensor<'g>) -> Self {
        Self { ids, by_token: None, ..*self }
    }

    /// The same for a row of each token and expert, in their order: ids `[1, n_used * n_tokens]`, which are contiguous.
    pub(crate) fn one_by_one(&self, g: &Graph<'g>) -> Self {
        let n = self.ids.n_elements();
        // These were [n_used, n_tokens] and [1, n_used, n_tokens].
        Self { ids: g.reshape(self.ids, [1, n]), weights: g.reshape(self.weights, [1, 1, n]), by_token: None }
    }

    /// The same with weights of zero where ids stand for no expert.
    pub(crate) fn without_weights_of_no_expert(&self, g: &Graph<'g>) -> Self {
        let [n_used, n_tokens, ..] = self.ids.ne();
        let is_one = g.scale_and_add(g.clamp(g.cast(self.ids, Dtype::F32), -1.0, 0.0), 1.0, 1.0);
        let is_one = g.reshape(is_one, [1, n_used, n_tokens]); // was [n_used, n_tokens]
        Self { weights: g.mul(self.weights, is_one), ..*self }
    }

    /// The number of each token's experts among `of: [n_expert]`: `[1, n_used, n_tokens]`.
    pub(crate) fn look_up(&self, g: &Graph<'g>, of: Tensor<'g>) -> Tensor<'g> {
        let ([n_used, n_tokens, ..], n_expert) = (self.ids.ne(), of.ne()[0]);
        let of = g.reshape(of, [1, n_expert]); // was [n_expert]
        match self.by_token {
            Some(by_token) => g.get_rows(g.repeat(of, by_token), self.ids),
            None => {
                let flat = g.reshape(self.ids, [n_used * n_tokens]); // was [n_used, n_tokens]
                g.reshape(g.get_rows(of, flat), [1, n_used, n_tokens]) // was [1, n_used * n_tokens]
            }
        }
    }
}

impl Router {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, n_embd: usize, config: RouterConfig) -> Result<Self, LoadError> {
        let RouterConfig { kind, n_expert, .. } = config;
        let correction = "exp_probs_b.bias";
        let correction = match (kind.correction, kind.gating) {
            (false, _) => t.refuse(correction, "corrections of scores are not supported").map(|()| None)?,
            (true, Gating::Sigmoid) => Some(t.need(correction, &[n_expert])?),
            (true, _) => t.find(correction, &[n_expert])?,
        };
        if !kind.bias {
            t.refuse("ffn_gate_inp.bias", "biases are not supported")?;
        }
        let name = "ffn_gate_inp";
        let (matrix, input_scale) = match kind.input_scale {
            true => {
                let scale = t.need(&format!("{name}.scale"), &[n_embd])?;
                (Linear::unscaled(t, name, n_embd, n_expert)?, Some(scale))
            }
            false => (Linear::biased(t, name, n_embd, n_expert, kind.bias)?, None),
        };
        Ok(Self { config, matrix, correction, input_scale })
    }

    /// Picks experts for `x: [n_embd, n_tokens]`. These ops stand in the graph one after the other and in this order, which
    /// CUDA's backend computes in one launch (docs/GPU.md).
    pub(crate) fn route<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Route<'g> {
        let RouterConfig { kind, n_expert, n_used, groups, scale } = self.config;
        let (n_expert, n_used, n_tokens) = (n_expert as i64, n_used as i64, x.ne()[1]);
        let x = self.input_scale.map_or(x, |scale| g.mul(x, vector(g, scale)));
        let logits = self.matrix.forward(g, x); // [n_expert, n_tokens]
        let scores = match kind.gating {
            Gating::Softmax => g.soft_max(logits, None, 1.0),
            Gating::Sigmoid => g.sigmoid(logits),
            Gating::SoftmaxOfChosen => logits,
        };
        let by_token = g.reshape(scores, [1, n_expert, n_tokens]); // was [n_expert, n_tokens]
        let corrected = self.correction.map_or(scores, |correction| g.add(scores, vector(g, correction)));
        let ids = g.top_k(groups.map_or(corrected, |groups| groups.of_best(g, corrected)), n_used);
        let mut weights = g.get_rows(by_token, ids); // [1, n_used, n_tokens]
        let flat = |weights| g.reshape(weights, [n_used, n_tokens]); // was [1, n_used, n_tokens]
        if kind.gating == Gating::SoftmaxOfChosen {
            weights = g.reshape(g.soft_max(flat(weights), None, 1.0), [1, n_used, n_tokens]);
        } else if kind.norm {
            let chosen = flat(weights);
            let sum = g.clamp(g.sum_rows(chosen), MIN_WEIGHT_SUM, f32::INFINITY); // [1, n_tokens]
            weights = g.reshape(g.div(chosen, sum), [1, n_used, n_tokens]);
        }
        if scale != 1.0 {
            weights = g.scale(weights, scale);
        }
        g.order(weights);
        Route { ids, weights, by_token: Some(by_token) }
    }
}
