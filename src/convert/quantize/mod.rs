//! Types of tensors: what a file type like Q4_K_M means for each tensor, importance matrices, GGUF files as sources.
//! Owns the recipe; never reads numbers itself.

mod imatrix;
mod recipe;
mod source;
mod types;

pub use imatrix::Imatrix;
pub use recipe::Recipe;
pub use source::open;
pub use types::{FileType, tensor_type};
