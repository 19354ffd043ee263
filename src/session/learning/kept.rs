//! A file of kept replies: lines of JSON, the first of which says whose tokens they are. Owns names of fields and of files.

use engine::FinishedReply;
use serde::{Deserialize, Serialize};

/// The first line of a file.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Head {
    pub(super) format: String,
    pub(super) version: u32,
    /// The model's fingerprint.
    pub(super) model: String,
    pub(super) n_vocab: usize,
}

/// Any other line: a reply as token ids.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct KeptReply {
    /// The end of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens of the prompt that stood before it and were left out.
    #[serde(default, skip_serializing_if = "is_none")]
    pub n_left_out: usize,
    /// What the model answered.
    pub reply: Vec<u32>,
    /// Where drafts were refused: a position in `reply`, and the depth of the draft token, the first being 1.
    #[serde(default)]
    pub refused: Vec<(usize, usize)>,
}

fn is_none(n: &usize) -> bool {
    *n == 0
}

pub(super) const FORMAT: &str = "nextn-replies";
pub(super) const VERSION: u32 = 1;

/// Tokens of a kept reply and its prompt at most; a prompt loses its beginning.
const MAX_TOKENS: usize = 8192;

impl Head {
    pub(super) fn of(model: &str, n_vocab: usize) -> Self {
        Self { format: FORMAT.to_owned(), version: VERSION, model: model.to_owned(), n_vocab }
    }
}

impl KeptReply {
    pub(super) fn of(finished: &FinishedReply) -> Self {
        let reply: Vec<u32> = finished.reply.iter().take(MAX_TOKENS).map(|id| id.0).collect();
        let n_left_out = finished.prompt.len().saturating_sub(MAX_TOKENS - reply.len());
        let prompt = finished.prompt[n_left_out..].iter().map(|id| id.0).collect();
        let refused = finished.refused.iter().copied().filter(|(at, _)| *at < reply.len()).collect();
        Self { prompt, n_left_out, reply, refused }
    }
}

/// How names of files begin, for a model.
pub(super) fn stem(model: &str) -> &str {
    model.get(..16).unwrap_or(model)
}

/// True for a name that this module gave: part of a fingerprint, two numbers, the ending. Files of others are left alone.
pub(super) fn is_ours(name: &str) -> bool {
    let Some(name) = name.strip_suffix(ENDING) else { return false };
    let parts: Vec<&str> = name.split('-').collect();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    matches!(parts[..], [model, at, n] if is_digest(model) && is_number(at) && is_number(n))
}

/// True for a name that folders of scopes have.
pub(super) fn is_digest(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit())
}

pub(super) const ENDING: &str = ".jsonl";
