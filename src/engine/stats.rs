//! What an engine has done and holds, as others see it. Plain data.

use std::time::Duration;

use crate::reused::Reused;

/// What an engine has done since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineStats {
    /// Engine steps that computed something.
    pub n_steps: u64,
    /// Tokens of the main model's forward passes.
    pub n_tokens: u64,
    /// Sequences that had tokens in those steps, over all steps.
    pub n_busy: u64,
    /// Time in steps, from taking commands and picking the tokens to handing out the events.
    pub step: Duration,
    /// ggml's computation: of that, but for drafts that are made beside the engine.
    pub compute: Duration,
    /// Graphs launched: forward passes, and those of drafts.
    pub n_launches: u64,
    /// Graphs built.
    pub n_builds: u64,
    /// Bytes brought to the device and back.
    pub n_bytes_copied: u64,
    /// Bytes of sequence state if all sequences fill the context.
    pub state_bytes: usize,
    /// Of these, what takes memory now.
    pub taken_bytes: usize,
    /// What they may take at most.
    pub state_limit: usize,
    /// Resting sequences that had to leave their slot for want of memory.
    pub n_evicted: u64,
    /// Times that a running sequence had to wait for memory.
    pub n_paused: u64,
    /// Bytes of compute buffers.
    pub compute_bytes: usize,
    /// Bytes of checkpoints of the sequences in slots.
    pub checkpoint_bytes: usize,
    /// Prompt tokens that were not computed, by where their state came from.
    pub reused: Reused,
    /// Bytes of stored sequences.
    pub stored_bytes: usize,
    /// Experts with copies on a GPU (`--expert-cache`): the share of lately wanted ones that had a copy; `None` without copies.
    pub copies_found: Option<f64>,
}
