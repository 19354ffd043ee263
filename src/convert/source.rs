//! GGUF files as sources: one file, or all shards of a model, with keys that are owned and tensors that know their place.
//! Owns opening and the joining of shards; knows no key and no tensor by name, but for the tokenizer's fingerprint.

use std::path::{Path, PathBuf};

use ggml::{Dtype, Mapping};
use gguf::{Header, SplitInfo, TensorType};

use crate::error::Error;
use crate::io::Input;
use crate::model::Key;
use crate::stream::{Piece, Stored, TensorPlan};

/// A GGUF model that was opened: its header is read and sound, its data is not looked at.
///
/// ```no_run
/// # fn main() -> Result<(), convert::Error> {
/// let model = convert::Source::open("model-00001-of-00003.gguf".as_ref())?;
/// println!("{} tensors in {} files", model.tensors.len(), model.inputs.len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Source {
    /// As it was asked for; of several shards the first.
    pub path: PathBuf,
    /// Of the format: 2 or 3.
    pub version: u32,
    /// Every tensor starts at a multiple of it.
    pub alignment: u64,
    /// In the order of the (first) file.
    pub keys: Vec<(String, Key)>,
    /// In the order of the files.
    pub tensors: Vec<SourceTensor>,
    /// The files.
    pub inputs: Vec<Input>,
    /// Bytes of all headers, up to the data.
    pub header_bytes: u64,
    /// Bytes behind the end of the last tensor and its padding, of all files.
    pub surplus_bytes: u64,
    /// What [`text::fingerprint`] gives.
    pub tokenizer: Option<String>,
}

/// A tensor of a [`Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// Unique among all shards.
    pub name: String,
    /// The dimensions that the file states, fastest first.
    pub ne: Vec<u64>,
    /// How its elements are stored.
    pub dtype: TensorType,
    /// Index of its file among the inputs.
    pub file: usize,
    /// Offset of its data in that file.
    pub at: u64,
    /// Bytes of its data.
    pub n_bytes: u64,
}

impl Source {
    /// Opens a file; with all shards, when it is the first of several.
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
        let (mut header_bytes, mut surplus_bytes) = (0, 0);
        for (file, (header, input)) in headers.iter().zip(&inputs).enumerate() {
            tensors.extend(header.tensors().iter().map(|t| SourceTensor {
                name: t.name.to_owned(),
                ne: t.dims().to_vec(),
                dtype: t.dtype,
                file,
                at: t.offset,
                n_bytes: t.n_bytes,
            }));
            let end = header.tensors().last().map_or(header.data_start(), |t| t.offset + t.n_bytes);
            header_bytes += header.data_start();
            surplus_bytes += input.n_bytes().saturating_sub(end.next_multiple_of(header.alignment()));
        }
        let meta = headers[0].metadata();
        let tokenizer = text::fingerprint(meta).map_err(|e| Error::input(path, e.to_string()))?;
        let keys = meta.iter().map(|(key, value)| (key.to_owned(), Key::from(*value))).collect();
        let (version, alignment) = (headers[0].version(), headers[0].alignment());
        let path = path.to_owned();
        Ok(Source { path, version, alignment, keys, tensors, inputs, header_bytes, surplus_bytes, tokenizer })
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

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.n_bytes.checked_div(self.n_rows()).unwrap_or(0)
    }

    /// The tensor as it is, for a new file that has this one's file as input number `file_base + self.file`.
    ///
    /// # Errors
    /// ggml does not know its type.
    pub fn plan(&self, file_base: usize) -> Result<TensorPlan, Error> {
        let dtype = Dtype::from_id(self.dtype.id()).map_err(|e| Error::tensor(&self.name, e.to_string()))?;
        let piece = Piece {
            file: file_base + self.file,
            at: self.at,
            stored: Stored::Ggml(dtype),
            n_rows: self.n_rows(),
            scale: None,
        };
        Ok(TensorPlan::of(self.name.clone(), self.ne.clone(), self.dtype, piece, self.row_len()))
    }
}

/// The file twice: for reading at places, and as bytes for its header.
fn open(path: &Path) -> Result<(Input, Mapping), Error> {
    let input = Input::open(path)?;
    if input.n_bytes() == 0 {
        return Err(Error::input(path, "is empty, a GGUF file expected"));
    }
    let map = Mapping::open(path).map_err(|e| Error::input(path, e.to_string()))?;
    Ok((input, map))
}
