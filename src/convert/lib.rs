//! File surgery: checkpoints to GGUF, NextN heads out of files and into them, what is in a file and whether it is
//! sound. Owns what becomes of tensors and metadata between files; computes no graph and never changes a file in place.
//!
//! Outputs are written beside their target and renamed when they are whole; inputs are believed only where they were
//! checked. The formats of heads in files of their own are described in `docs/FILES.md`.
//!
//! A checkpoint becomes a GGUF file in three steps: [`checkpoint::Checkpoint::open`] reads what is there,
//! [`quantize::Recipe::apply`] gives each tensor its type, [`stream::Job::run`] moves the data.
//!
//! A GGUF file is opened as a [`Source`]: [`heads`] cuts NextN heads out of it and puts them in, [`Source::into_model`]
//! gives it to a recipe. [`check`] says whether a model of any [`Kind`] is sound, [`inspect`] what is in it.
//!
//! ```
//! use convert::Source;
//! use convert::check::{Options, Verdict, verify};
//! use convert::heads::{Extract, Graft, HeadSource, Layout, WeightType, extract, graft, strip};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = |name: &str| dir.path().join(name);
//! let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pocket-q4_k_m.gguf").as_ref();
//! let (head, stripped, whole) = (path("head.gguf"), path("model.gguf"), path("whole.gguf"));
//! let how = Extract { layout: Layout::Slim, dtype: WeightType::Keep };
//! extract(Source::open(model)?, how)?.write(&head, 2, &Default::default())?;
//! strip(Source::open(model)?)?.write(&stripped, 2, &Default::default())?;
//! let new = graft(Source::open(&stripped)?, HeadSource::open(&head)?, Graft::default())?;
//! new.write(&whole, 2, &Default::default())?;
//!
//! assert!(std::fs::read(model).unwrap() == std::fs::read(&whole).unwrap(), "the ways back give the same bytes");
//! let report = verify(&stripped, Options { values: true, n_threads: 2 }, &Default::default())?;
//! assert_eq!(report.verdict, Verdict::NoHead);
//! # Ok::<(), convert::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod check;
pub mod checkpoint;
mod error;
mod gguf_model;
pub mod heads;
pub mod inspect;
pub mod io;
mod json;
mod kind;
pub mod quantize;
pub mod safetensors;
mod source;
pub mod stream;

pub use error::Error;
pub use gguf_model::{Key, Model};
pub use kind::Kind;
pub use source::{Source, SourceTensor};
