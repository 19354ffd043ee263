//! Hyper-parameters out of metadata: prefixed with the architecture's name, range-checked, with the file's words in errors.

use std::ops::RangeInclusive;

use crate::error::LoadError;
use crate::rope_options::RopeOptions;

/// Widths that no model comes near; keeps every product of two of them far from overflow.
pub(crate) const WIDTH: RangeInclusive<u32> = 1..=1 << 22;

/// What `general.architecture` is in a projector's file.
pub(crate) const PROJECTOR: &str = "clip";

/// The most blocks that a file may have.
pub(crate) const MAX_BLOCKS: u32 = 1024;

/// The metadata of a model with its architecture's prefix.
pub(crate) struct Keys<'m, 'a> {
    meta: &'m gguf::Metadata<'a>,
    prefix: &'a str,
    rope: RopeOptions,
}

impl<'m, 'a> Keys<'m, 'a> {
    pub(crate) fn new(meta: &'m gguf::Metadata<'a>, prefix: &'a str, rope: RopeOptions) -> Self {
        Self { meta, prefix, rope }
    }

    /// What the user says over the keys of the rotation.
    pub(crate) fn rope_options(&self) -> &RopeOptions {
        &self.rope
    }

    /// The architecture's name.
    pub(crate) fn prefix(&self) -> &'a str {
        self.prefix
    }

    pub(crate) fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    pub(crate) fn error(&self, key: &str, what: impl Into<String>) -> LoadError {
        LoadError::Key { key: self.full(key), what: what.into() }
    }

    /// A number within `range`, or `None` when the key is absent.
    pub(crate) fn find(&self, key: &str, range: RangeInclusive<u32>) -> Result<Option<usize>, LoadError> {
        match self.meta.u32(&self.full(key))? {
            None => Ok(None),
            Some(n) if range.contains(&n) => Ok(Some(n as usize)),
            Some(n) => Err(self.error(key, format!("{n} found, {} to {} expected", range.start(), range.end()))),
        }
    }

    /// A number within `range`.
    pub(crate) fn need(&self, key: &str, range: RangeInclusive<u32>) -> Result<usize, LoadError> {
        self.find(key, range)?.ok_or_else(|| self.error(key, "is missing"))
    }

    /// Blocks of the file, with those of the NextN head.
    pub(crate) fn n_block(&self) -> Result<usize, LoadError> {
        self.need("block_count", 1..=MAX_BLOCKS)
    }

    /// Of the blocks, those of the NextN head, which are the last ones.
    pub(crate) fn n_nextn(&self) -> Result<usize, LoadError> {
        let (key, n_block) = ("nextn_predict_layers", self.n_block()?);
        let n_nextn = self.find(key, 0..=MAX_BLOCKS)?.unwrap_or(0);
        if n_nextn >= n_block {
            let what = format!("{n_nextn} of {n_block} blocks leave none for the target model");
            return Err(self.error(key, what));
        }
        Ok(n_nextn)
    }

    /// Positions that the model was trained for.
    pub(crate) fn n_ctx_train(&self) -> Result<usize, LoadError> {
        self.need("context_length", 1..=1 << 28)
    }

    /// A number for each of `n` layers: one for all, or an array. `None` when the key is absent.
    pub(crate) fn per_layer(
        &self,
        key: &str,
        n: usize,
        range: RangeInclusive<u32>,
    ) -> Result<Option<Vec<usize>>, LoadError> {
        match self.meta.get(&self.full(key)) {
            Some(gguf::Value::Array(_)) => {}
            _ => return Ok(self.find(key, range)?.map(|v| vec![v; n])),
        }
        let values = self.meta.u32_array(&self.full(key))?.unwrap_or_default();
        if values.len() != n {
            return Err(self.error(key, format!("{} values found, {n} expected (one for each block)", values.len())));
        }
        match values.iter().find(|v| !range.contains(v)) {
            Some(v) => Err(self.error(key, format!("{v} found, {} to {} expected", range.start(), range.end()))),
            None => Ok(Some(values.into_iter().map(|v| v as usize).collect())),
        }
    }

    /// A flag for each of `n` layers; `None` when the key is absent.
    pub(crate) fn flags(&self, key: &str, n: usize) -> Result<Option<Vec<bool>>, LoadError> {
        let Some(flags) = self.meta.bool_array(&self.full(key))? else { return Ok(None) };
        if flags.len() != n {
            return Err(self.error(key, format!("{} flags found, {n} expected (one for each block)", flags.len())));
        }
        Ok(Some(flags))
    }

    /// As [`Keys::flags`], where the flags may be numbers: 0 for no, 1 for yes; or one number in place of an array: the
    /// period in which a no comes last.
    pub(crate) fn pattern(&self, key: &str, n: usize) -> Result<Option<Vec<bool>>, LoadError> {
        match self.meta.get(&self.full(key)) {
            Some(gguf::Value::Array(array)) if array.elem_type() != gguf::ValueType::Bool => {
                Ok(self.per_layer(key, n, 0..=1)?.map(|numbers| numbers.into_iter().map(|n| n == 1).collect()))
            }
            Some(gguf::Value::Array(_)) | None => self.flags(key, n),
            _ => {
                let period = self.find(key, 0..=MAX_BLOCKS)?;
                Ok(period.map(|period| (0..n).map(|il| period == 0 || !(il + 1).is_multiple_of(period)).collect()))
            }
        }
    }

    /// A list of numbers, as long as it is; `None` when the key is absent.
    pub(crate) fn find_numbers(&self, key: &str) -> Result<Option<Vec<u32>>, LoadError> {
        Ok(self.meta.u32_array(&self.full(key))?)
    }

    /// A list of 1 to `most` numbers.
    pub(crate) fn numbers(&self, key: &str, most: usize) -> Result<Vec<usize>, LoadError> {
        let numbers = self.find_numbers(key)?.ok_or_else(|| self.error(key, "is missing"))?;
        match numbers.len() {
            n if (1..=most).contains(&n) => Ok(numbers.into_iter().map(|n| n as usize).collect()),
            n => Err(self.error(key, format!("{n} numbers found, 1 to {most} expected"))),
        }
    }

    /// The token that stands for one that is not known.
    pub(crate) fn mask_token(&self, n_vocab: usize) -> Result<u32, LoadError> {
        let key = "tokenizer.ggml.mask_token_id";
        let error = |what: String| LoadError::Key { key: key.into(), what };
        match self.meta.u32(key)? {
            Some(id) if (id as usize) < n_vocab => Ok(id),
            Some(id) => Err(error(format!("{id} found, the vocabulary has {n_vocab} tokens"))),
            None => Err(error("is missing".into())),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        Ok(self.meta.bool(&self.full(key))?)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        Ok(self.meta.str(&self.full(key))?)
    }

    /// A list of texts; `None` when the key is absent.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<String>>, LoadError> {
        let Some(texts) = self.meta.str_array(&self.full(key))? else { return Ok(None) };
        Ok(Some(texts.iter_str().map(|text| text.map(str::to_owned)).collect::<Result<_, _>>()?))
    }

    /// A finite number within `range`, or `None` when the key is absent.
    pub(crate) fn float(&self, key: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, LoadError> {
        match self.meta.f32(&self.full(key))? {
            None => Ok(None),
            Some(v) if range.contains(&v) => Ok(Some(v)),
            Some(v) => Err(self.error(key, format!("{v} found, {} to {} expected", range.start(), range.end()))),
        }
    }

    /// A limit for each of `n` layers: one for all, or an array; 0 is none, as is a file without the key.
    pub(crate) fn limits(&self, key: &str, n: usize) -> Result<Vec<Option<f32>>, LoadError> {
        let values = match self.meta.get(&self.full(key)) {
            Some(gguf::Value::Array(_)) => self.meta.f32_array(&self.full(key))?.unwrap_or_default(),
            _ => vec![self.float(key, 0.0..=1e6)?.unwrap_or(0.0); n],
        };
        if values.len() != n {
            return Err(self.error(key, format!("{} values found, {n} expected (one for each block)", values.len())));
        }
        match values.iter().find(|v| !(0.0..=1e6).contains(*v)) {
            Some(v) => Err(self.error(key, format!("{v} found, 0 to 1000000 expected"))),
            None => Ok(values.into_iter().map(|v| (v > 0.0).then_some(v)).collect()),
        }
    }

    /// The epsilon of all RMS norms, under its name or that of layer norms.
    pub(crate) fn rms_eps(&self) -> Result<f32, LoadError> {
        let key = "attention.layer_norm_rms_epsilon";
        let found = match self.float(key, 1e-12..=0.1)? {
            None => self.float("attention.layer_norm_epsilon", 1e-12..=0.1)?,
            found => found,
        };
        found.ok_or_else(|| self.error(key, "is missing"))
    }

    /// Tokens of the vocabulary: `vocab_size`, or as many as are listed; `None` where the file has neither.
    pub(crate) fn n_vocab(&self) -> Result<Option<usize>, LoadError> {
        match self.find("vocab_size", 0..=u32::MAX)? {
            None => Ok(self.meta.array("tokenizer.ggml.tokens")?.map(|tokens| tokens.len())),
            n_vocab => Ok(n_vocab),
        }
    }

    /// Factor on attention scores: `attention.scale`, or `1 / sqrt(d_k)` when absent or 0.
    pub(crate) fn attention_scale(&self, d_k: usize) -> Result<f32, LoadError> {
        let scale = self.float("attention.scale", 0.0..=1e4)?.filter(|&s| s > 0.0);
        Ok(scale.unwrap_or(1.0 / (d_k as f32).sqrt()))
    }
}
