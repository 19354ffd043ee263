//! Gemma 4's attention: heads are normed, values too, scores are not scaled; values may be the keys before their norm.

use ggml::{Graph, Rope, Scores, Tensor, WeightId};

use super::config::{GemmaConfig, LayerConfig};
use crate::blocks::{Linear, RmsNorm, attend, attend_to, split_heads, vector};
use crate::error::LoadError;
use crate::step::AttentionInputs;
use crate::tensors::Scope;

/// The weights of one layer's attention.
pub(super) struct Attention {
    eps: f32,
    /// Elements of a head.
    d: usize,
    n_head: usize,
    n_head_kv: usize,
    rope: Rope,
    /// Divide the rotation's frequencies: `[d / 2]`.
    factors: Option<WeightId>,
    /// The layer whose cells are read.
    cells: usize,
    q: Query,
    q_norm: RmsNorm,
    /// `None` where the cells are another layer's.
    k_norm: Option<RmsNorm>,
    /// The output matrix.
    pub(super) out: Linear,
}

/// Matrices of queries, keys and values.
enum Query {
    /// Queries alone.
    Alone(Linear),
    /// Values are made of keys where they have no matrix.
    Split { q: Linear, k: Linear, v: Option<Linear> },
    /// The rows of all three in one matrix.
    Fused(Linear),
}

/// Queries `[d, n_head, n_tokens]`, with keys and values `[d, n_head_kv, n_tokens]` where there are some.
type Projected<'g> = (Tensor<'g>, Option<(Tensor<'g>, Tensor<'g>)>);

impl Attention {
    /// Asks for the tensors of a layer of the target. `factors` are those of full layers.
    pub(super) fn open(
        t: &mut Scope<'_, '_>,
        c: &GemmaConfig,
        il: usize,
        factors: Option<WeightId>,
    ) -> Result<Self, LoadError> {
        let LayerConfig { n_head, n_head_kv, d, cells, .. } = c.layers[il];
        let (n_q, n_kv) = (d * n_head, d * n_head_kv);
        let q = match Linear::find(t, "attn_qkv", c.n_embd, n_q + 2 * n_kv, false)? {
            Some(all) => Query::Fused(all),
            None => {
                let q = Linear::open(t, "attn_q", c.n_embd, n_q)?;
                // Files have the unused keys and values of layers that share, too.
                match cells == il {
                    true => Query::Split {
                        q,
                        k: Linear::open(t, "attn_k", c.n_embd, n_kv)?,
                        v: Linear::find(t, "attn_v", c.n_embd, n_kv, false)?,
                    },
                    false => {
                        for name in ["attn_k.weight", "attn_v.weight"] {
                            t.unread(name, &[c.n_embd, n_kv]);
                        }
                        t.unread("attn_k_norm.weight", &[d]);
                        Query::Alone(q)
                    }
                }
            }
        };
        let k_norm = match cells == il {
            true => Some(RmsNorm::open(t, "attn_k_norm", d, c.eps)?),
            false => None,
        };
        Self::of(t, c, il, (q, k_norm, cells), factors)
    }

    /// Asks for those of a layer of the assistant, which reads layer `cells` of the target.
    pub(super) fn of_queries(
        t: &mut Scope<'_, '_>,
        c: &GemmaConfig,
        il: usize,
        cells: usize,
        factors: Option<WeightId>,
    ) -> Result<Self, LoadError> {
        let LayerConfig { n_head, d, .. } = c.layers[il];
        let q = Query::Alone(Linear::open(t, "attn_q", c.n_embd, d * n_head)?);
        Self::of(t, c, il, (q, None, cells), factors)
    }

    fn of(
        t: &mut Scope<'_, '_>,
        c: &GemmaConfig,
        il: usize,
        (q, k_norm, cells): (Query, Option<RmsNorm>, usize),
        factors: Option<WeightId>,
    ) -> Result<Self, LoadError> {
        for name in ["attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias", "attn_output.bias"] {
            t.refuse(name, "biases are not supported")?;
        }
        let LayerConfig { n_head, n_head_kv, d, rope, window, .. } = c.layers[il];
        Ok(Self {
            eps: c.eps,
            d,
            n_head,
            n_head_kv,
            rope,
            factors: factors.filter(|_| window.is_none()),
            cells,
            q,
            q_norm: RmsNorm::open(t, "attn_q_norm", d, c.eps)?,
            k_norm,
            out: Linear::open(t, "attn_output", d * n_head, c.n_embd)?,
        })
    }

    /// `x: [n_embd, n_tokens]`, normed; gives `[d * n_head, n_tokens]`, before the output matrix.
    pub(super) fn forward<'g>(&self, g: &Graph<'g>, inputs: &AttentionInputs<'_, 'g>, x: Tensor<'g>) -> Tensor<'g> {
        let scores = Scores::scaled(1.0);
        let factors = self.factors.map(|f| vector(g, f));
        let rope = |x| g.rope(x, inputs.positions, factors, &self.rope);
        let (q, kv) = self.project(g, x);
        let q = rope(self.q_norm.forward(g, q));
        match (kv, &self.k_norm) {
            (Some((k, v)), Some(k_norm)) => {
                let (k, v) = (rope(k_norm.forward(g, k)), g.rms_norm(v, self.eps));
                attend(g, inputs, self.cells, (q, k, v), &scores)
            }
            _ => attend_to(g, inputs, self.cells, q, &scores),
        }
    }

    fn project<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Projected<'g> {
        let heads = |x| split_heads(g, x, self.d);
        match &self.q {
            Query::Alone(q) => (heads(q.forward(g, x)), None),
            Query::Split { q, k, v } => {
                let k = heads(k.forward(g, x));
                (heads(q.forward(g, x)), Some((k, v.as_ref().map_or(k, |v| heads(v.forward(g, x))))))
            }
            Query::Fused(all) => {
                let all = all.forward(g, x); // [d * (n_head + 2 * n_head_kv), n_tokens]
                let (n_tokens, nb) = (all.ne()[1], all.nb());
                let (head, token) = (self.d * nb[0], nb[1]);
                let part = |n: usize, first: usize| {
                    let ne = [self.d as i64, n as i64, n_tokens, 1];
                    g.cont(g.view(all, ne, [head, token, token * n_tokens as usize], first * head))
                };
                let (n, n_kv) = (self.n_head, self.n_head_kv);
                (part(n, 0), Some((part(n_kv, n), part(n_kv, n + n_kv))))
            }
        }
    }
}
