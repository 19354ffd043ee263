//! What attention of a head reads of its rows: queries, and the keys and values of every head.
//! Source of the low-rank images: DeepSeek-V2 (2024). Keys and values are made of them for each head here, where the runtime
//! multiplies queries and outputs with the same matrices instead.

use candle_core::{D, Result, Tensor};
use model::{HeadAttention, HeadGate, HeadLatent};

use super::weights::Layer;

/// Queries `[n_texts, n_head, n_rows, d_k]`, the cells of the same rows, and what the output is gated by: `[n_texts, n_rows,
/// n_head, d_v or 1]`.
pub(super) struct Queries {
    pub(super) q: Tensor,
    pub(super) cells: Cells,
    pub(super) gate: Option<Tensor>,
}

/// Keys and values of rows, `[n_texts, n_head_kv, n_rows, d]`, keys rotated.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    pub(super) k: Tensor,
    pub(super) v: Tensor,
}

impl Queries {
    /// Of `x: [n_texts, n_rows, n_embd]`, normed. `turn` rotates rows of heads, `[n_texts, n_head, n_rows, d]`.
    pub(super) fn of(
        shape: &HeadAttention,
        (layer, eps): (&Layer, f32),
        x: &Tensor,
        turn: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        match &shape.latent {
            Some(latent) => Self::latent(shape, latent, (layer, eps), x, turn),
            None => Self::grouped(shape, (layer, eps), x, turn),
        }
    }

    fn grouped(
        shape: &HeadAttention,
        (layer, eps): (&Layer, f32),
        x: &Tensor,
        turn: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let HeadAttention { n_head, n_head_kv, d_k, d_v, gate, .. } = *shape;
        let (n_texts, n_rows, _) = x.dims3()?;
        let n_q = if gate == Some(HeadGate::Elements) { 2 * d_k } else { d_k };
        let [q, k, v] = projected(layer, x, [n_head * n_q, n_head_kv * d_k, n_head_kv * d_v])?;
        let q = q.reshape((n_texts, n_rows, n_head, n_q))?;
        let k = k.reshape((n_texts, n_rows, n_head_kv, d_k))?;
        let gate = match gate {
            Some(HeadGate::Elements) => Some(elements(&q, d_k, d_k)?),
            Some(HeadGate::Heads) => Some(layer.linear("attn_gate", x)?.unsqueeze(3)?),
            None => None,
        };
        let q = elements(&q, 0, d_k)?;
        let (q, k) = if shape.qk_norm {
            (layer.norm("attn_q_norm.weight", &q, eps)?, layer.norm("attn_k_norm.weight", &k, eps)?)
        } else {
            (q, k)
        };
        let v = by_head(&v.reshape((n_texts, n_rows, n_head_kv, d_v))?)?;
        Ok(Self { q: turn(&by_head(&q)?)?, cells: Cells { k: turn(&by_head(&k)?)?, v }, gate })
    }

    fn latent(
        shape: &HeadAttention,
        latent: &HeadLatent,
        (layer, eps): (&Layer, f32),
        x: &Tensor,
        turn: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let HeadAttention { n_head, d_k, .. } = *shape;
        let HeadLatent { n_kv_lora, d_rope, low_rank_q, .. } = *latent;
        let (n_texts, n_rows, _) = x.dims3()?;
        let d_nope = d_k - d_rope;
        let q = if low_rank_q {
            layer.linear("attn_q_b", &layer.norm("attn_q_a_norm.weight", &layer.linear("attn_q_a", x)?, eps)?)?
        } else {
            layer.linear("attn_q", x)?
        };
        let q = by_head(&q.reshape((n_texts, n_rows, n_head, d_k))?)?;
        let q = Tensor::cat(&[elements(&q, 0, d_nope)?, turn(&elements(&q, d_nope, d_rope)?)?], D::Minus1)?;

        let row = layer.linear("attn_kv_a_mqa", x)?; // [n_texts, n_rows, n_kv_lora + d_rope]
        let image = layer.norm("attn_kv_a_norm.weight", &elements(&row, 0, n_kv_lora)?, eps)?;
        let rotated = turn(&elements(&row, n_kv_lora, d_rope)?.unsqueeze(1)?)?; // [n_texts, 1, n_rows, d_rope]
        let (k, v) = keys_and_values(shape, latent, layer, &image)?;
        let rotated = rotated.broadcast_as((n_texts, n_head, n_rows, d_rope))?.contiguous()?;
        let k = Tensor::cat(&[by_head(&k)?, rotated], D::Minus1)?;
        Ok(Self { q, cells: Cells { k, v: by_head(&v)? }, gate: None })
    }
}

/// Queries, keys and values, `[n_texts, n_rows, n]` for each of `ns`: by three matrices, or by one with the rows of all.
fn projected(layer: &Layer, x: &Tensor, ns: [usize; 3]) -> Result<[Tensor; 3]> {
    let [n_q, n_k, n_v] = ns;
    if !layer.has("attn_qkv.weight") {
        return Ok([layer.linear("attn_q", x)?, layer.linear("attn_k", x)?, layer.linear("attn_v", x)?]);
    }
    let all = layer.linear("attn_qkv", x)?;
    Ok([elements(&all, 0, n_q)?, elements(&all, n_q, n_k)?, elements(&all, n_q + n_k, n_v)?])
}

/// The parts of keys that are not rotated, and values: `[n_texts, n_rows, n_head, d]`, of `image: [n_texts, n_rows, n_kv_lora]`.
fn keys_and_values(
    shape: &HeadAttention,
    latent: &HeadLatent,
    layer: &Layer,
    image: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let HeadAttention { n_head, d_k, d_v, .. } = *shape;
    let (n_texts, n_rows, n_kv_lora) = image.dims3()?;
    let d_nope = d_k - latent.d_rope;
    let heads = |x: Tensor, d: usize| x.reshape((n_texts, n_rows, n_head, d));
    if !latent.by_head {
        let both = heads(layer.linear("attn_kv_b", image)?, d_nope + d_v)?;
        return Ok((elements(&both, 0, d_nope)?, elements(&both, d_nope, d_v)?));
    }
    let image = image.reshape((n_texts * n_rows, n_kv_lora))?;
    // Of each head the matrix by which the runtime turns its queries into the image's width.
    let of_keys = layer.matrices("attn_k_b", n_head)?.transpose(0, 1)?.contiguous()?; // [n_kv_lora, n_head, d_nope]
    let k = image.matmul(&of_keys.reshape((n_kv_lora, n_head * d_nope))?)?;
    let of_values = layer.matrices("attn_v_b", n_head)?; // [n_head, d_v, n_kv_lora]
    let v = image.matmul(&of_values.reshape((n_head * d_v, n_kv_lora))?.t()?)?;
    Ok((heads(k, d_nope)?, heads(v, d_v)?))
}

/// `[n_texts, n_rows, n_head, d]` as `[n_texts, n_head, n_rows, d]`.
fn by_head(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.contiguous()
}

/// Elements `[first, first + n)` of the last dimension.
fn elements(x: &Tensor, first: usize, n: usize) -> Result<Tensor> {
    x.narrow(D::Minus1, first, n)?.contiguous()
}
