//! Attention of a head while it is trained: every row of a text at once, and the rows that a chain of drafts would add.
//! Source of the chain's scores: Li et al. 2025 (EAGLE-3), training-time test.

use candle_core::{D, Result, Tensor};
use model::HeadAttention;

use super::rotation::Rotation;
use super::weights::Layer;

/// Keys and values of rows, `[n_texts, n_head_kv, n_rows, d]`, keys rotated.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    k: Tensor,
    v: Tensor,
}

/// What a row sees: of `text` the rows up to its own, of each of `chain` the row of its own number.
pub(super) struct Seen<'a> {
    pub(super) text: Option<&'a Cells>,
    pub(super) chain: &'a [Cells],
    /// [`mask`] of at least as many rows.
    pub(super) mask: &'a Tensor,
}

/// Minus infinity for scores: finite, so that nothing becomes NaN.
const MASKED: f32 = -1e30;

/// `x: [n_texts, n_rows, n_embd]`, normed, at positions from `first` on; gives `[n_texts, n_rows, d_v * n_head]` before the output
/// matrix, and the cells of these rows. Without a text in `seen` the rows are the text themselves.
pub(super) fn attend(
    shape: &HeadAttention,
    (layer, rotation): (&Layer, Option<&Rotation>),
    eps: f32,
    (x, first): (&Tensor, usize),
    seen: &Seen<'_>,
) -> Result<(Tensor, Cells)> {
    let HeadAttention { n_head, n_head_kv, d_k, d_v, .. } = *shape;
    let (n_texts, n_rows, _) = x.dims3()?;
    let n_group = n_head / n_head_kv;
    let project = |name: &str| layer.linear(name, x);
    let q = project("attn_q")?;
    let (q, gate) = if shape.gate {
        let q = q.reshape((n_texts, n_rows, n_head, 2 * d_k))?;
        (q.narrow(D::Minus1, 0, d_k)?.contiguous()?, Some(q.narrow(D::Minus1, d_k, d_k)?.contiguous()?))
    } else {
        (q.reshape((n_texts, n_rows, n_head, d_k))?, None)
    };
    let k = project("attn_k")?.reshape((n_texts, n_rows, n_head_kv, d_k))?;
    let v = project("attn_v")?.reshape((n_texts, n_rows, n_head_kv, d_v))?;
    let (q, k) = if shape.qk_norm {
        (layer.norm("attn_q_norm.weight", &q, eps)?, layer.norm("attn_k_norm.weight", &k, eps)?)
    } else {
        (q, k)
    };
    let by_head = |x: Tensor| x.transpose(1, 2)?.contiguous(); // [n_texts, heads, n_rows, d]
    let turn = |x: Tensor| rotation.map_or_else(|| Ok(x.clone()), |rotation| rotation.turn(&x, first));
    let (q, k, v) = (turn(by_head(q)?)?, turn(by_head(k)?)?, by_head(v)?);
    let cells = Cells { k, v };
    let text = seen.text.unwrap_or(&cells);
    let n_cells = text.k.dim(2)?;

    let q = (q.reshape((n_texts, n_head_kv, n_group * n_rows, d_k))? * f64::from(shape.scale))?;
    let scores = q.matmul(&text.k.t()?)?; // [n_texts, n_head_kv, n_group * n_rows, n_cells]
    let scores = scores.reshape((n_texts, n_head_kv * n_group, n_rows, n_cells))?;
    // Whole rows in memory, as the library adds those fastest.
    let mask = seen.mask.narrow(0, 0, n_rows)?.narrow(1, 0, n_cells)?.contiguous()?;
    let scores = scores.broadcast_add(&mask)?;
    let q = q.reshape((n_texts, n_head_kv, n_group, n_rows, d_k))?;
    // The rows of a chain, and where this one is not of the text itself, it too.
    let own: Vec<&Cells> = match seen.text {
        Some(_) => seen.chain.iter().chain([&cells]).collect(),
        None => Vec::new(),
    };
    let cut = |x: &Tensor| x.narrow(2, 0, n_rows)?.unsqueeze(2); // [n_texts, n_head_kv, 1, n_rows, d]
    let mut parts = vec![scores];
    for cells in &own {
        let score = q.broadcast_mul(&cut(&cells.k)?)?.sum_keepdim(D::Minus1)?;
        parts.push(score.reshape((n_texts, n_head, n_rows, 1))?);
    }
    let all = softmax(&if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(&parts, D::Minus1)? })?;
    let of_text = all.narrow(D::Minus1, 0, n_cells)?.contiguous()?;
    let of_text = of_text.reshape((n_texts, n_head_kv, n_group * n_rows, n_cells))?;
    let mut o = of_text.matmul(&text.v)?.reshape((n_texts, n_head_kv, n_group, n_rows, d_v))?;
    for (i, cells) in own.iter().enumerate() {
        let share = all.narrow(D::Minus1, n_cells + i, 1)?.contiguous()?;
        let share = share.reshape((n_texts, n_head_kv, n_group, n_rows, 1))?;
        o = (o + share.broadcast_mul(&cut(&cells.v)?)?)?;
    }
    let o = o.reshape((n_texts, n_head, n_rows, d_v))?.transpose(1, 2)?.contiguous()?; // [n_texts, n_rows, n_head, d_v]
    let o = match gate {
        Some(gate) => (o * sigmoid(&gate)?)?,
        None => o,
    };
    Ok((o.reshape((n_texts, n_rows, n_head * d_v))?, cells))
}

/// Row `i` sees the cells up to `i`: `[n, n]`.
pub(super) fn mask(n: usize, like: &Tensor) -> Result<Tensor> {
    let of = |row: usize| (0..n).map(move |cell| if cell <= row { 0.0 } else { MASKED });
    Tensor::from_vec((0..n).flat_map(of).collect::<Vec<f32>>(), (n, n), like.device())?.to_dtype(like.dtype())
}

/// Over the last dimension.
pub(super) fn softmax(x: &Tensor) -> Result<Tensor> {
    let e = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?.exp()?;
    e.broadcast_div(&e.sum_keepdim(D::Minus1)?)
}

/// `1 / (1 + exp(-x))`.
pub(super) fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}
