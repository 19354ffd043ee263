//! llama.cpp's own endpoints, a file each.

pub(crate) mod completion;
pub(crate) mod infill;
pub(crate) mod lora;
pub(crate) mod metrics;
pub(crate) mod props;
pub(crate) mod rerank;
pub(crate) mod slots;
pub(crate) mod tokens;
