//! What an answer must be made of, as a request says it.

use serde_json::Value;
use text::{TokenId, Vocab};

use crate::tools::Tools;

/// The form of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid by this schema. Keywords that are not supported are an error, not passed over.
    JsonSchema(Value),
    /// Text that this regular expression matches as a whole (Rust's syntax; no look-around, no back-references).
    Regex(String),
    /// Exactly one of these texts.
    Choice(Vec<String>),
    /// A Lark grammar, in llguidance's dialect; its start is the rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's notation; its start is the rule `root`.
    Gbnf(String),
    /// Tool calls.
    Tools(Tools),
}

impl Kind {
    /// How an error names it.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Self::JsonObject => "JSON object",
            Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Choice(_) => "list of choices",
            Self::Lark(_) => "Lark grammar",
            Self::Gbnf(_) => "GBNF grammar",
            Self::Tools(_) => "list of tools",
        }
    }
}

/// Whether the model may think before what is constrained begins. Thinking ends with `</think>`, and cannot be the end of
/// the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// It does not think, or has done so in the prompt.
    #[default]
    Done,
    /// The prompt has opened a block of thinking.
    Open,
    /// It may open one by itself, with `<think>`.
    Possible,
}

impl Thinking {
    /// As a prompt leaves it: opened, closed, or not mentioned at its end, and then possible.
    pub fn after(prompt: &[TokenId], vocab: &Vocab) -> Self {
        let last = &prompt[prompt.len().saturating_sub(LOOK_BACK)..];
        let is = |name: &str| vocab.id(name).and_then(|id| last.iter().rposition(|&token| token == id));
        match (is(THINK), is(THINK_END)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => Self::Open,
            (_, Some(_)) => Self::Done,
            (_, None) => Self::Possible,
        }
    }
}

/// What opens a block of thinking.
pub(crate) const THINK: &str = "<think>";
/// What ends it.
pub(crate) const THINK_END: &str = "</think>";
/// Tokens at a prompt's end among which a template leaves its tags: they are followed by line breaks only.
const LOOK_BACK: usize = 4;

/// A constraint, not yet compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The form of the answer.
    pub kind: Kind,
    /// What may come before.
    pub thinking: Thinking,
}

impl Spec {
    /// A constraint from the first token on.
    pub fn new(kind: Kind) -> Self {
        Self { kind, thinking: Thinking::Done }
    }

    /// The same, with thinking before it.
    #[must_use]
    pub fn with_thinking(self, thinking: Thinking) -> Self {
        Self { thinking, ..self }
    }
}
