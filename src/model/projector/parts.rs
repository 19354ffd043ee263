//! What towers are made of: layer norms with a bias, matrices with one, attention of every patch to every other.

use ggml::{Dtype, Graph, Tensor, WeightId};

use super::shape::TowerShape;
use super::tower::Seen;
use crate::blocks::{Linear, join, vector};
use crate::error::LoadError;
use crate::tensors::Scope;

/// Layer norm with a bias. Source: Ba et al. 2016.
pub(crate) struct BiasedNorm {
    weight: WeightId,
    bias: WeightId,
    eps: f32,
}

impl BiasedNorm {
    /// Asks for `{name}.weight` and `{name}.bias`, vectors of `n`.
    pub(crate) fn open(t: &mut Scope<'_, '_>, name: &str, n: usize, eps: f32) -> Result<Self, LoadError> {
        let [weight, bias] = ["weight", "bias"].map(|part| t.need(&format!("{name}.{part}"), &[n]));
        Ok(Self { weight: weight?, bias: bias?, eps })
    }

    /// `x: [n, ..]`; gives the shape of `x`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        g.add(g.mul(g.layer_norm(x, self.eps), vector(g, self.weight)), vector(g, self.bias))
    }
}

/// A matrix `[n_in, n_out]` that must have a bias.
pub(crate) fn biased(t: &mut Scope<'_, '_>, name: &str, n_in: usize, n_out: usize) -> Result<Linear, LoadError> {
    t.need(&format!("{name}.bias"), &[n_out])?;
    Linear::biased(t, name, n_in, n_out, true)
}

/// A layer norm and a feed-forward with GELU between two matrices with biases, whose result is added to what it is made of.
pub(crate) struct FeedForward {
    norm: BiasedNorm,
    up: Linear,
    down: Linear,
    n_ff: usize,
}

impl FeedForward {
    /// Asks for `ln2`, `ffn_up` and `ffn_down`.
    pub(crate) fn open(t: &mut Scope<'_, '_>, n: usize, n_ff: usize, eps: f32) -> Result<Self, LoadError> {
        let norm = BiasedNorm::open(t, "ln2", n, eps)?;
        Ok(Self { norm, up: biased(t, "ffn_up", n, n_ff)?, down: biased(t, "ffn_down", n_ff, n)?, n_ff })
    }

    /// `x: [n_embd, n_patches]`; gives the shape of `x`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let inner = |x| self.down.forward_wide(g, g.gelu(self.up.forward_wide(g, x)));
        g.add(x, by_parts(g, self.norm.forward(g, x), self.n_ff, inner))
    }
}

/// A weight `[patch, patch, 3, n_embd]` as F32 `[patch * patch * 3, n_embd]`: patches are embedded without rounding.
pub(crate) fn patch_matrix<'g>(g: &Graph<'g>, id: WeightId) -> Tensor<'g> {
    let w = vector(g, id);
    let [a, b, c, n_embd] = w.ne();
    g.reshape(w, [a * b * c, n_embd])
}

/// The mean of each block of `merge * merge` patches that follow one another: `x: [n_embd, n_patches]` gives
/// `[n_embd, n_tokens]`.
pub(crate) fn mean_of_blocks<'g>(g: &Graph<'g>, x: Tensor<'g>, merge: usize) -> Tensor<'g> {
    let ([n_embd, n_patches, ..], n) = (x.ne(), (merge * merge) as i64);
    let x = g.reshape(x, [n_embd, n, n_patches / n]); // was [n_embd, n_patches]
    let x = g.sum_rows(g.cont(g.permute(x, [1, 0, 2, 3]))); // [1, n_embd, n_tokens]
    g.scale(g.reshape(x, [n_embd, n_patches / n]), 1.0 / n as f32)
}

/// Sizes of heads for which GPUs have fused attention.
const FUSED: &[i64] = &[64, 72, 80, 96, 112, 128, 256];
/// Most scores that are kept at once where attention is not fused.
const MAX_SCORES: i64 = 1 << 26;

/// Attention of every patch to every other: `q`, `k` and `v` are `[n_embd_head, n_head, n_patches]`; gives
/// `[n_embd, n_patches]`. Scores are never kept whole.
pub(crate) fn attend_to_all<'g>(g: &Graph<'g>, seen: &Seen<'g>, [q, k, v]: [Tensor<'g>; 3], scale: f32) -> Tensor<'g> {
    let [n_embd_head, n_head, n, _] = q.ne();
    let [q, k, v] = [q, k, v].map(|t| g.permute(t, [0, 2, 1, 3])); // was [n_embd_head, n_head, n]
    if seen.on_cpu || FUSED.contains(&n_embd_head) {
        // On a CPU sums and products stay in F32. Keys and values of a head lie together: they are read once for every 64
        // queries, and lines that lie a token apart would each need a page of their own.
        let own = |t| if seen.on_cpu { g.cont(t) } else { g.cast(t, Dtype::F16) };
        let o = g.flash_attn_to_all(q, own(k), own(v), scale); // [n_embd_head, n_head, n]
        return g.reshape(o, [n_embd_head * n_head, n]);
    }
    let k = g.cont(k); // [n_embd_head, n, n_head]
    let v = g.cont(g.transpose(v)); // [n, n_embd_head, n_head]
    let some = |first: i64, n_rows: i64| {
        let nb = q.nb();
        let q = g.view(q, [n_embd_head, n_rows, n_head, 1], [nb[1], nb[2], nb[3]], first as usize * nb[1]);
        let scores = g.soft_max(g.mul_mat(k, q), None, scale); // [n, n_rows, n_head]
        let o = g.mul_mat(v, scores); // [n_embd_head, n_rows, n_head]
        g.reshape(g.cont(g.permute(o, [0, 2, 1, 3])), [n_embd_head * n_head, n_rows])
    };
    let at_once = n_at_once(n, n_head);
    let parts = (0..n).step_by(at_once as usize).map(|first| some(first, at_once.min(n - first)));
    join(g, parts).unwrap_or(q)
}

/// Queries whose scores are kept at once.
fn n_at_once(n: i64, n_head: i64) -> i64 {
    (MAX_SCORES / (n * n_head).max(1)).clamp(64, n.max(64))
}

/// Elements of a feed-forward's inner rows that are kept at once.
const MAX_INNER: usize = 1 << 26;

/// `f` over rows of `x: [n_embd, n]`, as many at once as their inner rows of `n_ff` have room.
pub(crate) fn by_parts<'g>(
    g: &Graph<'g>,
    x: Tensor<'g>,
    n_ff: usize,
    f: impl Fn(Tensor<'g>) -> Tensor<'g>,
) -> Tensor<'g> {
    let ([n_embd, n, ..], nb) = (x.ne(), x.nb());
    let at_once = ((MAX_INNER / n_ff).max(64) as i64).min(n);
    if at_once >= n {
        return f(x);
    }
    let part = |first: i64| {
        let n_rows = at_once.min(n - first);
        f(g.view(x, [n_embd, n_rows, 1, 1], [nb[1], nb[2], nb[3]], first as usize * nb[1]))
    };
    join(g, (0..n).step_by(at_once as usize).map(part)).unwrap_or(x)
}

/// Nodes that a graph of a tower has at most.
pub(crate) fn max_nodes(shape: &TowerShape, n_patches: usize) -> usize {
    let n_attention = n_patches.div_ceil(n_at_once(n_patches as i64, shape.n_head as i64) as usize);
    let n_inner = n_patches.div_ceil((MAX_INNER / shape.n_ff).max(64));
    128 + shape.n_layer * (96 + 12 * n_attention + 26 * n_inner)
}
