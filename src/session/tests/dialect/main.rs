//! Dialects: which one a model has, what its replies are taken apart into, and that its grammars and templates agree with its parser.
#![allow(clippy::duplicate_mod, reason = "fuzz targets of two crates share a small vocabulary")]

mod calls;
mod families;
mod fuzz;
mod hostile;
mod qwen;
mod streams;
mod support;
mod table;
mod templates;
mod turns;
mod vocab;
