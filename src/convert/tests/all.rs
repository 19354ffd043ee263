//! The tests of the crate in one program: most of a program's build is its linking. `large.rs` measures a process of its
//! own.

mod checkpoints;
mod converter_golden;
mod families;
mod feature_heads;
mod grafts;
mod header_mutations;
mod heads;
mod hostile;
mod llama_pieces;
mod made_projectors;
mod mistral_own;
mod nemotron;
mod next;
mod output;
mod packed_experts;
mod pieces;
mod projectors;
mod recipes;
mod several_layers;
mod support;
mod verify;

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../tests/support/tiny.rs"]
mod tiny;
#[path = "../../../tests/support/projector.rs"]
mod tiny_projector;
#[path = "../../../tests/support/words.rs"]
mod words;
