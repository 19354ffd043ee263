//! Matrices over activations, and the few operations on tensors that all blocks share.

use ggml::{Dtype, Graph, SMALL_FLOATS, Tensor, WeightId};

use crate::error::LoadError;
use crate::share::SharedRows;
use crate::tensors::Scope;

/// A matrix `[n_in, n_out]`, with the scale that NVFP4 files put beside it, and a bias.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    weight: WeightId,
    scale: Option<WeightId>,
    bias: Option<WeightId>,
    /// Ranks have some of its rows each ([`SharedRows`]).
    rows: Option<SharedRows>,
}

impl Linear {
    /// The same of which this rank has some rows; products have all.
    pub(crate) fn with_rows(self, rows: Option<SharedRows>) -> Self {
        Self { rows, ..self }
    }

    /// All rows of a product of which ranks have some each.
    fn gathered<'g>(&self, g: &Graph<'g>, y: Tensor<'g>) -> Tensor<'g> {
        self.rows.map_or(y, |rows| g.all_gather(y, rows.each()))
    }

    /// Asks for `{name}.weight` and, if there, `{name}.scale`.
    pub(crate) fn open(t: &mut Scope<'_, '_>, name: &str, n_in: usize, n_out: usize) -> Result<Self, LoadError> {
        Self::biased(t, name, n_in, n_out, false)
    }

    /// As [`Linear::open`]; with `bias` also for `{name}.bias`, which may be absent.
    pub(crate) fn biased(
        t: &mut Scope<'_, '_>,
        name: &str,
        n_in: usize,
        n_out: usize,
        bias: bool,
    ) -> Result<Self, LoadError> {
        let name_of_weight = format!("{name}.weight");
        let weight = t.need(&name_of_weight, &[n_in, n_out])?;
        t.updatable(&name_of_weight, weight, &[n_in, n_out]);
        let bias = if bias { t.find(&format!("{name}.bias"), &[n_out])? } else { None };
        Ok(Self { weight, scale: t.companion(&format!("{name}.scale"), &[1])?, bias, rows: None })
    }

    /// A matrix alone: `{name}.scale`, if there is one, is something else.
    pub(crate) fn unscaled(t: &mut Scope<'_, '_>, name: &str, n_in: usize, n_out: usize) -> Result<Self, LoadError> {
        let name = format!("{name}.weight");
        let weight = t.need(&name, &[n_in, n_out])?;
        t.updatable(&name, weight, &[n_in, n_out]);
        Ok(Self { weight, scale: None, bias: None, rows: None })
    }

    /// As [`Linear::biased`], or `None` when there is no such matrix.
    pub(crate) fn find(
        t: &mut Scope<'_, '_>,
        name: &str,
        n_in: usize,
        n_out: usize,
        bias: bool,
    ) -> Result<Option<Self>, LoadError> {
        match t.find(&format!("{name}.weight"), &[n_in, n_out])? {
            Some(_) => Self::biased(t, name, n_in, n_out, bias).map(Some),
            None => Ok(None),
        }
    }

    /// The matrix as a head over the embedding's rows.
    pub(crate) fn tied(embedding: WeightId) -> Self {
        Self { weight: embedding, scale: None, bias: None, rows: None }
    }

    /// The matrix itself.
    pub(crate) fn weight(&self) -> WeightId {
        self.weight
    }

    /// The first `n` rows of the result only: `x: [n_in, ..]` gives `[n, ..]`, from a window on the matrix.
    pub(crate) fn forward_first<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, n: usize) -> Tensor<'g> {
        let w = g.weight(self.weight);
        let ([n_in, ..], nb) = (w.ne(), w.nb());
        let n_here = self.rows.map_or(n, |rows| rows.n_first(n));
        let y = g.mul_mat(g.view(w, [n_in, n_here as i64, 1, 1], [nb[1], nb[2], nb[3]], 0), x);
        let y = self.gathered(g, y);
        let y = if y.ne()[0] == n as i64 { y } else { first_rows(g, y, n) };
        let y = self.scale.map_or(y, |scale| g.mul(y, vector(g, scale)));
        self.updated_rows(g, x, y, |b| {
            let ([rank, ..], nb) = (b.ne(), b.nb());
            g.view(b, [rank, n as i64, 1, 1], [nb[1], nb[2], nb[3]], 0)
        })
    }

    /// Some rows of the result: `rows: [n_in, n]` are copies of those rows of the matrix that `ids` gives (i32 `[n]`).
    pub(crate) fn forward_copies<'g>(
        &self,
        g: &Graph<'g>,
        x: Tensor<'g>,
        rows: Tensor<'g>,
        ids: impl Fn() -> Tensor<'g>,
    ) -> Tensor<'g> {
        self.updated_rows(g, x, g.mul_mat(rows, x), |b| g.get_rows(b, ids()))
    }

    /// As [`updated`] for some rows of the matrix only; `rows` takes them out of `b`.
    fn updated_rows<'g>(
        &self,
        g: &Graph<'g>,
        x: Tensor<'g>,
        y: Tensor<'g>,
        rows: impl Fn(Tensor<'g>) -> Tensor<'g>,
    ) -> Tensor<'g> {
        let updates = g.low_ranks(self.weight).into_iter().filter(|u| !u.of_rows);
        updates.fold(y, |y, u| {
            let up = g.mul_mat(rows(g.weight(u.b)), g.mul_mat(g.weight(u.a), x));
            g.add(y, g.scale(up, u.scale))
        })
    }

    /// `x: [n_in, ..]` gives `[n_out, ..]`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        self.rest(g, x, self.gathered(g, invariant_mul_mat(g, g.weight(self.weight), x)))
    }

    /// As [`Linear::forward`] for rows that are always computed together, many at a time: bits may depend on their number, and
    /// ggml's own product is faster than kernels that keep them. On a CPU F16 weights have their rows rounded to F16 there;
    /// BF16, which would leave eight bits of them, is widened to F32 first.
    pub(crate) fn forward_wide<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let w = g.weight(self.weight);
        if !w.lies_on_host() || w.dtype().is_quantized() || x.ne()[1] < WIDE {
            return self.forward(g, x);
        }
        // A copy is no weight, which the kernels would take.
        let dtype = if w.dtype() == Dtype::F16 { Dtype::F16 } else { Dtype::F32 };
        self.rest(g, x, self.gathered(g, g.mul_mat(g.cast(w, dtype), x)))
    }

    /// What follows the product `y` of the matrix and `x`.
    fn rest<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, y: Tensor<'g>) -> Tensor<'g> {
        let y = self.scale.map_or(y, |scale| g.mul(y, vector(g, scale)));
        let y = updated(g, self.weight, x, y);
        self.bias.map_or(y, |bias| g.add(y, vector(g, bias)))
    }
}

/// `y`, which is the matrix `id` times `x: [n_in, ..]`, with what the graph's low-rank updates of the matrix make of `x`.
pub(crate) fn updated<'g>(g: &Graph<'g>, id: WeightId, x: Tensor<'g>, y: Tensor<'g>) -> Tensor<'g> {
    g.low_ranks(id).into_iter().filter(|u| !u.of_rows).fold(y, |y, u| {
        let down = invariant_mul_mat(g, g.weight(u.a), x); // [rank, ..]
        let up = invariant_mul_mat(g, g.weight(u.b), down); // [n_out, ..]
        g.add(y, g.scale(up, u.scale))
    })
}

/// `y`, which is one matrix of `id` for each of `ids: [n_used, n_tokens]` times `x: [n_in, n_used or 1, n_tokens]`, with what the
/// graph's low-rank updates of the matrices make of `x`; `[n_out, n_used, n_tokens]`.
pub(crate) fn updated_experts<'g>(
    g: &Graph<'g>,
    id: WeightId,
    x: Tensor<'g>,
    ids: Tensor<'g>,
    y: Tensor<'g>,
) -> Tensor<'g> {
    g.low_ranks(id).into_iter().fold(y, |y, u| {
        let down = g.mul_mat_id(g.weight(u.a), x, ids); // [rank, n_used, n_tokens]
        g.add(y, g.scale(g.mul_mat_id(g.weight(u.b), down, ids), u.scale))
    })
}

/// Rows of the embedding `id` for `tokens: [n_tokens]`, with the graph's updates; gives `[n_embd, n_tokens]`.
pub(crate) fn embedded<'g>(g: &Graph<'g>, id: WeightId, tokens: Tensor<'g>) -> Tensor<'g> {
    let y = g.get_rows(g.weight(id), tokens);
    g.low_ranks(id).into_iter().filter(|u| u.of_rows).fold(y, |y, u| {
        let down = g.get_rows(g.weight(u.a), tokens); // [rank, n_tokens]
        g.add(y, g.scale(invariant_mul_mat(g, g.weight(u.b), down), u.scale))
    })
}

/// `w` times `x`. Where ggml computes with floats on a CPU, it takes another kernel for one row than for several. The few small
/// float matrices of a quantised model (router, decay, beta) get their one row twice there, which costs next to nothing, so
/// that drafting cannot change a reply. Large float matrices do not (docs/NUMERICS.md).
fn invariant_mul_mat<'g>(g: &Graph<'g>, w: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
    let small = w.nb()[1] * w.ne()[1] as usize <= SMALL_FLOATS;
    let one_row = x.ne()[1..] == [1, 1, 1];
    let in_parts = IN_THREES.contains(&x.ne()[1]) && x.ne()[2..] == [1, 1];
    if w.dtype() == Dtype::F32 && !w.lies_on_host() && in_parts && !g.device_keeps_rows(w, x.ne()[1] as usize) {
        return in_threes(g, w, x);
    }
    if g.row_may_stand_alone(w) || !small || !one_row {
        return g.mul_mat(w, x);
    }
    let y = g.mul_mat(w, g.concat(x, x, 1)); // [n_out, 2]
    let ([n_out, ..], nb) = (y.ne(), y.nb());
    g.view(y, [n_out, 1, 1, 1], [nb[1], nb[1], nb[1]], 0)
}

/// Each matrix of `heads: [k, m, n_head]` times the column of its number of each token of `x: [k, n_head, n_tokens]`; gives
/// `[m, n_head, n_tokens]`. A token alone is computed twice where [`invariant_mul_mat`] does so.
pub(crate) fn by_head<'g>(g: &Graph<'g>, heads: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
    let small = heads.nb()[2] * heads.ne()[2] as usize <= SMALL_FLOATS;
    if x.ne()[2] > 1 || !small || g.row_may_stand_alone(heads) {
        return g.mul_mat_by_head(heads, x);
    }
    let y = g.mul_mat_by_head(heads, g.concat(x, x, 2)); // [m, n_head, 2]
    let ([m, n_head, ..], nb) = (y.ne(), y.nb());
    g.view(y, [m, n_head, 1, 1], [nb[1], nb[2], nb[3]], 0)
}

/// Rows from which on a copy of the weight is little beside the product.
const WIDE: i64 = 64;

/// Rows that are multiplied with F32 weights on a GPU in threes, where no kernels of ours serve. Up to three, CUDA's backend has a
/// kernel for vectors; for four rows of a router it took another one, and 13 us instead of 4.
const IN_THREES: std::ops::RangeInclusive<i64> = 4..=6;

/// The first `n` rows of `y: [m, n_columns]`.
fn first_rows<'g>(g: &Graph<'g>, y: Tensor<'g>, n: usize) -> Tensor<'g> {
    let ([_, n_columns, ..], nb) = (y.ne(), y.nb());
    g.cont(g.view(y, [n as i64, n_columns, 1, 1], [nb[1], nb[2], nb[3]], 0))
}

/// `w` times three rows of `x: [n_in, n_rows]` at a time.
fn in_threes<'g>(g: &Graph<'g>, w: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
    let ([n_in, n_rows, ..], nb) = (x.ne(), x.nb());
    let rows = |first: i64| [n_in, 3.min(n_rows - first), 1, 1];
    let part = |first: i64| g.mul_mat(w, g.view(x, rows(first), [nb[1], nb[2], nb[3]], first as usize * nb[1]));
    join(g, (0..n_rows).step_by(3).map(part)).unwrap_or(x)
}

/// A weight as F32, for ops that take nothing else; vectors are F32 in nearly all files.
pub(crate) fn vector<'g>(g: &Graph<'g>, id: WeightId) -> Tensor<'g> {
    let w = g.weight(id);
    if w.dtype() == Dtype::F32 { w } else { g.cast(w, Dtype::F32) }
}

/// `parts` one after the other along the tokens, dimension 1.
pub(crate) fn join<'g>(g: &Graph<'g>, parts: impl IntoIterator<Item = Tensor<'g>>) -> Option<Tensor<'g>> {
    parts.into_iter().reduce(|all, part| g.concat(all, part, 1))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ggml::{Data, Device, Executor, Mapping, Name, WeightsBuilder};

    use super::*;

    #[test]
    fn rows_in_threes_are_the_rows() {
        let (n_in, n_out) = (8, 5);
        let bytes: Vec<u8> = (0..n_in * n_out).flat_map(|i| ((i * 37 % 11) as f32 - 5.0).to_le_bytes()).collect();
        let n_bytes = bytes.len();
        let mut builder = WeightsBuilder::new(vec![Arc::new(Mapping::Static(Vec::leak(bytes)))]);
        let w = builder.add("w", Dtype::F32, [n_in as i64, n_out as i64, 1, 1], 0, 0..n_bytes).unwrap();
        let weights = builder.build(Device::cpu().unwrap()).unwrap();
        let mut executor: Executor<(bool, usize)> = Executor::new(weights, 1).unwrap();
        for n_rows in 1..=7 {
            let x: Vec<f32> = (0..n_rows * n_in).map(|i| (i * 13 % 7) as f32 - 3.0).collect();
            let mut product = |threes: bool| {
                let build = |g: &Graph<'_>| {
                    let x = g.input("x", Dtype::F32, [n_in as i64, n_rows as i64, 1, 1]);
                    g.output("y", if threes { in_threes(g, g.weight(w), x) } else { g.mul_mat(g.weight(w), x) });
                };
                let mut y = Vec::new();
                let inputs = [(Name("x", 0), Data::F32(&x))];
                executor.run(&(threes, n_rows), 32, build, &inputs).unwrap().f32("y", &mut y).unwrap();
                y
            };
            // Small whole numbers: exact in any order.
            assert_eq!(product(true), product(false), "{n_rows} rows");
        }
    }
}
