//! Tensors on their way from files into a file: where rows come from, what is done to them, what they become.
//! Owns the order of work, its memory and what is left when it is broken off; knows no model and no name of a tensor.
//!
//! A [`TensorPlan`] says for each row of the new tensor which row of which file it is. The file is cut into slabs of
//! rows; threads read, compute and write one slab each at a time, so memory does not grow with the model. What a slab
//! becomes depends on nothing but the plan: a run that is broken off and taken up again gives the same file.

mod own;
mod part;
mod rows;
mod run;
mod tensor;

pub(crate) use rows::Worker;
pub(crate) use run::MAX_ROW_ELEMENTS;
pub use run::{Control, Job, OnFailure, Watcher, available_threads, write_tensor};
pub use tensor::{Importance, Map, Piece, Run, Scale, Stored, TensorPlan, Turned};
