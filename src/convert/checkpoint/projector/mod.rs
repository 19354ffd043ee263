//! Projectors of checkpoints that see: the tower as a file of its own, as llama.cpp's converter writes it with `--mmproj`.
//! A kind of tower is one file here and one row in the table. Never decides types of tensors; that is a recipe's.

mod gemma3;
mod gemma4;
mod opened;
mod plan;
mod qwen;
mod row;
mod table;

pub use opened::Projector;
