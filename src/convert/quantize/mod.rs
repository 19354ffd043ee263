//! Types of tensors: what a file type like Q4_K_M means for each tensor, and importance matrices.
//! Owns the recipe; never reads numbers itself.

mod imatrix;
mod projector;
mod recipe;
mod types;

pub use imatrix::Imatrix;
pub use recipe::Recipe;
pub use types::{FileType, tensor_type};
