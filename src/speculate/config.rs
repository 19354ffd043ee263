//! What the user may choose about drafting, and the proposer that follows from it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use engine::{EngineConfig, Proposer};
use model::{Model, NextNHead, RunError};

use crate::both::NextNgram;
use crate::nextn::{Depth, NextN, NextNConfig};
use crate::ngram::Ngram;
use crate::vocab::DraftVocabSize;

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// The model's NextN head where it has one, else none.
    #[default]
    Auto,
    /// Plain decoding.
    Off,
    /// The model's NextN head; a model without one is refused.
    NextN,
    /// What followed the last words before, where the text repeats itself; needs no head.
    Ngram,
    /// Both: the head, and look-up where it has been right more often.
    NextNgram,
}

impl Mode {
    /// Every mode, by the word that chooses it.
    pub const ALL: [(&'static str, Mode); 5] = [
        ("auto", Mode::Auto),
        ("off", Mode::Off),
        ("nextn", Mode::NextN),
        ("ngram", Mode::Ngram),
        ("nextn+ngram", Mode::NextNgram),
    ];
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(word, _)| *word == s).map(|(_, mode)| *mode);
        found.ok_or_else(|| format!("`{s}` is not one of {}", Self::ALL.map(|(word, _)| word).join(", ")))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::ALL.iter().find(|(_, mode)| mode == self).map_or("", |(word, _)| word);
        f.write_str(word)
    }
}

/// How to draft.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpecConfig {
    /// Where drafts come from.
    pub mode: Mode,
    /// Tokens of a draft.
    pub depth: Depth,
    /// Words that the head drafts from.
    pub vocab: DraftVocabSize,
}

/// Why there is no proposer.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Asked for, and the file has none.
    #[error(
        "the model has no NextN head to draft with: use --spec auto or off, or add a head with `extract-nextn graft`"
    )]
    NoHead,
    /// Asked for, and the file has a part of it.
    #[error("the file promises a NextN head and lacks {0}: use --spec off, or add the head with `extract-nextn graft`")]
    Incomplete(String),
    /// No room for the head's cells.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// The proposer for an engine made with `engine`; `None` is plain decoding.
///
/// # Errors
/// [`SpecError`]: a source that was asked for by name is not there, or there is no room.
pub fn proposer(
    model: &Arc<Model>,
    engine: &EngineConfig,
    config: SpecConfig,
) -> Result<Option<Box<dyn Proposer>>, SpecError> {
    if config.mode == Mode::Off || config.depth == Depth::Fixed(0) {
        return Ok(None);
    }
    let ngram = || Ngram::new(model, engine, config.depth);
    if config.mode == Mode::Ngram {
        return Ok(Some(Box::new(ngram())));
    }
    let head = NextN::new(model, engine, NextNConfig { depth: config.depth, vocab: config.vocab })?;
    match (head, config.mode) {
        (Some(head), Mode::NextNgram) => Ok(Some(Box::new(NextNgram::new(head, ngram())))),
        (Some(head), _) => Ok(Some(Box::new(head))),
        (None, Mode::NextN | Mode::NextNgram) => Err(match model.nextn() {
            NextNHead::Missing(names) => SpecError::Incomplete(names.join(", ")),
            _ => SpecError::NoHead,
        }),
        (None, _) => Ok(None),
    }
}
