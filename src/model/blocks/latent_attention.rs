//! Multi-head latent attention: what is kept of a position is one row for all heads, a normed low-rank image of its keys and
//! values beside a rotated part of the key. Source: DeepSeek-V2 (2024).
//!
//! The matrices that would make keys and values of a row are multiplied with queries and outputs instead ("absorbed"), so
//! that attention runs over the rows as they are kept. Files of before that split lack the one on the side of the queries:
//! with these, keys and values are made and kept for every head.

use ggml::{Graph, Rope, Scores, Tensor, WeightId};
use memory::{Kv, LayerState};

use super::attention::{attend, attend_latent, split_heads};
use super::linear::{Linear, by_head};
use super::rms_norm::RmsNorm;
use super::temperature::Temperature;
use crate::error::LoadError;
use crate::head_shape::{HeadAttention, HeadLatent};
use crate::keys::{Keys, WIDTH};
use crate::rope::{rope_and_scores, rotation_of_head};
use crate::step::AttentionInputs;
use crate::tensors::Scope;

/// Sizes and constants of one block's latent attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentConfig {
    n_embd: usize,
    pub(crate) n_head: usize,
    /// Width of the queries' low-rank image; `None` where they are made at once.
    n_q_lora: Option<usize>,
    /// Width of that of keys and values.
    n_kv_lora: usize,
    /// Elements of a key that are not rotated.
    d_nope: usize,
    /// Elements of a key that are.
    d_rope: usize,
    d_v: usize,
    /// The matrices of keys and values are two, one for each head.
    split: bool,
    eps: f32,
    scale: f32,
    temperature: Option<Temperature>,
    rope: Rope,
}

impl LatentConfig {
    /// Those of each block.
    pub(crate) fn read(keys: &Keys<'_, '_>, n_block: usize) -> Result<Vec<Self>, LoadError> {
        let n_embd = keys.need("embedding_length", WIDTH)?;
        let n_head = keys.per_layer("attention.head_count", n_block, 1..=1 << 16)?;
        let n_head = n_head.ok_or_else(|| keys.error("attention.head_count", "is missing"))?;
        let n_kv_lora = keys.need("attention.kv_lora_rank", WIDTH)?;
        let d_rope = keys.need("rope.dimension_count", WIDTH)?;
        let d_k_mla = keys.find("attention.key_length_mla", 0..=1 << 22)?.filter(|&d| d > 0);
        let d_v_mla = keys.find("attention.value_length_mla", 0..=1 << 22)?.filter(|&d| d > 0);
        let split = d_k_mla.is_some() && d_v_mla.is_some();
        let (d_k, d_v) = match (d_k_mla, d_v_mla) {
            (Some(d_k), Some(d_v)) => (d_k, d_v),
            _ => (keys.need("attention.key_length", WIDTH)?, keys.need("attention.value_length", WIDTH)?),
        };
        if d_k <= d_rope {
            let key = if split { "attention.key_length_mla" } else { "attention.key_length" };
            return Err(keys.error(key, format!("{d_k} found, more than the {d_rope} rotated elements expected")));
        }
        if let Some(width) = keys.find("attention.key_length", WIDTH)?.filter(|&n| split && n != n_kv_lora + d_rope) {
            let what = format!("{width} found, {n_kv_lora} + {d_rope} expected");
            return Err(keys.error("attention.key_length", what));
        }
        let (rope, of_scores) = rope_and_scores(keys, d_rope)?;
        if rope.n_dims as usize != d_rope {
            return Err(keys.error("rope.dimension_count", format!("{} of {d_rope} elements", rope.n_dims)));
        }
        let config = Self {
            n_embd,
            n_head: 0,
            n_q_lora: keys.find("attention.q_lora_rank", 0..=1 << 22)?.filter(|&n| n > 0),
            n_kv_lora,
            d_nope: d_k - d_rope,
            d_rope,
            d_v,
            split,
            eps: keys.rms_eps()?,
            scale: of_scores * keys.attention_scale(d_k)?,
            temperature: Temperature::read(keys)?,
            rope,
        };
        Ok(n_head.into_iter().map(|n_head| Self { n_head, ..config }).collect())
    }

    /// As a NextN head has it.
    pub(crate) fn shape(&self) -> HeadAttention {
        let Self { n_head, n_kv_lora, d_nope, d_rope, d_v, scale, .. } = *self;
        let latent = HeadLatent { n_kv_lora, d_rope, low_rank_q: self.n_q_lora.is_some(), by_head: self.split };
        HeadAttention {
            n_head,
            n_head_kv: n_head,
            d_k: d_nope + d_rope,
            d_v,
            scale,
            window: None,
            sinks: false,
            value_scale: 1.0,
            qk_norm: false,
            gate: None,
            rotation: rotation_of_head(&self.rope, false),
            temperature: self.temperature.map(|t| t.shape()),
            latent: Some(latent),
        }
    }

    /// The state that such a layer keeps.
    pub(crate) fn state(&self) -> LayerState {
        let d_k = self.d_nope + self.d_rope;
        LayerState::Kv(match self.split {
            true => {
                let (d_k, d_v) = (self.n_kv_lora + self.d_rope, self.n_kv_lora);
                Kv { n_head_kv: 1, d_k, d_v, window: None, latent: true }
            }
            false => Kv { n_head_kv: self.n_head, d_k, d_v: self.d_v, window: None, latent: false },
        })
    }
}

/// The weights of one block's latent attention.
pub(crate) struct LatentAttention {
    config: LatentConfig,
    q: Query,
    /// The row's low-rank part and rotated part.
    row: Linear,
    row_norm: RmsNorm,
    heads: Heads,
    /// The output matrix.
    pub(crate) out: Linear,
}

enum Query {
    Whole(Linear),
    LowRank { down: Linear, norm: RmsNorm, up: Linear },
}

/// What makes keys and values of a row's low-rank part.
enum Heads {
    /// Matrices of each head: `k: [d_nope, n_kv_lora, n_head]`, applied to queries, `v: [n_kv_lora, d_v, n_head]`, applied to
    /// outputs.
    Absorbed { k: WeightId, v: WeightId },
    /// For each head its key, then its value.
    Joint(Linear),
}

impl LatentAttention {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, config: LatentConfig) -> Result<Self, LoadError> {
        let LatentConfig { n_embd, n_head, n_kv_lora, d_nope, d_rope, d_v, eps, .. } = config;
        let n_q = (d_nope + d_rope) * n_head;
        for name in ["attn_q.bias", "attn_q_a.bias", "attn_q_b.bias", "attn_kv_a_mqa.bias", "attn_output.bias"] {
            t.refuse(name, "biases are not supported")?;
        }
        let q = match config.n_q_lora {
            None => Query::Whole(Linear::open(t, "attn_q", n_embd, n_q)?),
            Some(n) => Query::LowRank {
                down: Linear::open(t, "attn_q_a", n_embd, n)?,
                norm: RmsNorm::open(t, "attn_q_a_norm", n, eps)?,
                up: Linear::open(t, "attn_q_b", n, n_q)?,
            },
        };
        let heads = match config.split {
            true => Heads::Absorbed {
                k: t.need("attn_k_b.weight", &[d_nope, n_kv_lora, n_head])?,
                v: t.need("attn_v_b.weight", &[n_kv_lora, d_v, n_head])?,
            },
            false => Heads::Joint(Linear::open(t, "attn_kv_b", n_kv_lora, n_head * (d_nope + d_v))?),
        };
        Ok(Self {
            q,
            row: Linear::open(t, "attn_kv_a_mqa", n_embd, n_kv_lora + d_rope)?,
            row_norm: RmsNorm::open(t, "attn_kv_a_norm", n_kv_lora, eps)?,
            heads,
            out: Linear::open(t, "attn_output", d_v * n_head, n_embd)?,
            config,
        })
    }

    /// `x: [n_embd, n_tokens]`, normed; gives `[d_v * n_head, n_tokens]`, before the output matrix. The rows are those of
    /// layer `il` of the state.
    pub(crate) fn forward<'g>(
        &self,
        g: &Graph<'g>,
        inputs: &AttentionInputs<'_, 'g>,
        il: usize,
        x: Tensor<'g>,
    ) -> Tensor<'g> {
        let LatentConfig { n_head, n_kv_lora, d_nope, d_rope, d_v, scale, .. } = self.config;
        let scores = Scores::scaled(scale);
        let n_tokens = x.ne()[1];
        let rope = |x| g.rope(x, inputs.positions, None, &self.config.rope);
        let lengthened = |q| self.config.temperature.map_or(q, |t| t.scaled(g, q, inputs.positions));
        let q = match &self.q {
            Query::Whole(q) => q.forward(g, x),
            Query::LowRank { down, norm, up } => up.forward(g, norm.forward(g, down.forward(g, x))),
        };
        let q = split_heads(g, q, d_nope + d_rope); // [d_nope + d_rope, n_head, n_tokens]
        let (q_nope, q_rope) = (elements(g, q, 0, d_nope), rope(elements(g, q, d_nope, d_rope)));
        let row = self.row.forward(g, x); // [n_kv_lora + d_rope, n_tokens]
        let row = g.reshape(row, [row.ne()[0], 1, n_tokens]);
        let c = self.row_norm.forward(g, elements(g, row, 0, n_kv_lora)); // [n_kv_lora, 1, n_tokens]
        let k_rope = rope(elements(g, row, n_kv_lora, d_rope)); // [d_rope, 1, n_tokens]
        match &self.heads {
            Heads::Absorbed { k, v } => {
                let q = g.concat(by_head(g, g.weight(*k), q_nope), q_rope, 0); // [n_kv_lora + d_rope, n_head, n_tokens]
                let rows = g.reshape(g.concat(c, k_rope, 0), [(n_kv_lora + d_rope) as i64, n_tokens]);
                let o = attend_latent(g, inputs, il, (lengthened(q), rows), &scores); // [n_kv_lora * n_head, n_tokens]
                let o = by_head(g, g.weight(*v), split_heads(g, o, n_kv_lora)); // [d_v, n_head, n_tokens]
                g.reshape(o, [(d_v * n_head) as i64, n_tokens])
            }
            Heads::Joint(kv) => {
                let kv = kv.forward(g, g.reshape(c, [n_kv_lora as i64, n_tokens]));
                let kv = split_heads(g, kv, d_nope + d_v); // [d_nope + d_v, n_head, n_tokens]
                let k_rope = g.repeat(k_rope, q_rope); // [d_rope, n_head, n_tokens]
                let k = g.concat(elements(g, kv, 0, d_nope), k_rope, 0); // [d_nope + d_rope, n_head, n_tokens]
                let v = g.cont(elements(g, kv, d_nope, d_v)); // [d_v, n_head, n_tokens]
                let q = g.concat(q_nope, q_rope, 0);
                attend(g, inputs, il, (lengthened(q), k, v), &scores)
            }
        }
    }
}

/// Elements `[first, first + n)` of each head of `x: [d, n_head, n_tokens]`, a view.
fn elements<'g>(g: &Graph<'g>, x: Tensor<'g>, first: usize, n: usize) -> Tensor<'g> {
    let ([_, n_head, n_tokens, _], nb) = (x.ne(), x.nb());
    g.view(x, [n as i64, n_head, n_tokens, 1], [nb[1], nb[2], nb[3]], first * nb[0])
}
