//! The files of a model: its own, and those that it drafts with, each opened as what it is.
//! Owns which file given for drafts is a head and which a model of its own. Knows no engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::EngineConfig;
use model::{
    DraftFile, ExpertCacheSize, GpuLayers, LoadOptions, MemoryPlanner, Model, Placement, WhichHead, map_shards,
};
use speculate::SpecConfig;

use crate::file_progress::FileProgress;
use crate::open_error::OpenError;
use crate::options::{DeviceOptions, DraftOptions, ModelOptions};

/// Where a model comes from.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A GGUF file; of a split one its first part.
    File(PathBuf),
    /// A GGUF file that is part of the program.
    Embedded(&'static [u8]),
}

impl<P: Into<PathBuf>> From<P> for ModelSource {
    fn from(path: P) -> Self {
        Self::File(path.into())
    }
}

/// Weights that are open.
pub(crate) struct Opened {
    /// The target.
    pub(crate) model: Arc<Model>,
    /// What drafts beside it.
    pub(crate) draft: Option<Arc<Model>>,
    /// The file of its NextN head, where that is not the model's.
    pub(crate) head: Option<PathBuf>,
}

/// The files given for drafts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftFiles {
    /// With the NextN head.
    pub head: Option<PathBuf>,
    /// A model of its own.
    pub model: Option<PathBuf>,
}

impl DraftFiles {
    /// Those of `drafts` beside a target, each by what it is; where only one kind is drafted with, a file that could be either
    /// is that.
    ///
    /// # Errors
    /// A file that cannot be read, or two of one kind.
    pub fn of(source: &ModelSource, drafts: &DraftOptions) -> Result<Self, OpenError> {
        let mut files = Self::default();
        if drafts.draft_model.is_empty() {
            return Ok(files);
        }
        let target = match source {
            // What is wrong with it will be told when it is opened.
            ModelSource::File(path) => map_shards(path).ok().and_then(|shards| shards.into_iter().next()),
            ModelSource::Embedded(bytes) => Some(Arc::new(ggml::Mapping::Static(bytes))),
        };
        for path in &drafts.draft_model {
            let in_file = |error: model::LoadError| OpenError::Model(error.in_file(path));
            let shards = map_shards(path).map_err(in_file)?;
            let kind = match (drafts.spec.uses_head(), drafts.spec.uses_draft_model()) {
                (true, false) => DraftFile::Head,
                (false, true) => DraftFile::of(&shards, None).map_err(in_file)?,
                _ => DraftFile::of(&shards, target.as_ref().map(|target| target.bytes())).map_err(in_file)?,
            };
            let (place, what) = match kind {
                DraftFile::Head => (&mut files.head, "an MTP layer"),
                DraftFile::Model => (&mut files.model, "a model"),
            };
            if let Some(first) = place.replace(path.clone()) {
                return Err(OpenError::Model(format!(
                    "--draft-model: {} and {} are each {what} to draft with: give one of a kind",
                    first.display(),
                    path.display()
                )));
            }
        }
        Ok(files)
    }
}

/// Opens the target and what drafts beside it, and places their layers.
pub(crate) fn open_files(source: &ModelSource, options: &ModelOptions) -> Result<Opened, OpenError> {
    let files = DraftFiles::of(source, &options.drafts)?;
    // Before the target, whose layers take what is left.
    let draft = match files.model.filter(|_| options.drafts.uses_draft_model()) {
        Some(path) => {
            let planned = options.clone();
            let engine = move |n_ctx_train| planned.engine_config(n_ctx_train);
            let device = &options.run.compute.device;
            Some(open_draft(&path, device, options.drafts.config(), engine, &options.progress)?)
        }
        None => None,
    };
    let (model, head) = open_target(source, options, files.head, draft.as_ref())?;
    Ok(Opened { model, draft, head })
}

/// Opens a draft model on the devices of its target: on GPUs as many layers as fit. `engine` is made of the longest context that
/// a model knows; `progress` is told how far the file is.
///
/// # Errors
/// [`OpenError`]: no such devices, or a file that is no sound model.
pub fn open_draft(
    path: &Path,
    device: &DeviceOptions,
    drafts: SpecConfig,
    engine: impl Fn(usize) -> EngineConfig + Send + Sync + 'static,
    progress: &FileProgress,
) -> Result<Arc<Model>, OpenError> {
    let planner = MemoryPlanner::new(move |facts| {
        speculate::draft_model_plan(&engine(facts.hparams.n_ctx_train), &drafts, facts, facts)
    });
    let placement = device.placement(planner)?;
    // What was said of the target's layers holds for the target.
    let layers = if placement.layers == GpuLayers::Count(0) { placement.layers } else { GpuLayers::Auto };
    let placement =
        Placement { layers, n_cpu_moe: 0, expert_cache: ExpertCacheSize::Off, overrides: Vec::new(), ..placement };
    let load = LoadOptions { placement, lock: device.mlock, progress: progress.of(path), ..LoadOptions::default() };
    let model = Model::open(path, &load).map_err(|error| OpenError::Model(error.in_file(path)))?;
    tracing::info!(file = %path.display(), "draft model: {}", model.describe());
    Ok(model)
}

fn open_target(
    source: &ModelSource,
    options: &ModelOptions,
    given: Option<PathBuf>,
    draft: Option<&Arc<Model>>,
) -> Result<(Arc<Model>, Option<PathBuf>), OpenError> {
    let (planned, drafts) = (options.clone(), options.drafts.config());
    let of_draft = draft.map(|draft| draft.facts().clone());
    let planner = MemoryPlanner::new(move |facts| {
        let engine = planned.engine_config(facts.hparams.n_ctx_train);
        speculate::memory_plan_with(&engine, &drafts, facts, of_draft.as_ref())
    });
    let device = &options.run.compute.device;
    let placement = device.placement(planner)?;
    let rope = options.run.compute.rope.options();
    let beside = options.head_beside.clone().filter(|_| given.is_none() && options.drafts.uses_head());
    let head = given.or_else(|| beside.clone());
    let progress = match source {
        ModelSource::File(path) => options.progress.of(path),
        ModelSource::Embedded(_) => ggml::LoadProgress::default(),
    };
    let load = LoadOptions {
        placement,
        head: head.clone(),
        keep_own_head: options.drafts.config().chooses_heads(),
        replaceable_head: options.learn.as_ref().is_some_and(|learn| learn.live.is_some()),
        rope,
        adapters: options.adapters.files(),
        lock: device.mlock,
        progress,
    };
    match (open_weights(source, &load), beside) {
        // The fault may be the model's: then this is its error.
        (Err(error), Some(beside)) => {
            let model = open_weights(source, &LoadOptions { head: None, ..load })?;
            tracing::warn!(file = %beside.display(), %error, "the MTP layer beside the model does not fit: going on without it");
            Ok((model, None))
        }
        (opened, _) => {
            let model = opened?;
            if let (Some(given), [_, WhichHead::Own]) = (&head, model.heads()) {
                tracing::info!(given = %given.display(), "two NextN heads: each sequence drafts by the given one or the model's own, whichever is accepted more");
            }
            Ok((model, head))
        }
    }
}

/// Opens the weights alone, without an engine.
///
/// # Errors
/// [`OpenError::Model`].
pub fn open_weights(source: &ModelSource, options: &LoadOptions) -> Result<Arc<Model>, OpenError> {
    match source {
        ModelSource::File(path) => Model::open(path, options).map_err(|error| OpenError::Model(error.in_file(path))),
        ModelSource::Embedded(bytes) => {
            Model::from_static(bytes, options).map_err(|error| OpenError::Model(format!("the embedded model: {error}")))
        }
    }
}
