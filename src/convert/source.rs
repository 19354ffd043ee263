//! Models as sources: a GGUF file, all shards of one, or a checkpoint as the file that it would become. Keys are owned,
//! tensors know where their numbers come from.
//! Owns opening and the joining of shards; knows no key and no tensor by name, but for the tokenizer's fingerprint.

use std::path::{Path, PathBuf};

use ggml::{Dtype, Mapping};
use gguf::{Header, Metadata, SplitInfo, TensorType};

use crate::error::Error;
use crate::gguf_model::{Key, Model, metadata};
use crate::io::Input;
use crate::stream::{Piece, Stored, TensorPlan};

/// A model that was opened: its header is read and sound, its data is not looked at.
///
/// ```
/// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pocket-moe-q8_0.gguf");
/// let model = convert::Source::open(file.as_ref())?;
/// assert_eq!(model.inputs.len(), 1, "of shards there are more");
/// assert_eq!(model.text("general.architecture"), Some("qwen35moe"));
/// println!("{} tensors", model.tensors.len());
/// # Ok::<(), convert::Error>(())
/// ```
#[derive(Debug)]
pub struct Source {
    /// As it was asked for; of several shards the first.
    pub path: PathBuf,
    /// Of the GGUF format: 2 or 3.
    pub version: u32,
    /// In the order of the (first) file.
    pub keys: Vec<(String, Key)>,
    /// In the order of the files.
    pub tensors: Vec<SourceTensor>,
    /// The files.
    pub inputs: Vec<Input>,
    /// Bytes behind the end of the last tensor and its padding, of all files.
    pub surplus_bytes: u64,
    /// What [`text::fingerprint`] gives; of a checkpoint nothing.
    pub tokenizer: Option<String>,
}

/// A tensor of a [`Source`].
#[derive(Clone, Debug)]
pub struct SourceTensor {
    /// Unique among all shards.
    pub name: String,
    /// The dimensions that the file states, fastest first.
    pub ne: Vec<u64>,
    /// How its elements are stored; of a checkpoint the type that keeps them.
    pub dtype: TensorType,
    /// Bytes of its data in the files.
    pub n_bytes: u64,
    /// Where its numbers come from.
    data: Data,
}

#[derive(Clone, Debug)]
enum Data {
    /// They lie in input `file` from offset `at` on.
    Stored { file: usize, at: u64 },
    /// They are made of those of a checkpoint.
    Made(Box<TensorPlan>),
}

impl Source {
    /// Opens a GGUF file; with all shards, when it is the first of several.
    ///
    /// # Errors
    /// A file is missing, no regular file, or not as the format says; shards do not belong together.
    pub fn open(path: &Path) -> Result<Source, Error> {
        let (first, map) = open(path)?;
        let header = Header::parse(map.bytes()).map_err(|e| Error::gguf(path, e))?;
        let split = SplitInfo::of(&header).map_err(|e| Error::gguf(path, e))?;
        let paths = match &split {
            None => vec![path.to_owned()],
            Some(info) => gguf::shard_paths(path, info).map_err(|e| Error::gguf(path, e))?,
        };
        let mut inputs = vec![first];
        let mut maps = vec![map];
        for path in &paths[1..] {
            let (input, map) = open(path)?;
            inputs.push(input);
            maps.push(map);
        }
        let mut headers = Vec::with_capacity(maps.len());
        for (path, map) in paths.iter().zip(&maps) {
            headers.push(Header::parse(map.bytes()).map_err(|e| Error::gguf(path, e))?);
        }
        if split.is_some() {
            gguf::check_shards(&headers).map_err(|e| Error::gguf(path, e))?;
        }
        let mut tensors = Vec::new();
        let mut surplus_bytes = 0;
        for (file, (header, input)) in headers.iter().zip(&inputs).enumerate() {
            tensors.extend(header.tensors().iter().map(|t| SourceTensor {
                name: t.name.to_owned(),
                ne: t.dims().to_vec(),
                dtype: t.dtype,
                n_bytes: t.n_bytes,
                data: Data::Stored { file, at: t.offset },
            }));
            let end = header.tensors().last().map_or(header.data_start(), |t| t.offset + t.n_bytes);
            surplus_bytes += input.n_bytes().saturating_sub(end.next_multiple_of(header.alignment()));
        }
        let meta = headers[0].metadata();
        let tokenizer = text::fingerprint(meta).map_err(|e| Error::input(path, e.to_string()))?;
        let keys = meta.iter().map(|(key, value)| (key.to_owned(), Key::from(*value))).collect();
        let (path, version) = (path.to_owned(), headers[0].version());
        Ok(Source { path, version, keys, tensors, inputs, surplus_bytes, tokenizer })
    }

    /// A model that was made, as the file that it would become.
    pub fn of_model(path: &Path, model: Model) -> Source {
        let Model { keys, tensors, inputs, side_inputs: _, version } = model;
        let tensors = tensors.into_iter().map(|plan| SourceTensor {
            name: plan.name.clone(),
            ne: plan.ne.clone(),
            dtype: plan.dtype,
            n_bytes: plan.source_bytes(),
            data: Data::Made(Box::new(plan)),
        });
        let (path, tensors) = (path.to_owned(), tensors.collect());
        Source { path, version, keys, tensors, inputs, surplus_bytes: 0, tokenizer: None }
    }

    /// The model as it is, to be written as one file.
    ///
    /// # Errors
    /// ggml does not know a tensor's type.
    pub fn into_model(self) -> Result<Model, Error> {
        let tensors = self.tensors.iter().map(|t| t.plan(0)).collect::<Result<_, _>>()?;
        Ok(Model {
            keys: self.model_keys(),
            tensors,
            inputs: self.inputs,
            side_inputs: Vec::new(),
            version: self.version,
        })
    }

    /// All keys but those that tell of shards: one file is made of them.
    pub(crate) fn model_keys(&self) -> Vec<(String, Key)> {
        self.keys.iter().filter(|(key, _)| !key.starts_with("split.")).cloned().collect()
    }

    /// All keys, as those of one file.
    pub(crate) fn metadata(&self) -> Metadata<'_> {
        metadata(&self.keys)
    }

    /// The value of a key.
    pub fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The text of a key that is a string in UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.key(name)? {
            Key::Str(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&SourceTensor> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// Bytes of all files.
    pub fn n_bytes(&self) -> u64 {
        self.inputs.iter().map(Input::n_bytes).sum()
    }
}

impl SourceTensor {
    /// Elements of a row.
    pub fn row_len(&self) -> u64 {
        self.ne.first().copied().unwrap_or(1)
    }

    /// All elements.
    pub fn n_elements(&self) -> u64 {
        self.ne.iter().product()
    }

    /// Rows of `ne[0]` elements; 0 when there are no elements.
    pub fn n_rows(&self) -> u64 {
        self.n_elements().checked_div(self.row_len()).unwrap_or(0)
    }

    /// The tensor as it is, for a new file that has the inputs of this source from number `file_base` on.
    ///
    /// # Errors
    /// ggml does not know its type.
    pub fn plan(&self, file_base: usize) -> Result<TensorPlan, Error> {
        let (file, at) = match &self.data {
            Data::Stored { file, at } => (file_base + file, *at),
            Data::Made(plan) => {
                let mut plan = TensorPlan::clone(plan);
                plan.shift_files(file_base);
                return Ok(plan);
            }
        };
        let dtype = Dtype::from_id(self.dtype.id()).map_err(|e| Error::tensor(&self.name, e.to_string()))?;
        let piece = Piece { file, at, stored: Stored::Ggml(dtype), n_rows: self.n_rows(), every: 1, scale: None };
        Ok(TensorPlan::of(self.name.clone(), self.ne.clone(), self.dtype, piece, self.row_len()))
    }
}

/// The file twice: for reading at places, and as bytes for its header.
fn open(path: &Path) -> Result<(Input, Mapping), Error> {
    if path.is_dir() {
        let what = "is a folder, a GGUF file expected; `extract-nextn convert` makes one of a checkpoint";
        return Err(Error::input(path, what));
    }
    let input = Input::open(path)?;
    if input.n_bytes() == 0 {
        return Err(Error::input(path, "is empty, a GGUF file expected"));
    }
    let map = Mapping::open(path).map_err(|e| Error::input(path, e.to_string()))?;
    Ok((input, map))
}
