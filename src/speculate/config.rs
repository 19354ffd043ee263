//! What the user may choose about drafting, and the proposer that follows from it.

use std::fmt;
use std::num::NonZero;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::available_parallelism;

use engine::{EngineConfig, EngineError, Proposer};
use model::{Facts, MemoryPlan, Model, NextNHead, RunError};

use crate::assistant::Assistant;
use crate::async_proposer::AsyncProposer;
use crate::combined::CombinedProposer;
use crate::depth::Depth;
use crate::draft_vocab::DraftVocabSize;
use crate::nextn::{NextN, NextNConfig};
use crate::ngram::Ngram;

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// The model's MTP (NextN) layer where it has one, else none.
    #[default]
    Auto,
    /// Plain decoding.
    Off,
    /// The model's MTP (NextN) layer; a model without one is refused.
    NextN,
    /// Prompt lookup: what followed the last tokens before, where the text repeats itself; needs no MTP layer.
    Ngram,
    /// Both: the MTP layer, and prompt lookup where it has been accepted more often.
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

/// Where the MTP layer's drafts are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DraftMode {
    /// As measured to be faster: at present always fused (docs/NEXTN.md has the figures).
    #[default]
    Auto,
    /// On the engine's thread, between forward passes: all processors work on one thing.
    Fused,
    /// On a thread and a compute pool of its own, beside the engine's other work; with processors to spare, or on a GPU,
    /// also beside the main model's forward passes.
    Async,
}

impl DraftMode {
    /// Every mode, by the word that chooses it.
    pub const ALL: [(&'static str, DraftMode); 3] =
        [("auto", DraftMode::Auto), ("fused", DraftMode::Fused), ("async", DraftMode::Async)];
}

/// Parsing and printing a choice between names.
macro_rules! named {
    ($of:ty) => {
        impl FromStr for $of {
            type Err = String;

            fn from_str(s: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().find(|(word, _)| *word == s).map(|(_, choice)| *choice);
                found.ok_or_else(|| format!("`{s}` is not one of {}", Self::ALL.map(|(word, _)| word).join(", ")))
            }
        }

        impl fmt::Display for $of {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let word = Self::ALL.iter().find(|(_, choice)| choice == self).map_or("", |(word, _)| word);
                f.write_str(word)
            }
        }
    };
}

named!(Mode);
named!(DraftMode);

/// How to draft.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpecConfig {
    /// Where drafts come from.
    pub mode: Mode,
    /// Tokens of a draft.
    pub depth: Depth,
    /// The draft vocabulary.
    pub vocab: DraftVocabSize,
    /// Where the MTP layer's drafts are computed.
    pub draft_mode: DraftMode,
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
    /// No room for its KV cells.
    #[error(transparent)]
    Run(#[from] RunError),
    /// No room for what the engine and the MTP layer keep together.
    #[error(transparent)]
    Room(#[from] EngineError),
}

/// What an engine made with `engine` and its source of drafts made with `config` keep beside the weights of a model: both
/// allocate by this, and layers are placed by it.
pub fn memory_plan(engine: &EngineConfig, config: &SpecConfig, facts: &Facts) -> MemoryPlan {
    let drafts = config.mode != Mode::Off && config.depth != Depth::Fixed(0);
    let by_head = drafts && config.mode != Mode::Ngram && !facts.head.is_empty();
    let by_lookup =
        drafts && matches!(config.mode, Mode::Ngram | Mode::NextNgram) && (by_head || config.mode == Mode::Ngram);
    let of_head = config.depth.of_head(facts.head.len());
    let depth = match (by_lookup, by_head) {
        (true, _) => config.depth.max(),
        (false, true) => of_head,
        (false, false) => 0,
    };
    let of_engine = engine.memory_plan(facts, depth);
    if !by_head {
        return of_engine;
    }
    MemoryPlan {
        head: Some((NextN::state(engine, facts, config.depth), of_head)),
        draft_words: config.vocab.n_words(facts),
        n_runners: if config.draft_mode == DraftMode::Async { 2 } else { 1 },
        ..of_engine
    }
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
    // Before the MTP layer takes its part: the engine's comes after.
    engine::check_memory(model, engine, &|engine| memory_plan(engine, &config, model.facts()))?;
    let ngram = || Ngram::new(model, engine, config.depth);
    if config.mode == Mode::Ngram {
        return Ok(Some(Box::new(ngram())));
    }
    let of_head = NextNConfig { depth: config.depth, vocab: config.vocab };
    if let Some(assistant) = Assistant::new(model, engine, of_head)? {
        if config.draft_mode == DraftMode::Async {
            tracing::warn!(
                "--draft-mode async does not go with an assistant, which reads the model's cells: it drafts between passes"
            );
        }
        return Ok(Some(with_lookup(Box::new(assistant), config.mode, ngram)));
    }
    let Some(head) = NextN::new(model, engine, of_head)? else {
        return match (config.mode, model.nextn()) {
            (Mode::Auto, _) => Ok(None),
            (_, NextNHead::Missing(names)) => Err(SpecError::Incomplete(names.join(", "))),
            _ => Err(SpecError::NoHead),
        };
    };
    let head: Box<dyn Proposer> = match config.draft_mode {
        DraftMode::Auto | DraftMode::Fused => Box::new(head),
        DraftMode::Async => Box::new(beside(head, model, engine)?),
    };
    Ok(Some(with_lookup(head, config.mode, ngram)))
}

/// The head, with prompt lookup beside it where that is asked for.
fn with_lookup(head: Box<dyn Proposer>, mode: Mode, ngram: impl FnOnce() -> Ngram) -> Box<dyn Proposer> {
    if mode == Mode::NextNgram { Box::new(CombinedProposer::new(head, ngram())) } else { head }
}

/// The MTP layer on a thread of its own, with the processors that forward passes leave over. Where they leave none it
/// drafts while the engine does other things, but not while the model computes: threads that wait for each other in turn
/// would only be slower.
fn beside(head: NextN, model: &Arc<Model>, engine: &EngineConfig) -> Result<AsyncProposer<NextN>, RunError> {
    let n_threads = engine.n_threads();
    let n_spare = available_parallelism().map_or(1, NonZero::get).saturating_sub(n_threads);
    match (model.is_on_cpu(), n_spare) {
        (true, 0) => AsyncProposer::new(head, model, n_threads, false),
        (true, _) => AsyncProposer::new(head, model, n_threads.min(n_spare), true),
        (false, _) => AsyncProposer::new(head, model, n_threads, true),
    }
}
