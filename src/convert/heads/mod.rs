//! NextN heads between GGUF files: cut out, put in, taken away.
//! Owns the layouts of `docs/FILES.md` and the promise that the ways back give the original bytes.

pub mod expect;
pub(crate) mod extract;
pub(crate) mod facts;
mod graft;
pub(crate) mod keys;
mod new_file;
mod retype;
mod strip;

pub(crate) use extract::vocab_size;
pub use extract::{Extract, extract};
pub use facts::{Content, Facts, Layout};
pub(crate) use facts::{block_of, is_known};
pub use graft::{Graft, HeadSource, graft};
pub use new_file::NewFile;
pub use retype::WeightType;
pub use strip::strip;
