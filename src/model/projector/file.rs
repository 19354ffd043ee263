//! The file that a tower is opened over: its keys, its tensors, and what has to be known of them before they are bound.

use gguf::Metadata;
use vision::{Budget, Filter, Processor};

use super::shape::TowerShape;
use crate::error::LoadError;
use crate::keys::{Keys, MAX_BLOCKS, WIDTH};
use crate::rope_options::RopeOptions;
use crate::tensors::Tensors;

/// What a tower is opened with.
pub(crate) struct ProjectorFile<'f, 'm, 'a> {
    /// Under `clip.vision.`.
    pub(crate) keys: Keys<'m, 'a>,
    pub(crate) meta: &'m Metadata<'a>,
    pub(crate) tensors: &'f mut Tensors<'a>,
    pub(crate) known: Known<'f>,
}

/// What is known of tensors by name, whether they are bound or not.
#[derive(Clone, Copy)]
pub(crate) struct Known<'f> {
    /// Dimension 1.
    pub(crate) n_rows: &'f dyn Fn(&str) -> Option<u64>,
    /// The value of a tensor of one F32 number; `None` for any other, and where there is no data.
    pub(crate) number: &'f dyn Fn(&str) -> Option<f32>,
}

/// The kind of tower that a file says it holds; `None` where it says nothing.
pub(crate) fn projector_type<'a>(meta: &Metadata<'a>) -> Result<Option<&'a str>, LoadError> {
    match meta.str("clip.projector_type")? {
        None => Ok(meta.str("clip.vision.projector_type")?),
        found => Ok(found),
    }
}

impl<'f, 'm, 'a> ProjectorFile<'f, 'm, 'a> {
    pub(crate) fn new(meta: &'m Metadata<'a>, tensors: &'f mut Tensors<'a>, known: Known<'f>) -> Self {
        Self { keys: Keys::new(meta, "clip.vision", RopeOptions::default()), meta, tensors, known }
    }

    /// The sizes that all towers have, with blocks of `merge` x `merge` patches; heads are a multiple of `per_head` wide.
    pub(crate) fn shape(&self, merge: usize, budget: Budget, per_head: usize) -> Result<TowerShape, LoadError> {
        let keys = &self.keys;
        let n_embd = keys.need("embedding_length", WIDTH)?;
        let n_head = keys.need("attention.head_count", 1..=1024)?;
        if !n_embd.is_multiple_of(n_head * per_head) {
            let what = format!("{n_head} heads do not divide {n_embd} elements into multiples of {per_head}");
            return Err(keys.error("attention.head_count", what));
        }
        let [mean, std] = ["image_mean", "image_std"].map(|key| self.three(key));
        let std = std?;
        if std.iter().any(|&s| s <= 0.0) {
            return Err(keys.error("image_std", format!("{std:?} found, numbers above 0 expected")));
        }
        Ok(TowerShape {
            processor: Processor {
                patch: keys.need("patch_size", 1..=256)?,
                merge,
                mean: mean?,
                std,
                budget,
                filter: Filter::Bicubic,
            },
            n_embd_text: keys.need("projection_dim", WIDTH)?,
            n_embd,
            n_ff: keys.need("feed_forward_length", WIDTH)?,
            n_layer: keys.need("block_count", 1..=MAX_BLOCKS)?,
            n_head,
            max_side: None,
        })
    }

    /// A number for each channel.
    fn three(&self, key: &str) -> Result<[f32; 3], LoadError> {
        let found = self.meta.f32_array(&self.keys.full(key))?.ok_or_else(|| self.keys.error(key, "is missing"))?;
        match <[f32; 3]>::try_from(found.as_slice()) {
            Ok(three) if three.iter().all(|x| x.is_finite()) => Ok(three),
            _ => Err(self.keys.error(key, format!("{found:?} found, three finite numbers expected"))),
        }
    }
}
