//! Safetensors files: a bounded reader of their headers, one file or a folder of shards with its index.
//! Owns the format and its limits; knows nothing of what a tensor means. Data is read where a caller asks, never mapped.
//!
//! A file is eight bytes of length, a header in JSON, then the data. What is refused: a header over
//! [`MAX_HEADER_BYTES`] or longer than the file, more than [`MAX_TENSORS`] tensors, a name twice, a type that is not
//! known, a size that is not shape times type, data outside of the file, tensors that overlap or leave gaps; of an index,
//! names of shards that are not plain file names, shards that are missing, tensors that are not where it says.

mod dtype;
mod file;
mod header;
mod shards;

pub use dtype::Dtype;
pub use file::File;
pub(crate) use header::quoted;
pub use header::{Header, MAX_HEADER_BYTES, MAX_TENSORS, Tensor};
pub(crate) use shards::{EXTENSION, INDEX, are_consolidated};
pub use shards::{Place, Shards};
