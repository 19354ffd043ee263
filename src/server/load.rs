//! From options to a model that answers: weights, template, sampling defaults, speculation, engine.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{Loader, Served};
use constrain::{Compiler, Limits};
use engine::{Engine, EngineConfig, FlashAttention};
use indicatif::{ProgressBar, ProgressStyle};
use model::{Beside, LoadOptions, Model};
use text::TokenId;
use text::template::ChatTemplate;

use super::args::ModelFlags;
use super::hub::Hub;
use crate::cli::choices::{CacheType, FlashAttn};
use crate::cli::sampling::SamplingFlags;
use crate::cli::settings::{FileSampling, resolve};

/// Loads the models of the command line and the configuration file, by name.
pub(super) struct FromFlags {
    pub(super) models: HashMap<String, (ModelFlags, SamplingFlags)>,
    /// Make room for embeddings.
    pub(super) embeddings: bool,
}

impl Loader for FromFlags {
    fn load(&self, id: &str) -> Result<Served, String> {
        let (flags, sampling) = self.models.get(id).ok_or_else(|| format!("no model is called {id}"))?;
        let (planned, drafts) = (flags.clone(), flags.spec.config());
        let beside = Beside::new(move |facts| {
            speculate::kept(&engine_config(&planned, facts.hparams.n_ctx_train), &drafts, facts)
        });
        let placement = flags.device.placement(beside).map_err(|error| format!("{error:#}"))?;
        let options = LoadOptions { placement, head: flags.spec.draft_model.clone(), lock: flags.device.mlock };
        let path = match &flags.hf_repo {
            Some(name) => Some(fetch(name, flags.offline)?),
            None => flags.model.clone(),
        };
        let model = match &path {
            Some(path) => Model::open(path, &options).map_err(|error| error.in_file(path))?,
            None => Model::from_static(crate::embedded::model_bytes(), &options)
                .map_err(|error| format!("the embedded model: {error}"))?,
        };
        let config = EngineConfig { embeddings: self.embeddings, ..engine_config(flags, model.hparams().n_ctx_train) };
        let template_source = template_source(&model, flags.chat_template_file.as_deref())?;
        let template = template(&model, template_source.as_deref())?;
        let file: FileSampling = model.sampling_defaults().iter().map(|(name, &value)| (name.clone(), value)).collect();
        let proposer = speculate::proposer(&model, &config, flags.spec.config()).map_err(|error| error.to_string())?;
        crate::idle::warn(flags.device.idle().into_iter().chain(flags.spec.idle(model.nextn().is_bound())));
        let max_draft = proposer.as_ref().map_or(0, |p| p.info().max_depth);
        let n_sequences = config.n_sequences;
        let engine = Engine::spawn_with(Arc::clone(&model), config, proposer).map_err(|error| error.to_string())?;
        Ok(Served {
            id: id.to_owned(),
            engine,
            grammars: Compiler::new(model.shared_vocab(), Limits::default()),
            template,
            template_source: template_source.unwrap_or_default(),
            sampling: resolve(sampling, &file),
            max_draft,
            min_draft: flags.spec.draft_min.into(),
            draft_p_min: flags.spec.draft_p_min,
            n_sequences,
            path: path.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
            model,
        })
    }
}

/// A file of the hub, with a bar on a terminal and log lines elsewhere.
fn fetch(name: &str, offline: bool) -> Result<PathBuf, String> {
    let bar = ProgressBar::no_length();
    bar.set_style(ProgressStyle::with_template(BAR).expect("a constant template"));
    let told = Cell::new(Instant::now());
    let progress = |file: &str, done: u64, all: u64| {
        bar.set_length(all);
        bar.set_position(done);
        if bar.is_hidden() && told.get().elapsed() > LOG_EVERY {
            told.set(Instant::now());
            tracing::info!(file, done, all, "fetching");
        }
    };
    let path = Hub::from_env(|name| std::env::var(name).ok(), offline).file(name, &progress);
    bar.finish_and_clear();
    path.map_err(|error| error.to_string())
}

const BAR: &str = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const LOG_EVERY: Duration = Duration::from_secs(10);

/// `n_ctx_train`: positions that the model was trained for.
fn engine_config(flags: &ModelFlags, n_ctx_train: usize) -> EngineConfig {
    EngineConfig {
        n_ctx: flags.ctx_size.map(|n| if n == 0 { n_ctx_train } else { n as usize }),
        n_sequences: flags.parallel.into(),
        threads: flags.threads.map(usize::from),
        cache_type_k: cache_type(flags.cache_type_k),
        cache_type_v: cache_type(flags.cache_type_v),
        flash_attention: match flags.flash_attn {
            FlashAttn::Auto => FlashAttention::Auto,
            FlashAttn::On => FlashAttention::On,
            FlashAttn::Off => FlashAttention::Off,
        },
        exact: flags.spec.exact,
        n_batch: flags.batch_size.min(flags.ubatch_size.unwrap_or(u32::MAX)) as usize,
        max_queue: flags.max_queue as usize,
        checkpoint_bytes: (flags.checkpoint_ram as usize) << 20,
        checkpoint_every: flags.checkpoint_every.map(|n| n.max(0) as usize),
        store_bytes: (flags.cache_ram as usize) << 20,
        warm_up: flags.no_warmup.then_some(false),
        ..EngineConfig::default()
    }
}

fn template_source(model: &Model, file: Option<&Path>) -> Result<Option<String>, String> {
    match file {
        Some(path) => std::fs::read_to_string(path).map(Some).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(model.chat_template().map(str::to_owned)),
    }
}

fn template(model: &Model, source: Option<&str>) -> Result<Option<ChatTemplate>, String> {
    let Some(source) = source else { return Ok(None) };
    let vocab = model.vocab();
    let text = |id: Option<TokenId>| id.and_then(|id| vocab.bytes(id)).map(|b| String::from_utf8_lossy(b).into_owned());
    let template = ChatTemplate::new(source).map_err(|error| error.to_string())?;
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
