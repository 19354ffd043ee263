//! The options that all commands share, and what they open.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use engine::{EngineConfig, Exact, FlashAttention};
use memory::{CacheType, Memory, MemoryConfig};
use model::{Beside, LoadOptions, Model, Runner};
use speculate::SpecConfig;
use text::TokenId;

use super::weigh::Weight;
use crate::devices::DeviceFlags;

/// Model, threads and cache.
#[derive(Clone, Debug, Args)]
pub(super) struct Setup {
    /// GGUF file; the embedded model if absent
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Threads; one for each core if absent
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: Option<u16>,
    /// Form of attention: on, off, auto
    #[arg(long, default_value_t)]
    flash_attn: FlashAttention,
    /// Answers whose bits depend on nothing beside them: off, on, or passes of so many rows
    #[arg(long, default_value_t, num_args = 0..=1, default_missing_value = "on")]
    exact: Exact,
    /// Type of the cached keys: f32, f16, q8_0, q4_0
    #[arg(long, default_value_t)]
    cache_type_k: CacheType,
    /// Type of the cached values: f32, f16, q8_0, q4_0
    #[arg(long, default_value_t)]
    cache_type_v: CacheType,
    #[command(flatten)]
    device: DeviceFlags,
}

/// Positions that a choice of layers leaves room for.
const N_CELLS: usize = 8192;

/// Token ids on the command line or in a file.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct Input {
    /// Token ids, joined by commas
    #[arg(long, value_delimiter = ',', value_name = "ID,ID,...")]
    tokens: Option<Vec<u32>>,
    /// A JSON array of token ids
    #[arg(long, value_name = "FILE")]
    ids_file: Option<PathBuf>,
}

/// Opens a file, or the embedded model.
pub(super) fn open(path: Option<&Path>, options: &LoadOptions) -> anyhow::Result<Arc<Model>> {
    match path {
        Some(path) => Model::open(path, options).map_err(|error| anyhow!(error.in_file(path))),
        None => Model::from_static(crate::embedded::model_bytes(), options).context("embedded model"),
    }
}

impl Setup {
    pub(super) fn open(&self) -> anyhow::Result<Arc<Model>> {
        crate::idle::warn(self.device.idle());
        // Commands decide later what they keep: a sequence with drafts, as far as that goes.
        let planned = self.engine(N_CELLS);
        let beside = Beside::new(move |facts| speculate::kept(&planned, &SpecConfig::default(), facts));
        let options = LoadOptions { placement: self.device.placement(beside)?, head: None, lock: self.device.mlock };
        open(self.model.as_deref(), &options)
    }

    /// The GPUs that take layers, or none.
    pub(super) fn gpus(&self) -> anyhow::Result<Vec<ggml::Device>> {
        Ok(self.device.placement(Beside::default())?.gpus)
    }

    /// Settings of an engine with `n_ctx` positions.
    pub(super) fn engine(&self, n_ctx: usize) -> EngineConfig {
        EngineConfig {
            n_ctx: Some(n_ctx),
            threads: self.threads.map(usize::from),
            cache_type_k: self.cache_type_k,
            cache_type_v: self.cache_type_v,
            flash_attention: self.flash_attn,
            exact: self.exact,
            ..EngineConfig::default()
        }
    }

    /// A runner and a memory of one sequence with `n_ctx` positions.
    pub(super) fn runner(&self, model: &Arc<Model>, n_ctx: usize) -> anyhow::Result<(Runner, Memory)> {
        let config = self.engine(n_ctx);
        let memory: MemoryConfig = config.memory(model);
        Ok((Runner::new(Arc::clone(model), config.n_threads())?, model.memory(memory)?))
    }

    /// As [`Setup::runner`], for steps that keep several snapshots.
    pub(super) fn runner_with(
        &self,
        model: &Arc<Model>,
        n_ctx: usize,
        n_snapshots: usize,
    ) -> anyhow::Result<(Runner, Memory)> {
        let config = self.engine(n_ctx);
        let memory = MemoryConfig { n_snapshots, ..config.memory(model) };
        Ok((Runner::new(Arc::clone(model), config.n_threads())?, model.memory(memory)?))
    }

    /// Types of keys and values.
    pub(super) fn caches(&self) -> (CacheType, CacheType) {
        (self.cache_type_k, self.cache_type_v)
    }

    /// The same with other types of keys and values.
    pub(super) fn with_caches(&self, (cache_type_k, cache_type_v): (CacheType, CacheType)) -> Self {
        Self { cache_type_k, cache_type_v, ..self.clone() }
    }

    /// The same with another file.
    pub(super) fn with_model(&self, model: PathBuf) -> Self {
        Self { model: Some(model), ..self.clone() }
    }

    /// The file, unless it is the embedded model.
    pub(super) fn path(&self) -> Option<&Path> {
        self.model.as_deref()
    }

    /// Bytes of the model by what they are for.
    pub(super) fn weight(&self) -> anyhow::Result<Weight> {
        match &self.model {
            Some(path) => Weight::of_file(path),
            None => Weight::of_maps(&[crate::embedded::model_bytes()]).context("embedded model"),
        }
    }

    /// Threads that will compute.
    pub(super) fn n_threads(&self) -> usize {
        self.engine(1).n_threads()
    }
}

impl Input {
    /// The ids, at least one.
    pub(super) fn ids(&self) -> anyhow::Result<Vec<TokenId>> {
        let ids: Vec<u32> = match (&self.tokens, &self.ids_file) {
            (Some(tokens), _) => tokens.clone(),
            (None, Some(path)) => {
                let text = std::fs::read(path).with_context(|| path.display().to_string())?;
                serde_json::from_slice(&text).with_context(|| format!("{}: a JSON array of ids", path.display()))?
            }
            (None, None) => Vec::new(),
        };
        ensure!(!ids.is_empty(), "there are no token ids: give at least one");
        Ok(ids.into_iter().map(TokenId).collect())
    }
}

/// The likeliest token, the lowest id among equals.
pub(super) fn argmax(logits: &[f32]) -> TokenId {
    let better = |best: (usize, f32), (i, &l): (usize, &f32)| if l > best.1 { (i, l) } else { best };
    TokenId(logits.iter().enumerate().fold((0, f32::NEG_INFINITY), better).0 as u32)
}

/// Prints a line of the result. A reader that has gone is an error like any other, not a panic.
pub(super) fn say(line: impl Display) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout().lock(), "{line}")?)
}
