//! From options to a model that answers: weights, template, sampling defaults, speculation, engine.

use std::path::Path;
use std::sync::Arc;

use api::{Loader, Served};
use constrain::{Compiler, Limits};
use engine::{Engine, EngineConfig, FlashAttention, Proposer};
use model::{LoadOptions, Model};
use speculate::{NextN, NextNConfig};
use text::TokenId;
use text::template::ChatTemplate;

use super::args::ModelFlags;
use crate::cli::choices::{CacheType, FlashAttn};
use crate::cli::sampling::SamplingFlags;
use crate::cli::settings::{FileSampling, resolve};

/// Loads the one model of the command line.
pub(super) struct FromFlags {
    pub(super) flags: ModelFlags,
    pub(super) sampling: SamplingFlags,
}

impl Loader for FromFlags {
    fn load(&self, id: &str) -> Result<Served, String> {
        let flags = &self.flags;
        let options = LoadOptions::default();
        let model = match &flags.model {
            Some(path) => Model::open(path, &options).map_err(|error| error.in_file(path))?,
            None => Model::from_static(crate::embedded::model_bytes(), &options)
                .map_err(|error| format!("the embedded model: {error}"))?,
        };
        let config = engine_config(flags);
        let template_source = template_source(&model, flags.chat_template_file.as_deref())?;
        let template = template(&model, template_source.as_deref())?;
        let file: FileSampling = model.sampling_defaults().iter().map(|(name, &value)| (name.clone(), value)).collect();
        let head = NextN::new(&model, &config, NextNConfig::default()).map_err(|error| error.to_string())?;
        let proposer = head.map(|head| Box::new(head) as Box<dyn Proposer>);
        let max_draft = proposer.as_ref().map_or(0, |p| p.max_depth());
        let n_sequences = config.n_sequences;
        let engine = Engine::spawn_with(Arc::clone(&model), config, proposer).map_err(|error| error.to_string())?;
        Ok(Served {
            id: id.to_owned(),
            engine,
            grammars: Compiler::new(model.shared_vocab(), Limits::default()).map_err(|error| error.to_string())?,
            template,
            template_source: template_source.unwrap_or_default(),
            sampling: resolve(&self.sampling, &file),
            max_draft,
            n_sequences,
            path: flags.model.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
            model,
        })
    }
}

fn engine_config(flags: &ModelFlags) -> EngineConfig {
    EngineConfig {
        n_ctx: flags.ctx_size.map(|n| n as usize),
        n_sequences: flags.parallel.into(),
        threads: flags.threads.map(usize::from),
        cache_type_k: cache_type(flags.cache_type_k),
        cache_type_v: cache_type(flags.cache_type_v),
        flash_attention: match flags.flash_attn {
            FlashAttn::Auto => FlashAttention::Auto,
            FlashAttn::On => FlashAttention::On,
            FlashAttn::Off => FlashAttention::Off,
        },
        n_batch: flags.batch_size as usize,
        max_queue: flags.max_queue as usize,
        checkpoint_bytes: (flags.checkpoint_ram as usize) << 20,
        store_bytes: (flags.cache_ram as usize) << 20,
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
