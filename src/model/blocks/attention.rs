//! Attention over the KV cells of each sequence.
//! Source: Vaswani et al. 2017, with grouped heads (Ainslie et al. 2023): query head `j` reads key head `j / group`.

use ggml::{Dtype, Graph, Tensor};
use memory::Segment;

use super::linear::join;
use crate::step::AttentionInputs;

/// `x: [d * n_head, n_tokens]` as `[d, n_head, n_tokens]`.
pub(crate) fn split_heads<'g>(g: &Graph<'g>, x: Tensor<'g>, d: usize) -> Tensor<'g> {
    let [n, n_tokens, ..] = x.ne();
    g.reshape(x, [d as i64, n / d as i64, n_tokens]) // was [d * n_head, n_tokens]
}

/// Stores `k` and `v` in layer `il`'s KV cache and attends causally. `q: [d_k, n_head, n_tokens]`,
/// `k: [d_k, n_head_kv, n_tokens]`, `v: [d_v, n_head_kv, n_tokens]`, contiguous; gives `[d_v * n_head, n_tokens]`.
pub(crate) fn attend<'g>(
    g: &Graph<'g>,
    inputs: &AttentionInputs<'_, 'g>,
    il: usize,
    (q, k, v): (Tensor<'g>, Tensor<'g>, Tensor<'g>),
    scale: f32,
) -> Tensor<'g> {
    let n_tokens = k.ne()[2];
    let flat = |x: Tensor<'g>| g.reshape(x, [x.ne()[0] * x.ne()[1], n_tokens]); // was [d, n_head_kv, n_tokens]
    inputs.view.store_kv(g, il, (flat(k), flat(v)), inputs.kv_rows, inputs.v_elements);
    over_cells(g, inputs, il, q, scale, |v| v)
}

/// As [`attend`] where the values are the first elements of the keys, for all heads the same: stores `rows: [d_k, n_tokens]`
/// in layer `il`; gives `[d_v * n_head, n_tokens]`.
pub(crate) fn attend_latent<'g>(
    g: &Graph<'g>,
    inputs: &AttentionInputs<'_, 'g>,
    il: usize,
    (q, rows): (Tensor<'g>, Tensor<'g>),
    scale: f32,
) -> Tensor<'g> {
    inputs.view.store_latent(g, il, rows, inputs.kv_rows);
    over_cells(g, inputs, il, q, scale, |v| {
        let v = if v.dtype().is_quantized() { g.cast(v, Dtype::F32) } else { v };
        g.cont(g.transpose(v)) // [n_kv, d_v, 1, n_seqs]
    })
}

/// Attention of `q: [d_k, n_head, n_tokens]` over the cells of layer `il`. `transposed` gives the values as the folded form
/// reads them.
fn over_cells<'g>(
    g: &Graph<'g>,
    inputs: &AttentionInputs<'_, 'g>,
    il: usize,
    q: Tensor<'g>,
    scale: f32,
    transposed: impl Fn(Tensor<'g>) -> Tensor<'g>,
) -> Tensor<'g> {
    let segments = inputs.view.segments().iter().zip(&inputs.masks);
    let parts = segments.map(|(s, &mask)| {
        let [d_k, n_head, ..] = q.ne();
        let nb = q.nb();
        let ne = [d_k, n_head, s.n_rows as i64, s.n_seqs as i64];
        let q = g.view(q, ne, [nb[1], nb[2], nb[2] * s.n_rows], nb[2] * s.first_row);
        let q = g.permute(q, [0, 2, 1, 3]); // now [d_k, n_rows, n_head, n_seqs]
        let (Some(k), Some(v)) = (inputs.view.k(g, il, s), inputs.view.v(g, il, s)) else { return q };
        if inputs.view.v_transposed() {
            gqa_folded(g, s, (q, k, transposed(v)), mask, scale)
        } else {
            fused(g, s, (q, k, v), mask, scale)
        }
    });
    join(g, parts).unwrap_or(q)
}

/// One op for all; values in rows.
fn fused<'g>(
    g: &Graph<'g>,
    s: &Segment,
    (q, k, v): (Tensor<'g>, Tensor<'g>, Tensor<'g>),
    mask: Tensor<'g>,
    scale: f32,
) -> Tensor<'g> {
    let o = g.flash_attn(q, k, v, mask, scale); // [d_v, n_head, n_rows, n_seqs]
    let [d_v, n_head, ..] = o.ne();
    g.reshape(o, [d_v * n_head, s.n_tokens() as i64])
}

/// Two products and a softmax, with the query heads that share a key head folded into rows: each cell is read once for
/// all of them. Values are transposed. A single folded row, one query head over its own key head, is computed twice:
/// ggml's products of one row have other bits than those of several.
fn gqa_folded<'g>(
    g: &Graph<'g>,
    s: &Segment,
    (q, k, v): (Tensor<'g>, Tensor<'g>, Tensor<'g>),
    mask: Tensor<'g>,
    scale: f32,
) -> Tensor<'g> {
    let [_, n_kv, n_head_kv, _] = k.ne();
    let d_v = v.ne()[1];
    let is_single = q.ne()[1] == 1 && q.ne()[2] == n_head_kv;
    let twice = |x: Tensor<'g>| if is_single { g.concat(x, x, 1) } else { x };
    let (q, mask) = (twice(g.cont(q)), twice(mask));
    let [d_k, n_rows, n_head, n_seqs] = q.ne();
    let n_folded = n_rows * n_head / n_head_kv;
    let q = g.reshape(q, [d_k, n_folded, n_head_kv, n_seqs]); // was [d_k, n_rows, n_head, n_seqs]
    let scores = g.mul_mat(k, q); // [n_kv, n_folded, n_head_kv, n_seqs]
    let scores = g.reshape(scores, [n_kv, n_rows, n_head, n_seqs]);
    let weights = g.soft_max(scores, Some(mask), scale);
    let weights = g.reshape(weights, [n_kv, n_folded, n_head_kv, n_seqs]);
    let o = g.mul_mat(v, weights); // [d_v, n_folded, n_head_kv, n_seqs]
    let o = g.reshape(o, [d_v, n_rows, n_head, n_seqs]);
    let nb = o.nb();
    let o = g.view(o, [d_v, s.n_rows as i64, n_head, n_seqs], [nb[1], nb[2], nb[3]], 0);
    let o = g.cont(g.permute(o, [0, 2, 1, 3])); // now [d_v, n_head, n_rows, n_seqs]
    g.reshape(o, [d_v * n_head, s.n_tokens() as i64])
}
