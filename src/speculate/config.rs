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
use crate::best_of::BestOf;
use crate::calibration::Calibration;
use crate::combined::CombinedProposer;
use crate::depth::Depth;
use crate::draft_model::DraftModel;
use crate::draft_vocab::DraftVocabSize;
use crate::nextn::{NextN, NextNConfig};
use crate::ngram::Ngram;
use crate::same_words::difference;

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// The model's MTP (NextN) layer where it has one, its own and that of another file where both are kept, the draft model where
    /// one was given, and prompt lookup: for each sequence the one that gains more, and none where none gains.
    #[default]
    Auto,
    /// Plain decoding.
    Off,
    /// The model's MTP (NextN) layer; a model without one is refused.
    NextN,
    /// Prompt lookup: what followed the last tokens before, where the text repeats itself; needs no MTP layer.
    Ngram,
    /// Both: the MTP layer, and prompt lookup where it promises more.
    NextNgram,
    /// A draft model of its own; one must have been given.
    Draft,
    /// The MTP layer and the draft model: for each sequence the one that gains more.
    NextNDraft,
    /// The draft model, and prompt lookup where it promises more.
    DraftNgram,
    /// All three.
    NextNDraftNgram,
}

impl Mode {
    /// Every mode, by the word that chooses it.
    pub const ALL: [(&'static str, Mode); 9] = [
        ("auto", Mode::Auto),
        ("off", Mode::Off),
        ("nextn", Mode::NextN),
        ("ngram", Mode::Ngram),
        ("nextn+ngram", Mode::NextNgram),
        ("draft", Mode::Draft),
        ("nextn+draft", Mode::NextNDraft),
        ("draft+ngram", Mode::DraftNgram),
        ("nextn+draft+ngram", Mode::NextNDraftNgram),
    ];

    /// Drafts by an MTP layer, if there is one.
    pub fn uses_head(self) -> bool {
        matches!(self, Self::Auto | Self::NextN | Self::NextNgram | Self::NextNDraft | Self::NextNDraftNgram)
    }

    /// Drafts by a draft model, if there is one.
    pub fn uses_draft_model(self) -> bool {
        matches!(self, Self::Auto | Self::Draft | Self::NextNDraft | Self::DraftNgram | Self::NextNDraftNgram)
    }

    /// Looks drafts up in the text.
    pub fn uses_lookup(self) -> bool {
        matches!(self, Self::Auto | Self::Ngram | Self::NextNgram | Self::DraftNgram | Self::NextNDraftNgram)
    }
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

impl SpecConfig {
    /// Where a model has its own MTP layers and those of another file ([`model::LoadOptions::keep_own_head`]), each sequence drafts
    /// by those that do better; else by those of the file. A thread of its own drafts ahead by one head.
    pub fn chooses_heads(&self) -> bool {
        self.mode == Mode::Auto && self.draft_mode != DraftMode::Async && self.depth != Depth::Fixed(0)
    }
}

/// Why there is no proposer.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Asked for, and the file has none.
    #[error(
        "the model has no NextN head to draft with: use --spec auto or off, or add a head with `extract-nextn graft`"
    )]
    NoHead,
    /// Asked for, and none was given.
    #[error("there is no draft model to draft with: give one with --draft-model, or use --spec auto or off")]
    NoDraftModel,
    /// The draft model speaks in other tokens.
    #[error(
        "the draft model has another vocabulary: {0}. Give a model of the same family with the same tokens, or leave --draft-model out"
    )]
    OtherVocabulary(String),
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
    memory_plan_with(engine, config, facts, None)
}

/// Tokens of a looked-up draft at most. Those of `auto` are no longer than others that the state is planned for anyway; where
/// there are none, there is no lookup.
fn depth_of_lookup(config: &SpecConfig, facts: &Facts, by_draft_model: bool) -> usize {
    match config.mode {
        Mode::Auto if by_draft_model => config.depth.max(),
        Mode::Auto if !facts.head.is_empty() => config.depth.of_head(facts),
        Mode::Auto => 0,
        // A head that was asked for and is not there is an error.
        Mode::NextNgram | Mode::NextNDraftNgram if facts.head.is_empty() && !by_draft_model => 0,
        Mode::DraftNgram if !by_draft_model => 0,
        _ => config.depth.max(),
    }
}

/// As [`memory_plan`], with a draft model beside: what its state and passes need is counted, its weights are not.
pub fn memory_plan_with(
    engine: &EngineConfig,
    config: &SpecConfig,
    facts: &Facts,
    draft: Option<&Facts>,
) -> MemoryPlan {
    let mode = config.mode;
    let drafts = mode != Mode::Off && config.depth != Depth::Fixed(0);
    let by_head = drafts && mode.uses_head() && !facts.head.is_empty();
    let draft = draft.filter(|_| drafts && mode.uses_draft_model());
    let of_lookup = if drafts && mode.uses_lookup() { depth_of_lookup(config, facts, draft.is_some()) } else { 0 };
    let of_head = if by_head { config.depth.of_head(facts) } else { 0 };
    let of_draft_model = if draft.is_some() { config.depth.max() } else { 0 };
    let depth = of_lookup.max(of_head).max(of_draft_model);
    let beside = draft.map_or(0, |draft| {
        let bytes = draft_model_plan(engine, config, draft, facts).bytes(draft);
        bytes.map_or(usize::MAX, |bytes| bytes.state().saturating_add(bytes.passes))
    });
    let of_engine = MemoryPlan { beside, ..engine.memory_plan(facts, depth) };
    if !by_head {
        return of_engine;
    }
    MemoryPlan {
        head: Some((NextN::state(engine, facts, config.depth), of_head)),
        own_head: config.chooses_heads(),
        draft_words: config.vocab.n_words(facts),
        n_runners: if config.draft_mode == DraftMode::Async { 2 } else { 1 },
        ..of_engine
    }
}

/// What a draft model keeps beside its own weights, for an engine of a target.
pub fn draft_model_plan(engine: &EngineConfig, config: &SpecConfig, draft: &Facts, target: &Facts) -> MemoryPlan {
    DraftModel::memory_plan(engine, draft, target, config.depth)
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
    proposer_with(model, None, engine, config)
}

/// As [`proposer`], with a draft model.
///
/// # Errors
/// As [`proposer`]; [`SpecError::OtherVocabulary`]: the draft model's tokens are not the target's.
pub fn proposer_with(
    model: &Arc<Model>,
    draft: Option<&Arc<Model>>,
    engine: &EngineConfig,
    config: SpecConfig,
) -> Result<Option<Box<dyn Proposer>>, SpecError> {
    calibrated_proposer(model, draft, engine, config, None)
}

/// As [`proposer_with`]; it begins with what earlier engines measured, and keeps there what this one does.
///
/// # Errors
/// As [`proposer_with`].
pub fn calibrated_proposer(
    model: &Arc<Model>,
    draft: Option<&Arc<Model>>,
    engine: &EngineConfig,
    config: SpecConfig,
    calibration: Option<&Calibration>,
) -> Result<Option<Box<dyn Proposer>>, SpecError> {
    let SpecConfig { mode, depth, draft_mode, .. } = config;
    if mode == Mode::Off || depth == Depth::Fixed(0) {
        return Ok(None);
    }
    let draft = draft.filter(|_| mode.uses_draft_model());
    if let Some(what) = draft.and_then(|draft| difference(draft.vocab(), model.vocab())) {
        return Err(SpecError::OtherVocabulary(what));
    }
    // Before the sources take their part: the engine's comes after.
    let of_draft = draft.map(|draft| draft.facts().clone());
    let plan = |engine: &EngineConfig| memory_plan_with(engine, &config, model.facts(), of_draft.as_ref());
    engine::check_memory(model, engine, &plan)?;
    let (mut sources, mut slots_alike): (Vec<Box<dyn Proposer>>, bool) = (Vec::new(), false);
    if mode.uses_head()
        && let Some(head) = head(model, engine, config, (draft.is_some(), calibration))?
    {
        slots_alike = head.serves_all_slots;
        sources.push(head.proposer);
    }
    match draft {
        Some(draft) => {
            if draft_mode == DraftMode::Async {
                tracing::warn!("--draft-mode async does not go with a draft model: drafts are made between passes");
            }
            let mut source = DraftModel::new(draft, model, engine, depth)?;
            calibration.into_iter().for_each(|of| source.calibrate(of));
            sources.push(Box::new(source));
        }
        None if mode.uses_draft_model() && mode != Mode::Auto => return Err(SpecError::NoDraftModel),
        None => {}
    }
    let of_lookup = if mode.uses_lookup() { depth_of_lookup(&config, model.facts(), draft.is_some()) } else { 0 };
    let ngram = || Ngram::new(model, engine, depth).up_to(of_lookup);
    // What a draft model must read before its first draft is weighed, too.
    let by_gain = sources.len() > 1 || draft.is_some() && depth == Depth::Auto;
    let computed: Option<Box<dyn Proposer>> = if by_gain {
        let mut best = BestOf::new(sources, engine.n_sequences, depth);
        calibration.into_iter().for_each(|of| best.calibrate(of));
        Some(Box::new(best))
    } else {
        sources.pop()
    };
    let lookup = match computed {
        computed if of_lookup == 0 => return Ok(computed),
        Some(computed) => CombinedProposer::new(computed, ngram()),
        None => CombinedProposer::alone(ngram()),
    };
    let mut lookup = if slots_alike { lookup.serving_all_slots() } else { lookup };
    calibration.into_iter().for_each(|of| lookup.calibrate(of));
    Ok(Some(Box::new(lookup)))
}

/// A head as a source of drafts.
struct OfHead {
    proposer: Box<dyn Proposer>,
    /// Graphs do not depend on slots.
    serves_all_slots: bool,
}

/// The model's head; `None` where it has none and none was asked for. `among_others`: it is not the only source; `calibration`:
/// what earlier engines measured.
fn head(
    model: &Arc<Model>,
    engine: &EngineConfig,
    config: SpecConfig,
    (among_others, calibration): (bool, Option<&Calibration>),
) -> Result<Option<OfHead>, SpecError> {
    let of_head = NextNConfig { depth: config.depth, vocab: config.vocab, both_heads: config.chooses_heads() };
    if let Some(mut assistant) = Assistant::new(model, engine, of_head)? {
        calibration.into_iter().for_each(|of| assistant.calibrate(of));
        if config.draft_mode == DraftMode::Async {
            tracing::warn!(
                "--draft-mode async does not go with an assistant, which reads the model's cells: it drafts between passes"
            );
        }
        return Ok(Some(OfHead { proposer: Box::new(assistant), serves_all_slots: false }));
    }
    let Some(mut head) = NextN::new(model, engine, of_head)? else {
        return match (config.mode, model.nextn()) {
            (Mode::Auto, _) => Ok(None),
            (_, NextNHead::Missing(names)) => Err(SpecError::Incomplete(names.join(", "))),
            _ => Err(SpecError::NoHead),
        };
    };
    calibration.into_iter().for_each(|of| head.calibrate(of));
    let serves_all_slots = head.serves_all_slots();
    let proposer: Box<dyn Proposer> = match config.draft_mode {
        DraftMode::Async if !among_others => Box::new(beside(head, model, engine)?),
        _ => Box::new(head),
    };
    Ok(Some(OfHead { proposer, serves_all_slots }))
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
