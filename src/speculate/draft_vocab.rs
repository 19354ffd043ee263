//! How large the vocabulary of drafts is.
//!
//! Byte-pair ids are ordered by merge, so low ids are the frequent tokens: on a 151k Qwen vocabulary the first 32,768 hold
//! 94.6 % of the tokens of Python text and 90.6 % of English text; with those of the last 8,192 positions added, 98.2 %
//! and 97.2 %. The output matrix is most of a draft's cost, so a draft that leaves the rest out is several times cheaper.

use std::fmt;
use std::str::FromStr;

use model::{DraftVocab, Facts, Model, RunError};
use text::TokenId;

/// Copies of single rows of the output matrix: tokens of the context, special tokens, tokens frequent so far.
const N_SIDE: usize = 1024;

/// The draft vocabulary: tokens that drafts are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DraftVocabSize {
    /// By the model's size: small models pay most for the output matrix.
    #[default]
    Auto,
    /// All tokens.
    Full,
    /// The first N token ids, and the tokens in context.
    First(usize),
}

impl DraftVocabSize {
    /// First tokens and others for a model; `None` is the whole vocabulary.
    pub(crate) fn n_words(self, facts: &Facts) -> Option<(usize, usize)> {
        let sizes = &facts.hparams;
        if facts.n_draft_words.is_some() {
            return None;
        }
        let n = match self {
            DraftVocabSize::Full => return None,
            DraftVocabSize::First(n) => n,
            // The wider the model, the smaller the output matrix's share, and the more a missed word costs. GPUs read the
            // larger part as fast as they start a kernel.
            DraftVocabSize::Auto if sizes.n_embd <= 2048 && facts.on_cpu => 32_768,
            DraftVocabSize::Auto => 65_536,
        };
        // A part that leaves out less than half saves less than the copies cost.
        (n + N_SIDE < sizes.n_vocab && (self != DraftVocabSize::Auto || 2 * n <= sizes.n_vocab)).then_some((n, N_SIDE))
    }

    /// The part of the vocabulary, with the special tokens that generations are full of; `None` is the whole.
    pub(crate) fn make(self, model: &Model) -> Result<Option<DraftVocab>, RunError> {
        if let Some(own) = DraftVocab::of_head(model)? {
            return Ok(Some(own));
        }
        let Some((n_first, n_side)) = self.n_words(model.facts()) else { return Ok(None) };
        let mut vocab = DraftVocab::new(model, n_first, n_side)?;
        let special: Vec<TokenId> = model.vocab().special_tokens().map(|(id, _)| id).take(N_SIDE / 4).collect();
        vocab.see(model, special.into_iter().chain(model.vocab().eog().iter().copied()))?;
        Ok(Some(vocab))
    }
}

impl FromStr for DraftVocabSize {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "full" => Ok(Self::Full),
            n => match n.parse() {
                Ok(n) if n > 0 => Ok(Self::First(n)),
                _ => Err(format!("`{s}` is not auto, full, or a number of tokens")),
            },
        }
    }
}

impl fmt::Display for DraftVocabSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Full => f.write_str("full"),
            Self::First(n) => write!(f, "{n}"),
        }
    }
}
