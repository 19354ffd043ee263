//! A model that is ready to answer: loaded, its template compiled, its engine running.
//! Owns what options mean for loading. Errors carry the exit code of what was at fault.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, anyhow};
use engine::{Engine, EngineConfig, EngineError, EngineHandle, FlashAttention};
use model::{Beside, LoadOptions, Model, NextNHead};
use speculate::{Mode, SpecError};
use text::template::ChatTemplate;

use super::args::RunFlags;
use super::choices::{CacheType, FlashAttn};
use super::exit::{Exit, Failure, OrExit, Outcome};
use super::form::Form;
use super::sanitize::clean_line;
use super::settings::FileSampling;
use super::spec::SpecFlags;

/// A model with its engine.
pub struct Loaded {
    /// Weights and vocabulary.
    pub model: Arc<Model>,
    /// Takes requests.
    pub engine: EngineHandle,
    /// `None` where the file has no chat template.
    pub template: Option<ChatTemplate>,
    /// Its own sampling values.
    pub sampling: FileSampling,
    /// Tokens are drafted.
    pub drafts: bool,
    /// From where, as asked for.
    pub spec: Mode,
    /// What its answers must be made of; `None` is any text.
    pub form: Option<Form>,
    /// From the start of loading until requests are taken.
    pub load_ms: f64,
}

impl Loaded {
    /// Loads `path`, or the embedded model, and starts its engine.
    ///
    /// # Errors
    /// With [`Exit::ModelFile`] when the file is at fault, [`Exit::Runtime`] when the machine is.
    pub fn open(path: Option<&Path>, run: &RunFlags, spec: &SpecFlags) -> Outcome<Self> {
        let start = Instant::now();
        let (config, drafts) = (engine_config(run, spec), spec.config());
        let planned = config.clone();
        let beside = Beside::new(move |facts| speculate::kept(&planned, &drafts, facts));
        let placement = run.device.placement(beside).or_exit(Exit::Usage)?;
        let options = LoadOptions { placement, head: spec.draft_model.clone(), lock: run.device.mlock };
        let model = match path {
            Some(path) => Model::open(path, &options).map_err(|error| anyhow!(error.in_file(path))),
            None => Model::from_static(crate::embedded::model_bytes(), &options).context("the embedded model"),
        };
        let model = model.or_exit(Exit::ModelFile)?;
        let template = compile(&model).or_exit(Exit::ModelFile)?;
        let sampling = model.sampling_defaults().iter().map(|(name, &value)| (name.clone(), value)).collect();
        let drafting = speculate::proposer(&model, &config, spec.config()).map_err(|error| match error {
            SpecError::Run(_) | SpecError::Room(_) => Failure::new(Exit::Runtime, error),
            error => Failure::new(Exit::ModelFile, error),
        })?;
        let drafts = drafting.is_some();
        crate::idle::warn(run.device.idle().into_iter().chain(spec.idle(model.nextn().is_bound())));
        let engine = Engine::spawn_with(Arc::clone(&model), config, drafting).map_err(|error| match error {
            EngineError::Config(_) => Failure::new(Exit::Usage, error),
            error => Failure::new(Exit::Runtime, error),
        })?;
        let load_ms = start.elapsed().as_secs_f64() * 1e3;
        Ok(Self { model, engine, template, sampling, drafts, spec: spec.spec, form: None, load_ms })
    }

    /// The chat template.
    ///
    /// # Errors
    /// A file without one.
    pub fn template(&self) -> Outcome<&ChatTemplate> {
        self.template.as_ref().ok_or_else(|| {
            Failure::message(
                Exit::ModelFile,
                "the model file has no chat template: use --raw to continue a text as it stands",
            )
        })
    }

    /// One line about the model: name, quantisation, context, backend, NextN head.
    pub fn line(&self) -> String {
        let about = self.model.describe();
        let head = match self.model.nextn() {
            NextNHead::Bound => "present",
            NextNHead::Missing(_) => "incomplete",
            NextNHead::Absent => "none",
        };
        let line = format!(
            "{} {}, context {}, {}, NextN head: {head}",
            about.name,
            about.quantization,
            self.engine.limits().n_ctx,
            self.model.weights().device().name(),
        );
        clean_line(&line)
    }
}

/// The engine's settings.
fn engine_config(run: &RunFlags, spec: &SpecFlags) -> EngineConfig {
    EngineConfig {
        n_ctx: run.ctx_size.map(|n| n as usize),
        n_sequences: 1,
        // A chat goes on at its borders, and nothing else begins as it does.
        checkpoint_every: Some(0),
        threads: run.threads.map(usize::from),
        cache_type_k: cache_type(run.cache_type_k),
        cache_type_v: cache_type(run.cache_type_v),
        exact: spec.exact,
        flash_attention: match run.flash_attn {
            FlashAttn::Auto => FlashAttention::Auto,
            FlashAttn::On => FlashAttention::On,
            FlashAttn::Off => FlashAttention::Off,
        },
        ..EngineConfig::default()
    }
}

fn compile(model: &Model) -> anyhow::Result<Option<ChatTemplate>> {
    let Some(source) = model.chat_template() else { return Ok(None) };
    let vocab = model.vocab();
    let text = |id: Option<text::TokenId>| {
        id.and_then(|id| vocab.bytes(id)).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let template = ChatTemplate::new(source).map_err(|error| anyhow!("{error} (--raw needs no template)"))?;
    Ok(Some(template.with_special_tokens(text(vocab.bos()), text(vocab.eos()))))
}

fn cache_type(typed: CacheType) -> memory::CacheType {
    match typed {
        CacheType::F16 => memory::CacheType::F16,
        CacheType::F32 => memory::CacheType::F32,
        CacheType::Q8_0 => memory::CacheType::Q8_0,
        CacheType::Q4_0 => memory::CacheType::Q4_0,
    }
}
