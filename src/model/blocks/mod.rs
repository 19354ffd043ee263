//! Blocks: structs of weights with a `forward`, shared by the architectures.
//! Activations are `[n_embd, n_tokens]` unless a line says otherwise.

mod attention;
mod delta_net;
mod ffn;
mod moe;
mod plain_attention;

pub(crate) use attention::{attend, split_heads};
pub(crate) use delta_net::{DeltaNet, DeltaNetSizes};
pub(crate) use ffn::{Ffn, GatedFfn};
pub(crate) use moe::{MoeFfn, MoeSizes};
pub(crate) use plain_attention::{AttentionSizes, PlainAttention};

use ggml::{Dtype, Graph, Tensor, WeightId};

use crate::error::LoadError;
use crate::load::Loader;

/// A matrix `[n_in, n_out]`, with the scale that NVFP4 files put beside it.
pub(crate) struct Linear {
    weight: WeightId,
    scale: Option<WeightId>,
}

impl Linear {
    /// Binds `{name}.weight` and, if there, `{name}.scale`.
    pub(crate) fn open(loader: &mut Loader<'_>, name: &str, n_in: usize, n_out: usize) -> Result<Self, LoadError> {
        let weight = loader.need(&format!("{name}.weight"), &[n_in, n_out])?;
        Ok(Self { weight, scale: loader.find(&format!("{name}.scale"), &[1])? })
    }

    /// As [`Linear::open`], or `None` when there is no such matrix.
    pub(crate) fn find(
        loader: &mut Loader<'_>,
        name: &str,
        n_in: usize,
        n_out: usize,
    ) -> Result<Option<Self>, LoadError> {
        if !loader.has(&format!("{name}.weight")) {
            return Ok(None);
        }
        Self::open(loader, name, n_in, n_out).map(Some)
    }

    /// The matrix as a head over the embedding's rows.
    pub(crate) fn tied(embedding: WeightId) -> Self {
        Self { weight: embedding, scale: None }
    }

    /// The matrix itself.
    pub(crate) fn weight(&self) -> WeightId {
        self.weight
    }

    /// The first `n` rows of the result only: `x: [n_in, ..]` gives `[n, ..]`, from a window on the matrix.
    pub(crate) fn forward_first<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, n: usize) -> Tensor<'g> {
        let w = g.weight(self.weight);
        let ([n_in, ..], nb) = (w.ne(), w.nb());
        let y = g.mul_mat(g.view(w, [n_in, n as i64, 1, 1], [nb[1], nb[2], nb[3]], 0), x);
        self.scale.map_or(y, |scale| g.mul(y, vector(g, scale)))
    }

    /// `x: [n_in, ..]` gives `[n_out, ..]`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let y = invariant_mul_mat(g, g.weight(self.weight), x);
        self.scale.map_or(y, |scale| g.mul(y, vector(g, scale)))
    }
}

/// Float weights up to this size are multiplied so that a row has the same bits alone and in company.
const SMALL_BYTES: usize = 1 << 20;

/// `w` times `x`. Where ggml computes with floats on a CPU, it takes another kernel for one row than for several. The few small
/// float matrices of a quantised model (router, decay, beta) get their one row twice there, which costs next to nothing, so
/// that drafting cannot change an answer. Large float matrices do not (docs/NUMERICS.md).
fn invariant_mul_mat<'g>(g: &Graph<'g>, w: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
    let small = w.nb()[1] * w.ne()[1] as usize <= SMALL_BYTES;
    let one_row = x.ne()[1..] == [1, 1, 1];
    if g.row_may_stand_alone(w) || !small || !one_row {
        return g.mul_mat(w, x);
    }
    let y = g.mul_mat(w, g.concat(x, x, 1)); // [n_out, 2]
    let ([n_out, ..], nb) = (y.ne(), y.nb());
    g.view(y, [n_out, 1, 1, 1], [nb[1], nb[1], nb[1]], 0)
}

/// RMS norm over dim 0, times a weight of that length.
pub(crate) struct RmsNorm {
    weight: WeightId,
    eps: f32,
}

impl RmsNorm {
    /// Binds `name`, a vector of `n`.
    pub(crate) fn open(loader: &mut Loader<'_>, name: &str, n: usize, eps: f32) -> Result<Self, LoadError> {
        Ok(Self { weight: loader.need(name, &[n])?, eps })
    }

    /// `x: [n, ..]`; gives the shape of `x`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        g.mul(g.rms_norm(x, self.eps), vector(g, self.weight))
    }
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
