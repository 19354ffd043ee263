//! What a file says of embeddings and rankings: how hidden states become one vector, and how inputs are made of texts.
//! Plain data. Knows no graph.

use std::fmt;
use std::str::FromStr;

use text::TokenId;

use crate::error::LoadError;
use crate::keys::Keys;

/// How the hidden states of an input become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Not at all: a vector for each token.
    None,
    /// The mean of all.
    Mean,
    /// That of the first token.
    Cls,
    /// That of the last token.
    Last,
    /// What the model's rank head gives for one of them: a number for each class.
    Rank,
}

impl Pooling {
    /// In the order of their numbers in files.
    const ALL: [Self; 5] = [Self::None, Self::Mean, Self::Cls, Self::Last, Self::Rank];

    /// Its name on command lines and in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
            Self::Rank => "rank",
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pooling {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|pooling| pooling.name() == name);
        found.ok_or_else(|| format!("`{name}` is not one of none, mean, cls, last, rank"))
    }
}

/// What a file says of embeddings and rankings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EmbeddingInfo {
    /// `{arch}.pooling_type`.
    pub pooling: Option<Pooling>,
    /// `{arch}.classifier.output_labels`: the classes of a rank head.
    pub labels: Vec<String>,
    /// `tokenizer.ggml.add_eos_token`: inputs end with the end-of-sequence token.
    pub add_eos: bool,
    /// The token between a query and a document, where `tokenizer.ggml.add_sep_token` asks for one.
    pub separator: Option<TokenId>,
    /// `tokenizer.chat_template.rerank`: a text with `{query}` and `{document}` in it.
    pub rerank_template: Option<String>,
}

impl EmbeddingInfo {
    pub(crate) fn read(meta: &gguf::Metadata<'_>, keys: &Keys<'_, '_>, n_vocab: usize) -> Result<Self, LoadError> {
        let separator = match meta.bool("tokenizer.ggml.add_sep_token")? {
            // So the key is spelt.
            Some(true) => meta.u32("tokenizer.ggml.seperator_token_id")?.filter(|&id| (id as usize) < n_vocab),
            _ => None,
        };
        Ok(Self {
            pooling: pooling(keys)?,
            labels: keys.texts("classifier.output_labels")?.unwrap_or_default(),
            add_eos: meta.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            separator: separator.map(TokenId),
            rerank_template: meta.str("tokenizer.chat_template.rerank")?.map(str::to_owned),
        })
    }
}

/// `{arch}.pooling_type`.
pub(crate) fn pooling(keys: &Keys<'_, '_>) -> Result<Option<Pooling>, LoadError> {
    let number = keys.find("pooling_type", 0..=Pooling::ALL.len() as u32 - 1)?;
    Ok(number.map(|n| Pooling::ALL[n]))
}
