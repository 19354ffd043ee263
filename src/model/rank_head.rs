//! The rank head: what a model that compares a query with a document has in place of an output matrix.
//! Owns its weights and what follows them. Knows no pooling.
//! Source: llama.cpp's classification head; an optional layer with tanh, then a row of weights for each class.

use crate::blocks::Linear;
use crate::error::{LoadError, RunError};
use crate::keys::Keys;
use crate::pooling::{Pooling, pooling};
use crate::tensors::Tensors;

/// The weights.
pub(crate) struct RankHead {
    /// `cls`: `[n_embd, n_embd]`, or `[n_embd, n_classes]` where it is all there is.
    dense: Option<Linear>,
    /// `cls.output`: `[n_embd, n_classes]`.
    out: Option<Linear>,
    n_classes: usize,
    /// The numbers of the classes are probabilities.
    softmax: bool,
}

/// Architectures whose classes are weighed against each other.
const SOFTMAX: &[&str] = &["qwen3"];

impl RankHead {
    /// The head of a file whose metadata speak of one; `None` where they do not, or where its tensors are missing: the model
    /// can do all else then.
    pub(crate) fn find(keys: &Keys<'_, '_>, t: &mut Tensors<'_>, n_embd: usize) -> Result<Option<Self>, LoadError> {
        let labels = keys.texts("classifier.output_labels")?;
        if labels.is_none() && pooling(keys)? != Some(Pooling::Rank) {
            return Ok(None);
        }
        let n_classes = labels.map_or(1, |labels| labels.len()).max(1);
        let globals = &mut t.globals();
        globals.refuse("cls.norm.weight", "a norm in the rank head is not supported")?;
        let out = Linear::find(globals, "cls.output", n_embd, n_classes, true)?;
        let n_dense = if out.is_some() { n_embd } else { n_classes };
        let dense = Linear::find(globals, "cls", n_embd, n_dense, true)?;
        if dense.is_none() && out.is_none() {
            return Ok(None);
        }
        Ok(Some(Self { dense, out, n_classes, softmax: SOFTMAX.contains(&keys.prefix()) }))
    }

    pub(crate) fn n_classes(&self) -> usize {
        self.n_classes
    }

    /// The numbers of the classes, `[n_classes, n]`, for pooled hidden states `[n_embd, n]`. `product` multiplies a matrix with
    /// columns of so many elements.
    pub(crate) fn scores(
        &self,
        pooled: &[f32],
        n_embd: usize,
        mut product: impl FnMut(&Linear, usize, &[f32]) -> Result<Vec<f32>, RunError>,
    ) -> Result<Vec<f32>, RunError> {
        let mut x = match &self.dense {
            Some(dense) => product(dense, n_embd, pooled)?.into_iter().map(f32::tanh).collect(),
            None => pooled.to_vec(),
        };
        if let Some(out) = &self.out {
            x = product(out, n_embd, &x)?;
        }
        if self.softmax {
            x.chunks_exact_mut(self.n_classes).for_each(softmax);
        }
        Ok(x)
    }
}

fn softmax(x: &mut [f32]) {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - most).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}
