//! The options that all commands share, and what they open.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Args;
use engine::{EngineConfig, Exact};
use memory::{CacheType, Memory, MemoryConfig};
use model::{LoadOptions, MemoryPlanner, Model, Projector, ProjectorOptions, Runner};
use speculate::{Mode, SpecConfig};
use text::TokenId;

use super::conversation::{Prompt, Sees};
use super::weigh::Weight;
use session::DraftFiles;
use session::options::{AdapterOptions, ComputeOptions, DraftOptions};

use program::source;

/// Model, threads and cache.
#[derive(Clone, Debug, Args)]
pub(super) struct Setup {
    /// GGUF file [default: the embedded model]
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Draft with another GGUF file: a small model of the same tokens, or a head; one of each
    ///
    /// Drafts are those of a given head; best: chooses between it and the model's own
    #[arg(long, value_name = "FILE")]
    draft_model: Vec<PathBuf>,
    #[command(flatten)]
    adapters: AdapterOptions,
    #[command(flatten)]
    compute: ComputeOptions,
    /// Batch-invariant output: on, off, or a fixed batch width N
    #[arg(long, value_name = "WHEN", default_value_t, num_args = 0..=1, default_missing_value = "on")]
    exact: Exact,
}

/// Tells of options that change nothing.
pub(super) fn warn(sentences: Vec<String>) {
    for sentence in sentences {
        tracing::warn!("{sentence}");
    }
}

/// Positions that a choice of layers leaves room for.
const N_CELLS: usize = 8192;

/// Token ids on the command line or in a file.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct Input {
    /// Token ids, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "ID,ID,...")]
    tokens: Option<Vec<u32>>,
    /// File with a JSON array of token ids
    #[arg(long, value_name = "FILE")]
    ids_file: Option<PathBuf>,
    /// File with a JSON object whose `parts` are token ids and pictures: [{"ids": [..]}, {"image": path}, ..]
    #[arg(long, value_name = "FILE")]
    conv_file: Option<PathBuf>,
}

impl Setup {
    pub(super) fn open(&self) -> anyhow::Result<Arc<Model>> {
        warn(self.compute.device.without_effect());
        warn(self.compute.rope.without_effect());
        // Commands decide later what they keep: a sequence with drafts, as far as that goes.
        let planned = self.engine(N_CELLS);
        let planner = MemoryPlanner::new(move |facts| speculate::memory_plan(&planned, &SpecConfig::default(), facts));
        let head = self.draft_files(Mode::Auto)?.head;
        let device = &self.compute.device;
        let (placement, adapters) = (device.placement(planner)?, self.adapters.files());
        let rope = self.compute.rope.options();
        let options = LoadOptions {
            placement,
            head,
            keep_own_head: true,
            rope,
            adapters,
            lock: device.mlock,
            ..LoadOptions::default()
        };
        Ok(session::open_weights(&source(self.model.as_deref()), &options)?)
    }

    /// The files to draft with, by what they are where drafts come from so.
    fn draft_files(&self, spec: Mode) -> anyhow::Result<DraftFiles> {
        let drafts = DraftOptions { spec, draft_model: self.draft_model.clone(), ..DraftOptions::default() };
        Ok(DraftFiles::of(&source(self.model.as_deref()), &drafts)?)
    }

    /// The draft model, if one was given.
    pub(super) fn draft_model(&self, spec: Mode) -> anyhow::Result<Option<Arc<Model>>> {
        let Some(path) = self.draft_files(spec)?.model else { return Ok(None) };
        let planned = self.engine(N_CELLS);
        let engine = move |_| planned.clone();
        Ok(Some(session::open_draft(
            &path,
            &self.compute.device,
            SpecConfig::default(),
            engine,
            &session::FileProgress::default(),
        )?))
    }

    /// A projector on the model's first device.
    pub(super) fn projector(&self, path: &Path) -> anyhow::Result<Projector> {
        let device = &self.compute.device;
        device.load_backends()?;
        let chosen = device.chosen()?.first().copied();
        let options = ProjectorOptions {
            device: chosen,
            n_threads: self.n_threads(),
            lock: device.mlock,
            ..ProjectorOptions::default()
        };
        Projector::open(path, &options).map_err(|error| anyhow::anyhow!(error.in_file(path)))
    }

    /// The GPUs that take layers, or none.
    pub(super) fn gpus(&self) -> anyhow::Result<Vec<ggml::Device>> {
        Ok(self.compute.device.placement(MemoryPlanner::default())?.gpus)
    }

    /// Settings of an engine with `n_ctx` positions.
    pub(super) fn engine(&self, n_ctx: usize) -> EngineConfig {
        EngineConfig { n_ctx: Some(n_ctx), exact: self.exact, ..self.compute.engine_config() }
    }

    /// A runner and a memory of one sequence with `n_ctx` positions.
    pub(super) fn runner(&self, model: &Arc<Model>, n_ctx: usize) -> anyhow::Result<(Runner, Memory)> {
        let config = self.engine(n_ctx);
        let memory: MemoryConfig = config.memory(model);
        Ok((self.adapted(model, config.n_threads())?, model.memory(memory)?))
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
        Ok((self.adapted(model, config.n_threads())?, model.memory(memory)?))
    }

    /// A runner that computes with the adapters.
    fn adapted(&self, model: &Arc<Model>, n_threads: usize) -> anyhow::Result<Runner> {
        let mut runner = Runner::new(Arc::clone(model), n_threads)?;
        runner.use_adapters(&self.adapters.set()?)?;
        Ok(runner)
    }

    /// The LoRA adapters.
    pub(super) fn adapters(&self) -> &AdapterOptions {
        &self.adapters
    }

    /// Types of keys and values.
    pub(super) fn caches(&self) -> (CacheType, CacheType) {
        (self.compute.cache_type_k, self.compute.cache_type_v)
    }

    /// The same with other types of keys and values.
    pub(super) fn with_caches(&self, (cache_type_k, cache_type_v): (CacheType, CacheType)) -> Self {
        let compute = ComputeOptions { cache_type_k, cache_type_v, ..self.compute.clone() };
        Self { compute, ..self.clone() }
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
            None => Weight::of_maps(&[program::embedded::model_bytes()]).context("embedded model"),
        }
    }

    /// Threads that will compute.
    pub(super) fn n_threads(&self) -> usize {
        self.engine(1).n_threads()
    }
}

impl Input {
    /// The prompt for a model.
    pub(super) fn prompt(&self, sees: &Sees, setup: &Setup, model: &Arc<Model>) -> anyhow::Result<Prompt> {
        match &self.conv_file {
            Some(path) => sees.prompt(path, |mmproj| setup.projector(mmproj), model),
            None => Ok(Prompt::of_words(self.ids()?)),
        }
    }

    /// The ids, at least one.
    fn ids(&self) -> anyhow::Result<Vec<TokenId>> {
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
