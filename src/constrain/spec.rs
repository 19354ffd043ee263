//! What a reply must be made of, as a request says it.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::error::Error;
use crate::limits::Limits;

/// The form of a reply.
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
    /// A grammar that is written when it is compiled.
    Written(Written),
    /// One of these forms, whole. None of them is of this kind itself.
    OneOf(Vec<Kind>),
}

/// A Lark grammar that is written when it is compiled, on the compiler's thread: that may take long and needs a deep stack.
#[derive(Clone)]
pub struct Written {
    /// What an error calls that which it is made of.
    pub what: &'static str,
    /// All that it depends on: two with the same key are the same grammar.
    pub key: String,
    /// Writes it.
    pub write: Arc<Write>,
}

type Write = dyn Fn(&Limits) -> Result<String, Error> + Send + Sync;

impl PartialEq for Written {
    fn eq(&self, other: &Self) -> bool {
        (self.what, &self.key) == (other.what, &other.key)
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Written").field("what", &self.what).field("key", &self.key).finish_non_exhaustive()
    }
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
            Self::Written(written) => written.what,
            Self::OneOf(_) => "choice of forms",
        }
    }
}

/// Free text that goes on until some text has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    /// What ends it: a text, or the control token of this text.
    pub until: String,
    /// The reply may end within it.
    pub may_end: bool,
    /// White space, in bytes, that may follow before the grammar begins.
    pub gap: usize,
}

/// A constraint, not yet compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The form of the reply.
    pub kind: Kind,
    /// What comes before it, one after the other.
    pub leads: Vec<Lead>,
    /// The first of them comes only after the token of this text, which may be the first of the reply. Where the vocabulary has
    /// none, it does not come.
    pub opening: Option<String>,
}

impl Spec {
    /// A constraint from the first token on.
    pub fn new(kind: Kind) -> Self {
        Self { kind, leads: Vec::new(), opening: None }
    }
}
