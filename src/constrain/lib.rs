//! Structured output: JSON schemas, regular expressions, choices, grammars and tool calls as constraints of answers.
//! Owns how they are checked, compiled and walked over the vocabulary. Knows nothing of HTTP and of how tokens are picked.
//!
//! A [`Spec`] says what an answer must be made of; a [`Compiler`], one for each vocabulary, turns it into an
//! [`engine::Grammar`] that a request carries. Everything that comes from outside is bounded: size and depth are checked
//! before anything is built, building runs on a thread of its own with a large stack and has a deadline, and so has every
//! mask. What goes wrong is an [`Error`], or ends the one answer.
#![forbid(unsafe_code)]

mod compiler;
mod document;
mod error;
mod gbnf;
pub mod lark;
mod limits;
mod rules;
mod spec;
mod turns;
mod walk;
mod watch;
mod words;

pub use compiler::Compiler;
pub use document::{Document, constants};
pub use error::Error;
pub use limits::Limits;
pub use rules::Rules;
pub use spec::{Kind, Lead, Spec, Written};
