//! What a check reports: the verdict, and the sentences that explain it.

use std::path::PathBuf;

use serde::Serialize;

use super::tensors::Gate;

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The file; of several shards the first.
    pub path: PathBuf,
    /// In one word, for programs.
    pub verdict: Verdict,
    /// Architecture, if the header could be read.
    pub architecture: Option<String>,
    /// The kind of tower, of a projector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projector: Option<String>,
    /// Tensors against those that the metadata promise; absent for architectures that are not known.
    pub gate: Option<Gate>,
    /// What is wrong, worst first.
    pub damage: Vec<String>,
    /// What is odd and may be right.
    pub notes: Vec<String>,
    /// Bytes of tensor data whose numbers were looked at.
    pub bytes_read: u64,
}

/// The outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A sound file with a complete NextN head; a sound projector.
    Complete,
    /// A sound file without one.
    NoHead,
    /// Something is missing or wrong.
    Damaged,
}
