//! What is kept of finished replies, and how a head learns from them. Plain data.

use std::path::PathBuf;
use std::time::Duration;

/// Where replies are kept, and how much of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnOptions {
    /// The folder, which is made where there is none.
    pub folder: PathBuf,
    /// Bytes of all files in it, those of other models included.
    pub n_bytes: u64,
    /// Have the head learn from them while no request waits.
    pub live: Option<LiveOptions>,
}

/// How a head learns while no request waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOptions {
    /// The program that trains: `nextn-tune`.
    pub program: PathBuf,
    /// Tokens that a round learns from.
    pub n_tokens: u32,
    /// Tokens of new replies after which another round begins.
    pub n_new: u32,
    /// Tokens of the latest replies to measure on, at most half of all.
    pub n_held_out: u32,
    /// A round begins, and goes on, when no request has come for so long.
    pub idle: Duration,
    /// Host memory of the program beside the model's file, in MiB.
    pub n_mib: u32,
}
