//! File surgery: checkpoints to GGUF, NextN heads out of files and into them, what is in a file and whether it is sound.
//! Owns what becomes of tensors and metadata between files; computes no graph and never changes a file in place.
//!
//! Outputs are written beside their target and renamed when they are whole; inputs are believed only where they were
//! checked. The formats of heads in files of their own are described in `docs/FILES.md`.
//!
//! A checkpoint becomes a GGUF file in three steps: [`checkpoint::Checkpoint::open`] reads what is there,
//! [`quantize::Recipe::apply`] gives each tensor its type, [`stream::Job::run`] moves the data.
//!
//! A GGUF file is opened as a [`Source`]: [`heads`] cuts NextN heads out of it and puts them in, [`check`] says whether it
//! is sound, [`inspect`] what is in it.
#![forbid(unsafe_code)]

pub mod check;
pub mod checkpoint;
mod error;
pub mod heads;
pub mod inspect;
pub mod io;
mod model;
pub mod quantize;
pub mod safetensors;
mod source;
pub mod stream;

pub use error::Error;
pub use model::{Key, Model};
pub use source::{Source, SourceTensor};
