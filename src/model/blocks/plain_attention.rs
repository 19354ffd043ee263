//! Grouped-query attention as most decoders have it: with or without norms on query and key heads.

use ggml::{Graph, Rope, Tensor, WeightId};
use memory::{Kv, LayerState};

use super::{Linear, RmsNorm, attend, split_heads, vector};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};
use crate::load::Loader;
use crate::step::Step;

/// Sizes and constants of such attention, the same in all layers.
#[derive(Clone, Debug)]
pub(crate) struct AttentionSizes {
    pub(crate) n_embd: usize,
    pub(crate) n_head: usize,
    pub(crate) n_head_kv: usize,
    pub(crate) d_k: usize,
    pub(crate) d_v: usize,
    pub(crate) eps: f32,
    pub(crate) scale: f32,
    pub(crate) rope: Rope,
}

impl AttentionSizes {
    /// Reads the usual keys. `neox`: which elements of a head turn together.
    pub(crate) fn read(keys: &Keys<'_, '_>, neox: bool) -> Result<Self, LoadError> {
        let n_embd = keys.need("embedding_length", WIDTH)?;
        let n_head = keys.need("attention.head_count", 1..=1 << 16)?;
        let n_head_kv = keys.find("attention.head_count_kv", 1..=1 << 16)?.unwrap_or(n_head);
        if n_head % n_head_kv != 0 {
            let what = format!("{n_head} query heads are no multiple of {n_head_kv} key heads");
            return Err(keys.error("attention.head_count_kv", what));
        }
        let d_k = keys.find("attention.key_length", WIDTH)?.unwrap_or(n_embd / n_head);
        let d_v = keys.find("attention.value_length", WIDTH)?.unwrap_or(n_embd / n_head);
        if d_k == 0 || d_v == 0 {
            return Err(keys.error("attention.head_count", format!("{n_head} heads of a width of {n_embd}")));
        }
        let (eps, scale, rope) = (keys.rms_eps()?, keys.attention_scale(d_k)?, keys.rope(d_k, neox)?);
        Ok(Self { n_embd, n_head, n_head_kv, d_k, d_v, eps, scale, rope })
    }

    /// The state that such a layer keeps.
    pub(crate) fn state(&self) -> LayerState {
        LayerState::Kv(Kv { n_head_kv: self.n_head_kv, d_k: self.d_k, d_v: self.d_v })
    }
}

/// The weights of one layer's attention.
pub(crate) struct PlainAttention {
    sizes: AttentionSizes,
    q: Linear,
    k: Linear,
    v: Linear,
    /// The output matrix.
    pub(crate) out: Linear,
    norms: Option<(RmsNorm, RmsNorm)>,
    /// Divides the rotation's frequencies: `[n_dims / 2]`.
    factors: Option<WeightId>,
}

impl PlainAttention {
    /// Binds the tensors of block `prefix`, such as `blk.3.`. `head_norms`: queries and keys are normed head by head.
    pub(crate) fn open(
        loader: &mut Loader<'_>,
        prefix: &str,
        sizes: &AttentionSizes,
        head_norms: bool,
    ) -> Result<Self, LoadError> {
        let name = |what: &str| format!("{prefix}{what}");
        for what in ["attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"] {
            if loader.has(&name(what)) {
                return Err(LoadError::Tensor { name: name(what), what: "biases are not supported".into() });
            }
        }
        let AttentionSizes { n_embd, n_head, n_head_kv, d_k, d_v, eps, rope, .. } = *sizes;
        let norms = if head_norms {
            let q = RmsNorm::open(loader, &name("attn_q_norm.weight"), d_k, eps)?;
            Some((q, RmsNorm::open(loader, &name("attn_k_norm.weight"), d_k, eps)?))
        } else {
            None
        };
        Ok(Self {
            q: Linear::open(loader, &name("attn_q"), n_embd, d_k * n_head)?,
            k: Linear::open(loader, &name("attn_k"), n_embd, d_k * n_head_kv)?,
            v: Linear::open(loader, &name("attn_v"), n_embd, d_v * n_head_kv)?,
            out: Linear::open(loader, &name("attn_output"), d_v * n_head, n_embd)?,
            norms,
            factors: loader.find("rope_freqs.weight", &[rope.n_dims as usize / 2])?,
            sizes: sizes.clone(),
        })
    }

    /// `x: [n_embd, n_tokens]`, normed; gives `[d_v * n_head, n_tokens]`, before the output matrix.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        let factors = self.factors.map(|f| vector(g, f));
        let rope = |x| g.rope(x, step.cells.positions, factors, &self.sizes.rope);
        let q = split_heads(g, self.q.forward(g, x), self.sizes.d_k); // [d_k, n_head, n_tokens]
        let k = split_heads(g, self.k.forward(g, x), self.sizes.d_k); // [d_k, n_head_kv, n_tokens]
        let v = split_heads(g, self.v.forward(g, x), self.sizes.d_v); // [d_v, n_head_kv, n_tokens]
        let (q, k) = match &self.norms {
            Some((q_norm, k_norm)) => (q_norm.forward(g, q), k_norm.forward(g, k)),
            None => (q, k),
        };
        attend(g, &step.cells, il, (rope(q), rope(k), v), self.sizes.scale)
    }
}
