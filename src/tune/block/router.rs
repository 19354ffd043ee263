//! Which experts rows go to while a head is trained, and with which weights. The choice itself has no gradient, the weights have.
//! Source: the runtime's own router, `src/model/blocks/router.rs`.

use candle_core::{D, DType, Result, Tensor};
use model::{HeadRouter, HeadScores};

use super::attention::{sigmoid, softmax};
use super::weights::Layer;

/// What a router says of `n` rows.
pub(super) struct Route {
    /// Experts of each row, `[n][n_used]`.
    pub(super) ids: Vec<Vec<usize>>,
    /// Their weights, `[n, n_used]`.
    pub(super) weights: Tensor,
}

/// What chooses without being scores: the layer's correction of them.
const CORRECTION: &str = "exp_probs_b.bias";

impl Route {
    /// For `x: [n, n_embd]`.
    pub(super) fn of(router: &HeadRouter, layer: &Layer, x: &Tensor) -> Result<Self> {
        let logits = layer.linear("ffn_gate_inp", x)?; // [n, n_expert]
        let scores = match router.scores {
            HeadScores::Softmax => softmax(&logits)?,
            HeadScores::Sigmoid => sigmoid(&logits)?,
            HeadScores::SoftmaxOfChosen => logits,
        };
        let chooses = if layer.has(CORRECTION) {
            scores.detach().broadcast_add(&layer.get(CORRECTION)?.detach())?
        } else {
            scores.detach()
        };
        let rows = chooses.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let ids: Vec<_> = rows.into_iter().map(|scores| chosen(router, scores)).collect();
        let places: Vec<u32> = ids.iter().flatten().map(|&id| id as u32).collect();
        let places = Tensor::from_vec(places, (ids.len(), router.n_used), x.device())?;
        let weights = weighed(router, &scores.gather(&places, D::Minus1)?)?;
        Ok(Self { ids, weights })
    }
}

/// The weights of the chosen experts of these scores: `[n, n_used]` both.
fn weighed(router: &HeadRouter, scores: &Tensor) -> Result<Tensor> {
    let weights = match (router.scores, router.norm) {
        (HeadScores::SoftmaxOfChosen, _) => softmax(scores)?,
        (_, Some(least)) => scores.broadcast_div(&scores.sum_keepdim(D::Minus1)?.maximum(f64::from(least))?)?,
        (_, None) => scores.clone(),
    };
    if router.scale == 1.0 { Ok(weights) } else { weights * f64::from(router.scale) }
}

/// The experts of a row by what chooses them, the best first.
fn chosen(router: &HeadRouter, mut scores: Vec<f32>) -> Vec<usize> {
    if let Some((n, n_used)) = router.groups {
        let size = scores.len() / n;
        let sum_of_best = |group: &[f32]| best(group, N_BEST_OF_GROUP).iter().map(|&id| group[id]).sum();
        let sums: Vec<f32> = scores.chunks_exact(size).map(sum_of_best).collect();
        let used = best(&sums, n_used);
        let others = scores.chunks_exact_mut(size).enumerate().filter(|(group, _)| !used.contains(group));
        others.for_each(|(_, group)| group.fill(f32::NEG_INFINITY));
    }
    best(&scores, router.n_used)
}

/// Where the `n` largest of `numbers` stand, the largest first.
fn best(numbers: &[f32], n: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..numbers.len()).collect();
    ids.sort_by(|&a, &b| numbers[b].total_cmp(&numbers[a]));
    ids.truncate(n);
    ids
}

/// Experts whose scores are a group's, summed.
const N_BEST_OF_GROUP: usize = 2;
