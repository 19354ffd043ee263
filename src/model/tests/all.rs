//! All tests of models, in one program: each further one would be linked with everything anew.

mod adapters;
mod company;
mod draft_probs;
mod expert_copies;
mod feature_heads;
mod gemma4;
mod joined_rows;
mod metal;
mod one_part_layers;
mod overrides;
mod pictures;
mod poison;
mod projector;
mod rope;
mod seen;
mod spans;
mod state;
mod support;
mod tensor_parallel;
mod threads;
mod weight_types;
mod windows;
