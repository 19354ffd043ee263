//! Speculation: the NextN head and other sources of drafts.
//! Owns how tokens are guessed ahead. Knows nothing of HTTP, and nothing of sampling: the engine judges every draft.
#![forbid(unsafe_code)]

mod alarm;
mod both;
mod config;
mod depth;
mod entries;
mod nextn;
mod ngram;
mod noise;
mod saved;
mod vocab;
mod worker;

pub use both::NextNgram;
pub use config::{DraftMode, Mode, SpecConfig, SpecError, kept, proposer};
pub use nextn::{Depth, GuessOn, NextN, NextNConfig};
pub use ngram::Ngram;
pub use vocab::DraftVocabSize;
pub use worker::Aside;
