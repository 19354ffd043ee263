//! The tests of the crate in one program: most of a program's build is its linking. `large.rs` measures a process of its
//! own.

mod checkpoints;
mod converter_golden;
mod grafts;
mod header_mutations;
mod heads;
mod hostile;
mod output;
mod recipes;
mod support;
mod verify;
