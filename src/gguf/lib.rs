//! GGUF files: a bounded zero-copy reader, shards, and a streaming writer.
//! Owns the format: its value types, tensor types, layout rules and limits. Never maps or opens a file for reading,
//! never knows what a key or a tensor means to a model, and never sees ggml.
//!
//! The reader takes the bytes of one file and borrows from them; nothing is allocated, multiplied or indexed before it
//! was compared with the bytes that remain. It is as strict as ggml's own reader, with these differences:
//!
//! | Case | ggml | here |
//! |---|---|---|
//! | data of a tensor beyond the end of the file | accepted, the caller must look | error that counts the missing bytes |
//! | nested arrays | error | read, to a depth of [`Limits::max_depth`] |
//! | bool that is neither 0 nor 1 | taken as true | error |
//! | key or tensor name not UTF-8, with a NUL byte; empty tensor name; key over [`Limits::max_key_bytes`] | accepted | error |
//! | more than [`Limits::max_tensors`] tensors or [`Limits::max_keys`] keys | accepted | error |
//!
//! ```
//! # fn main() -> Result<(), gguf::Error> {
//! # let dir = std::env::temp_dir().join(format!("gguf-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&dir).unwrap();
//! let path = dir.join("small.gguf");
//! let mut w = gguf::Writer::create(&path)?;
//! w.add("general.architecture", "qwen35")?;
//! w.tensor("output_norm.weight", &[2], gguf::TensorType::F32)?;
//! let mut data = w.begin()?;
//! data.write_tensor("output_norm.weight", &[0; 8])?;
//! data.finish()?;
//!
//! let bytes = std::fs::read(&path).unwrap();
//! let file = gguf::Header::parse(&bytes)?;
//! assert_eq!(file.metadata().require_str("general.architecture")?, "qwen35");
//! assert_eq!(&bytes[file.tensor("output_norm.weight").unwrap().range()], &[0; 8]);
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod array;
mod cursor;
mod error;
mod header;
mod limits;
mod metadata;
mod output;
mod split;
mod tensors;
mod types;
mod value;
mod write;

pub use array::{ArrayBuf, ArrayIter, Element, StrArray, StrIter};
pub use error::Error;
pub use header::Header;
pub use limits::Limits;
pub use metadata::Metadata;
pub use output::{FileOutput, Output, is_link_or_device};
pub use split::{SplitInfo, check_shards, shard_paths};
pub use tensors::TensorInfo;
pub use types::TensorType;
pub use value::{Array, GgufStr, Value, ValueType};
pub use write::{DataWriter, Layout, TensorWriter, Writer};
