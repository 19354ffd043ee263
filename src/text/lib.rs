//! Text and tokens: vocabulary, BPE, chat templates.
//! Owns everything between bytes and token ids; knows nothing of tensors, sequences or requests.
//!
//! | Module | Turns |
//! |---|---|
//! | [`Vocab`] | text into token ids, ids into bytes; knows special tokens by role |
//! | [`split_rules`] | names of split rules into their patterns, and back |
//! | [`Decoder`] | the bytes of successive tokens into text, without cutting a character |
//! | [`template::ChatTemplate`] | conversations into prompt text, with the boundaries where it may be cut |
#![forbid(unsafe_code)]

mod bpe;
mod byte_level;
mod decode;
mod error;
mod fallback;
mod fingerprint;
mod pretokenize;
mod spm;
pub mod template;
mod vocab;

pub use byte_level::spelled;
pub use decode::Decoder;
pub use error::Error;
pub use fingerprint::{fingerprint, hex};
pub use pretokenize::{BYTE_LEVEL_SPLIT, split_rule, split_rules};
pub use vocab::{Fim, Special, SpecialIds, TokenId, TokenKind, Vocab, VocabSource};
