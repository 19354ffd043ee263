//! `nextn` the library: every floor of the house under one name, for Rust programs.

pub use engine;
pub use ggml;
pub use gguf;
pub use memory;
pub use model;
pub use text;
