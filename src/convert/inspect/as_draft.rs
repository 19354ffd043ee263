//! What a file is for a model that drafts with it (`--draft-model`).
//! Owns the rule; whether the two belong together is found when they are opened.

use serde::Serialize;

use crate::heads::{Content, ModelInfo};
use crate::source::Source;

/// What a file is as a source of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AsDraft {
    /// A head, for models of its architecture and width.
    Head,
    /// A model of its own, for models of the same tokens.
    Model,
    /// A model with a head: its head beside models of its architecture and width, itself beside others of the same tokens.
    ModelWithHead,
    /// A draft file of a kind that is not read.
    NotRead,
}

/// Tensors of DFlash files of kinds that are not read.
const NOT_READ: [&str; 3] = ["markov_w1.weight", "selector_hidden.weight", "output_hc_fn.weight"];

impl AsDraft {
    /// `None` where it is none: an architecture that is not known, a file without a vocabulary, a checkpoint.
    pub(super) fn of(source: &Source, info: Option<&ModelInfo>, is_gguf: bool) -> Option<Self> {
        let arch = source.text("general.architecture").filter(|_| is_gguf)?;
        let of_features = model::feature_heads().contains(&arch);
        if of_features && source.tensors.iter().any(|t| NOT_READ.contains(&t.name.as_str())) {
            return Some(Self::NotRead);
        }
        if of_features || model::head_architectures().iter().any(|(head, _)| *head == arch) {
            return Some(Self::Head);
        }
        let speaks = source.key("tokenizer.ggml.tokens").is_some();
        match info.map(|info| info.content) {
            Some(Content::Head(_)) => Some(Self::Head),
            Some(Content::Combined) => speaks.then_some(Self::ModelWithHead),
            Some(_) => speaks.then_some(Self::Model),
            None => (speaks && model::architectures().contains(&arch)).then_some(Self::Model),
        }
    }
}
