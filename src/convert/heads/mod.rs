//! NextN heads between GGUF files: cut out, put in, taken away.
//! Owns the layouts of `docs/FILES.md` and the promise that the ways back give the original bytes.

mod expected;
mod extract;
mod graft;
mod info;
pub(crate) mod keys;
mod new_file;
mod new_head;
mod retype;
mod strip;

pub(crate) use expected::{cut_vocab, expected, vocab_size};
pub use extract::{Extract, extract};
pub use graft::{Graft, HeadSource, graft};
pub(crate) use info::is_known;
pub use info::{Content, Layout, ModelInfo, is_assistant, is_draft_head};
pub use new_file::NewFile;
pub use new_head::NewHead;
pub use retype::WeightType;
pub use strip::strip;
