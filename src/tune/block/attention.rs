//! Attention of a head while it is trained: every row of a text at once, and the rows that a chain of drafts would add.
//! Source of the chain's scores: Li et al. 2025 (EAGLE-3), training-time test.

use candle_core::{D, Result, Tensor};
use model::HeadAttention;

use super::queries::{Cells, Queries};
use super::rotation::Positions;
use super::weights::Layer;

/// What a row sees: of `text` the rows that the mask leaves, of each of `chain` the row of its own number.
pub(super) struct Seen<'a> {
    pub(super) text: Option<&'a Cells>,
    /// Those within the window.
    pub(super) chain: &'a [Cells],
    /// [`mask`] of at least as many rows.
    pub(super) mask: &'a Tensor,
}

/// What rows of texts of one length see.
pub(super) struct Sight {
    window: Option<usize>,
    mask: Tensor,
    /// Places by which the rows of the mask stand after those of the text.
    ahead: usize,
}

impl Sight {
    /// In texts of `n` tokens, through a window, if there is one.
    pub(super) fn new(n: usize, window: Option<usize>, like: &Tensor) -> Result<Self> {
        Ok(Self { window, mask: mask(n, 0, window, like)?, ahead: 0 })
    }

    /// Rows that stand `ahead` places after those of `text`, at the end of `chain`.
    pub(super) fn of<'a>(&'a mut self, ahead: usize, text: Option<&'a Cells>, chain: &'a [Cells]) -> Result<Seen<'a>> {
        // Without a window one is for all drafts: on a GPU each would be a copy from the host.
        if ahead != self.ahead && self.window.is_some() {
            self.mask = mask(self.mask.dim(0)?, ahead, self.window, &self.mask)?;
            self.ahead = ahead;
        }
        let n_seen = self.window.map_or(chain.len(), |window| chain.len().min(window.saturating_sub(1)));
        Ok(Seen { text, chain: &chain[chain.len() - n_seen..], mask: &self.mask })
    }
}

/// Minus infinity for scores: finite, so that nothing becomes NaN.
const MASKED: f32 = -1e30;

/// `x: [n_texts, n_rows, n_embd]`, normed, at positions from `first` on; gives `[n_texts, n_rows, d_v * n_head]` before the output
/// matrix, and the cells of these rows. Without a text in `seen` the rows are the text themselves.
pub(super) fn attend(
    shape: &HeadAttention,
    (layer, positions): (&Layer, &Positions),
    eps: f32,
    (x, first): (&Tensor, usize),
    seen: &Seen<'_>,
) -> Result<(Tensor, Cells)> {
    let (n_texts, n_rows, _) = x.dims3()?;
    let Queries { q, cells, gate } = Queries::of(shape, (layer, eps), x, |x| positions.turn(x, first))?;
    let q = (positions.lengthened(q, first)? * f64::from(shape.scale))?;
    let sinks = if shape.sinks { Some(layer.get("attn_sinks.weight")?) } else { None };
    let o = mixed(&q, sinks, &cells, seen)?; // [n_texts, n_head, n_rows, d_v]
    let o = if shape.value_scale == 1.0 { o } else { (o * f64::from(shape.value_scale))? };
    let o = o.transpose(1, 2)?.contiguous()?; // [n_texts, n_rows, n_head, d_v]
    let o = match gate {
        Some(gate) => o.broadcast_mul(&sigmoid(&gate)?)?,
        None => o,
    };
    Ok((o.reshape((n_texts, n_rows, shape.n_head * shape.d_v))?, cells))
}

/// The values of all that is seen, by a softmax of their scores and of those in `sinks: [n_head]`. `q: [n_texts, n_head, n_rows,
/// d_k]` times the factor on scores, `cells` are those of the same rows; gives `[n_texts, n_head, n_rows, d_v]`.
fn mixed(q: &Tensor, sinks: Option<&Tensor>, cells: &Cells, seen: &Seen<'_>) -> Result<Tensor> {
    let (n_texts, n_head, n_rows, d_k) = q.dims4()?;
    let (n_head_kv, d_v) = (cells.k.dim(1)?, cells.v.dim(D::Minus1)?);
    let n_group = n_head / n_head_kv;
    let text = seen.text.unwrap_or(cells);
    let n_cells = text.k.dim(2)?;

    let folded = q.reshape((n_texts, n_head_kv, n_group * n_rows, d_k))?;
    let scores = folded.matmul(&text.k.t()?)?; // [n_texts, n_head_kv, n_group * n_rows, n_cells]
    let scores = scores.reshape((n_texts, n_head, n_rows, n_cells))?;
    // Whole rows in memory, as the library adds those fastest.
    let mask = seen.mask.narrow(0, 0, n_rows)?.narrow(1, 0, n_cells)?.contiguous()?;
    let mut parts = vec![scores.broadcast_add(&mask)?];
    // The rows of a chain, and where this one is not of the text itself, it too.
    let own: Vec<&Cells> = match seen.text {
        Some(_) => seen.chain.iter().chain([cells]).collect(),
        None => Vec::new(),
    };
    let cut = |x: &Tensor| x.narrow(2, 0, n_rows)?.unsqueeze(2); // [n_texts, n_head_kv, 1, n_rows, d]
    let q = q.reshape((n_texts, n_head_kv, n_group, n_rows, d_k))?;
    for cells in &own {
        let score = q.broadcast_mul(&cut(&cells.k)?)?.sum_keepdim(D::Minus1)?;
        parts.push(score.reshape((n_texts, n_head, n_rows, 1))?);
    }
    if let Some(sinks) = sinks {
        parts.push(sinks.reshape((1, n_head, 1, 1))?.broadcast_as((n_texts, n_head, n_rows, 1))?.contiguous()?);
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
    o.reshape((n_texts, n_head, n_rows, d_v))
}

/// Row `i`, which stands `ahead` places after cell `i`, sees the cells up to `i` that are within the window: `[n, n]`.
fn mask(n: usize, ahead: usize, window: Option<usize>, like: &Tensor) -> Result<Tensor> {
    let sees = |row: usize, cell: usize| cell <= row && window.is_none_or(|window| row + ahead - cell < window);
    let of = |row: usize| (0..n).map(move |cell| if sees(row, cell) { 0.0 } else { MASKED });
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
