//! From a model file and options to a model that answers: weights, template, dialect, sampling defaults, drafts, engine.
//! Errors say whose fault it was: the options', the file's, or the machine's.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use constrain::{Compiler, Limits};
use engine::sample::SamplingParams;
use engine::{ContextShift, Engine, EngineConfig, EngineError, EngineHandle, Proposer, RequestOptions};
use model::{AdapterSet, Model};
use text::Vocab;
use text::template::ChatTemplate;

use crate::dialect::Dialect;
use crate::files::{ModelSource, Opened, open_files};
use crate::learning::{Learning, Subject};
use crate::open_error::OpenError;
use crate::options::{EmbeddingOptions, ModelOptions, defaults_of_file};
use crate::projector_file::{open_projector, sight_of};
use crate::sight::Sight;
use crate::template::{Sources, text_of};

/// How long a program waits for the end of its engine: nobody who leaves is to notice.
const LAST_MOMENT: Duration = Duration::from_millis(300);

/// A model that is ready to answer.
pub struct LoadedModel {
    /// Of a reply, at most.
    max_tokens: Option<usize>,
    shift: Option<ContextShift>,
    ignore_eos: bool,
    pub(crate) model: Arc<Model>,
    pub(crate) engine: EngineHandle,
    pub(crate) grammars: Compiler,
    pub(crate) template: Option<ChatTemplate>,
    sources: Sources,
    pub(crate) dialect: Dialect,
    sampling: SamplingParams,
    drafts: DraftDefaults,
    pub(crate) embedding: EmbeddingOptions,
    /// Sees pictures.
    pub(crate) sight: Option<Sight>,
    /// Where a request does not say; a server's clients may change it.
    adapters: RwLock<AdapterSet>,
    n_sequences: usize,
    learning: Option<Arc<Learning>>,
    path: Option<PathBuf>,
    load_time: Duration,
}

/// What holds for drafts where a request does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftDefaults {
    /// The longest draft; 0 without speculation.
    pub max: usize,
    /// Shorter drafts are not used.
    pub min: usize,
    /// A draft ends before a token that the MTP layer finds less probable than this.
    pub p_min: f32,
}

/// Opens a model: maps its file, places its layers, starts its engine. Options that change nothing are told in the log.
///
/// # Errors
/// [`OpenError`].
pub fn open(source: impl Into<ModelSource>, options: &ModelOptions) -> Result<LoadedModel, OpenError> {
    let start = Instant::now();
    let source = source.into();
    // Before the model, whose layers take what is left of a device.
    let projector = open_projector(&source, options)?;
    let Opened { model, draft, head } = open_files(&source, options)?;
    let path = match source {
        ModelSource::File(path) => Some(path),
        ModelSource::Embedded(_) => None,
    };
    let sight = projector.map(|(file, projector)| sight_of(&file, projector, &model, options)).transpose()?.flatten();
    let loaded = start_engine(model, draft, options)?;
    if let Some((learning, learn)) = loaded.learning.as_ref().zip(options.learn.as_ref()) {
        let (model, life) = (Arc::downgrade(&loaded.model), loaded.engine.life());
        let rope = options.run.compute.rope.options();
        let subject = Subject { model, life, path: path.clone(), head, rope };
        if let Err(why) = learning.start_live(learn, subject) {
            tracing::warn!("--learn-live: the head does not learn: {why}");
        }
    }
    Ok(LoadedModel { path, sight, load_time: start.elapsed(), ..loaded })
}

/// Starts the engine of a model whose weights are open, with a draft model where there is one.
///
/// # Errors
/// As [`open`], but for the file.
pub fn start_engine(
    model: Arc<Model>,
    draft: Option<Arc<Model>>,
    options: &ModelOptions,
) -> Result<LoadedModel, OpenError> {
    let config = options.engine_config(model.hparams().n_ctx_train);
    let calibration = options.drafts.calibration(&model, draft.as_deref(), &config);
    let drafts = options.drafts.config();
    let proposer = speculate::calibrated_proposer(&model, draft.as_ref(), &config, drafts, calibration.as_ref())?;
    for words in options.without_effect(model.nextn().is_bound(), draft.is_some()) {
        tracing::warn!("{words}");
    }
    let n_ctx_train = model.hparams().n_ctx_train;
    if let Some(n_ctx) = config.n_ctx.filter(|&n_ctx| n_ctx > n_ctx_train) {
        let how = "--rope-scaling yarn and --rope-scale stretch the context of most models";
        tracing::warn!(n_ctx, n_ctx_train, "--ctx-size is more than the model was trained for: {how}");
    }
    start_engine_with(model, config, options, proposer)
}

/// Starts an engine with a configuration and a source of drafts of its own; of `options` template, sampling and the defaults
/// for drafts count.
///
/// # Errors
/// As [`start_engine`].
pub fn start_engine_with(
    model: Arc<Model>,
    config: EngineConfig,
    options: &ModelOptions,
    proposer: Option<Box<dyn Proposer>>,
) -> Result<LoadedModel, OpenError> {
    let start = Instant::now();
    let sources = Sources::new(&options.chat_template, &model);
    let template = sources.compile(model.vocab())?;
    let mut sampling = defaults_of_file(model.sampling_defaults());
    options.sampling.apply(&mut sampling).map_err(|error| EngineError::Config(error.to_string()))?;
    let drafts = DraftDefaults {
        max: proposer.as_ref().map_or(0, |proposer| proposer.info().max_depth),
        min: options.drafts.draft_min.into(),
        p_min: options.drafts.draft_p_min,
    };
    let n_sequences = config.n_sequences;
    let adapters = options.adapters.set().map_err(|error| EngineError::Config(error.to_string()))?;
    let learning = options.learn.as_ref().map(|learn| Learning::start(learn, &model)).transpose();
    let (replies, learning) = learning.map_err(EngineError::Config)?.unzip();
    let config = EngineConfig { replies: replies.or_else(|| config.replies.clone()), ..config };
    let engine = Engine::spawn_with(Arc::clone(&model), config, proposer)?;
    Ok(LoadedModel {
        max_tokens: None,
        shift: None,
        ignore_eos: false,
        grammars: Compiler::new(model.shared_vocab(), Limits::default()),
        dialect: Dialect::detect(sources.shown().as_deref(), model.vocab()),
        template,
        sources,
        sampling,
        drafts,
        embedding: options.embedding.clone(),
        sight: None,
        adapters: RwLock::new(adapters),
        n_sequences,
        learning,
        path: None,
        load_time: start.elapsed(),
        engine,
        model,
    })
}

impl LoadedModel {
    /// The weights and the vocabulary.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Vocab {
        self.model.vocab()
    }

    /// Takes requests.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// The same with other limits of what grammars may take.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { grammars: Compiler::new(self.model.shared_vocab(), limits), ..self }
    }

    /// The same with so many tokens in a reply at most.
    #[must_use]
    pub fn with_max_tokens(self, max_tokens: Option<usize>) -> Self {
        Self { max_tokens, ..self }
    }

    /// The same with replies that go on when the context is full, where a request does not say how.
    #[must_use]
    pub fn with_context_shift(self, shift: Option<ContextShift>) -> Self {
        Self { shift, ..self }
    }

    /// The same with replies that go on past the model's end of its turn, where a request does not say.
    #[must_use]
    pub fn with_ignore_eos(self, ignore_eos: bool) -> Self {
        Self { ignore_eos, ..self }
    }

    /// The template's source; empty where the model has none.
    pub fn template_source(&self) -> &str {
        self.sources.default.as_deref().unwrap_or_default()
    }

    /// The source of the template for conversations with tools, where that is another one.
    pub fn tool_use_source(&self) -> Option<&str> {
        self.sources.tool_use.as_deref()
    }

    /// Whether a template has this text.
    pub(crate) fn shows(&self, text: &str) -> bool {
        [&self.sources.default, &self.sources.tool_use].into_iter().flatten().any(|source| source.contains(text))
    }

    /// Whether the template names the role `developer`.
    pub(crate) fn knows_developers(&self) -> bool {
        self.shows("'developer'") || self.shows("\"developer\"")
    }

    /// What its text looks like.
    pub fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    /// Whether conversations can be rendered.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The text of the tokens that begin and end a text; empty where there is none.
    pub fn boundary_tokens(&self) -> (String, String) {
        let text = |id| text_of(self.vocab(), id).unwrap_or_default();
        (text(self.vocab().bos()), text(self.vocab().eos()))
    }

    /// What holds for drafts where a request does not say.
    pub fn drafts(&self) -> DraftDefaults {
        self.drafts
    }

    /// Sampling where a request does not say.
    pub fn sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// The LoRA adapters where a request does not say.
    pub fn adapters(&self) -> AdapterSet {
        self.adapters.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the LoRA adapters of requests from here on that do not say.
    pub fn set_adapters(&self, adapters: AdapterSet) {
        *self.adapters.write().unwrap_or_else(PoisonError::into_inner) = adapters;
    }

    /// What sees pictures; `None`: the model reads text only.
    pub fn sight(&self) -> Option<&Sight> {
        self.sight.as_ref()
    }

    /// The options of a request that says nothing.
    pub fn request_options(&self) -> RequestOptions {
        RequestOptions {
            max_tokens: self.max_tokens,
            shift: self.shift,
            ignore_eos: self.ignore_eos,
            sampling: self.sampling.clone(),
            min_draft: self.drafts.min,
            draft_p_min: self.drafts.p_min,
            adapters: self.adapters(),
            ..RequestOptions::default()
        }
    }

    /// Sequences at a time.
    pub fn n_sequences(&self) -> usize {
        self.n_sequences
    }

    /// What is kept of its replies to train on, where that was asked for.
    pub fn learning(&self) -> Option<&Arc<Learning>> {
        self.learning.as_ref()
    }

    /// Ends the engine, and waits a moment for what it keeps at its end: a program that goes on to exit would cut it off.
    pub fn close(self) {
        let life = self.engine.life();
        drop(self);
        if !life.wait_until_freed(LAST_MOMENT) {
            tracing::debug!("the engine has not ended in time");
        }
    }

    /// The file; `None` for a model inside the program.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The time that opening took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }
}

impl std::fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedModel").field("path", &self.path).finish_non_exhaustive()
    }
}
