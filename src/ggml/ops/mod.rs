//! Ops: each checks its operands as ggml would assert them, then makes one call.
//! Shapes are in ggml order, fastest dimension first.

mod all_reduce;
mod attention;
mod basic;
mod cells;
mod checks;
mod expert_copies;
mod ids;
mod mask;
mod matmul;
mod noise;
mod norm;
mod own_kernels;
mod recurrent;
mod rope;
mod shape;

pub use attention::Scores;
pub use cells::Cells;
pub use expert_copies::ExpertCopies;
pub use noise::NoiseKey;
pub use own_kernels::kernels_in_use;
pub use recurrent::{
    DeltaRule, LoggedStep, Logs, PastState, Snapshots, SsmScan, log_capacity, log_entry_bytes, replay,
    take_state_numbers,
};
pub use rope::Rope;
