//! How much of prompts was not computed, as others see it. Plain data.

/// Prompt tokens that were not computed, by where their state came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reused {
    /// The slot that the request got.
    pub n_own: u64,
    /// Copied from another slot, in use or not.
    pub n_copied: u64,
    /// From the host's memory.
    pub n_stored: u64,
    /// From the disk.
    pub n_disk: u64,
}
