//! Speculation: the NextN head and other sources of drafts.
//! Owns how tokens are guessed ahead. Knows nothing of HTTP, and nothing of sampling: the engine judges every draft.
#![forbid(unsafe_code)]

mod depth;
mod nextn;
mod noise;
mod vocab;

pub use nextn::{Depth, NextN, NextNConfig};
pub use vocab::DraftVocabSize;
