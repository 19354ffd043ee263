//! What a user may say about a model: once for all programs, with the flags' names, ranges and help texts.
//! Owns what options mean for the engine. The options that a program has for itself are its own.

mod adapters;
mod calibration;
mod device_names;
mod devices;
mod drafts;
mod embedding;
mod images;
mod rope;
mod sampling;
mod tensor_overrides;

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use engine::{ContextShift, DiskConfig, EngineConfig, FlashAttention};
use memory::CacheType;

use crate::file_progress::FileProgress;
use crate::learning::LearnOptions;

pub use adapters::AdapterOptions;
pub use calibration::CalibrationPlace;
pub use devices::{DeviceChoice, DeviceError, DeviceOptions, NumaMode, SplitMode, device_table};
pub use drafts::DraftOptions;
pub use embedding::EmbeddingOptions;
pub use images::{ImageLimitOptions, ImageOptions, ProjectorError};
pub use rope::RopeArgs;
pub use sampling::{SamplingOptions, defaults_of_file, markdown_table, request_fields, request_schema};
pub use tensor_overrides::TensorOverrides;

/// What the model computes with.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Performance")]
pub struct ComputeOptions {
    /// Number of CPU threads [default: one per physical core]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// KV cache type of keys
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type())]
    pub cache_type_k: CacheType,

    /// KV cache type of values
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type())]
    pub cache_type_v: CacheType,

    /// Rotate quantized keys and values, so that they lose less by rounding: on or off [default: on]
    #[arg(long, value_name = "WHEN", value_parser = on_or_off())]
    pub kv_rotate: Option<bool>,

    /// Flash attention: no full score matrix
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = flash_attention())]
    pub flash_attn: FlashAttention,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub device: DeviceOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub rope: RopeArgs,
}

fn cache_type() -> impl TypedValueParser<Value = CacheType> {
    PossibleValuesParser::new(CacheType::ALL.map(CacheType::name)).try_map(|word| word.parse())
}

fn on_or_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|word| word == "on")
}

fn flash_attention() -> impl TypedValueParser<Value = FlashAttention> {
    PossibleValuesParser::new(["on", "off", "auto"]).try_map(|word| word.parse())
}

/// How the model runs: its context, and what it computes with.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Performance")]
pub struct RunOptions {
    /// Context of one sequence in tokens, prompt and reply together; 0 is all that the model was trained for
    /// [default: the model's, at most 8192]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    pub ctx_size: Option<u32>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub compute: ComputeOptions,
}

/// What happens when the context is full.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Generation")]
pub struct ShiftOptions {
    /// Go on when the context is full: the first tokens stay, and of the rest the later half, which is computed anew
    #[arg(long)]
    pub context_shift: bool,

    /// Tokens of the prompt that stay in a context shift, half of the context at most; -1 is all of it [default: its first
    /// message]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..))]
    pub keep: Option<i32>,
}

impl ShiftOptions {
    /// What it asks for; `None` ends replies when the context is full.
    pub fn shift(&self) -> Option<ContextShift> {
        let keep = self.keep.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        self.context_shift.then_some(ContextShift { keep, discard: None })
    }
}

/// How many sequences are served at a time, and what is kept of those that are not.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Batching and caches")]
pub struct CapacityOptions {
    /// Number of sequences decoded in parallel
    #[arg(long = "parallel", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub parallel: u16,

    /// Requests that may wait for a sequence, those in preparation included; more are refused with 503
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_queue: u32,

    /// Most tokens of one forward pass; with --ubatch-size the smaller counts
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: u32,

    /// llama.cpp's name for the tokens of one forward pass
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub ubatch_size: Option<u32>,

    /// Skip the GPU warm-up
    #[arg(long)]
    pub no_warmup: bool,

    /// Memory for the KV cache and recurrent state of all sequences, in MiB: requests wait for it; auto is nine tenths of what
    /// is free at the start (models on a CPU)
    #[arg(long, value_name = "MIB", default_value = "auto", value_parser = kv_memory)]
    pub kv_memory: KvMemory,

    /// Host memory for conversations that had to leave their slot, in MiB; 0 keeps none
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    pub cache_ram: u32,

    /// Folder in which conversations outlive the program; none are kept without it
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,

    /// Most that is kept there, in MiB, of all models together
    #[arg(long, value_name = "MIB", requires = "cache_dir", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    pub cache_disk: u32,

    /// Host memory for checkpoints of recurrent state, in MiB; 0 takes none
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub checkpoint_ram: u32,

    /// Prompt tokens between checkpoints; 0 or -1: at message boundaries only [default: 512 on a CPU, 2048 on a
    /// GPU]
    #[arg(long, aliases = ["checkpoint-every-n-tokens", "checkpoint-min-step"], value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..))]
    pub checkpoint_every: Option<i32>,
}

/// How much memory the state of sequences may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvMemory {
    /// By what is free.
    #[default]
    Auto,
    /// So many MiB.
    Mib(u32),
}

fn kv_memory(word: &str) -> Result<KvMemory, String> {
    match (word, word.parse()) {
        ("auto", _) => Ok(KvMemory::Auto),
        (_, Ok(n @ 1..)) => Ok(KvMemory::Mib(n)),
        _ => Err(format!("`{word}` is neither auto nor a number of MiB from 1")),
    }
}

impl CapacityOptions {
    /// Of one conversation at a time, which goes on at the ends of its messages: nothing else begins as it does.
    pub fn of_one_chat() -> Self {
        let of_engine = EngineConfig::default();
        Self {
            parallel: 1,
            max_queue: of_engine.max_queue as u32,
            batch_size: of_engine.n_batch as u32,
            ubatch_size: None,
            no_warmup: false,
            kv_memory: KvMemory::Auto,
            cache_ram: 0,
            cache_dir: None,
            cache_disk: 8192,
            checkpoint_ram: (of_engine.checkpoint_bytes >> 20) as u32,
            checkpoint_every: Some(0),
        }
    }
}

/// Where a chat template comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TemplateSource {
    /// The model file; it may have none.
    #[default]
    File,
    /// Here.
    Given(String),
    /// Nowhere: the model continues texts only, and a template that does not compile is no fault.
    None,
}

/// All that shapes an open model.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Context and devices.
    pub run: RunOptions,
    /// LoRA adapters.
    pub adapters: AdapterOptions,
    /// Speculative decoding.
    pub drafts: DraftOptions,
    /// Sequences and caches.
    pub capacity: CapacityOptions,
    /// A file with the model's MTP layer that was found beside the model. It is used where no other is asked for and drafts are
    /// made with a layer; one that does not fit is told in the log.
    pub head_beside: Option<PathBuf>,
    /// Keep finished replies to train the head on.
    pub learn: Option<LearnOptions>,
    /// The projector, and how large pictures are for it.
    pub images: ImageOptions,
    /// A projector that a hub's repository has for the model. One that cannot be used is told in the log.
    pub projector_beside: Option<PathBuf>,
    /// Sampling where a request does not say, over the values of the model file.
    pub sampling: SamplingOptions,
    /// Where the chat template comes from.
    pub chat_template: TemplateSource,
    /// Make room for embeddings.
    pub embeddings: bool,
    /// How they are made.
    pub embedding: EmbeddingOptions,
    /// Told how far the files are.
    pub progress: FileProgress,
}

impl Default for ModelOptions {
    /// Of one chat, with every option left out.
    fn default() -> Self {
        Self {
            run: RunOptions::default(),
            adapters: AdapterOptions::default(),
            drafts: DraftOptions::default(),
            capacity: CapacityOptions::of_one_chat(),
            head_beside: None,
            learn: None,
            images: ImageOptions::default(),
            projector_beside: None,
            sampling: SamplingOptions::default(),
            chat_template: TemplateSource::File,
            embeddings: false,
            embedding: EmbeddingOptions::default(),
            progress: FileProgress::default(),
        }
    }
}

impl ComputeOptions {
    /// An engine of one sequence that computes so.
    pub fn engine_config(&self) -> EngineConfig {
        EngineConfig {
            threads: self.threads.map(usize::from),
            cache_type_k: self.cache_type_k,
            cache_type_v: self.cache_type_v,
            cache_rotation: self.kv_rotate.unwrap_or(true),
            flash_attention: self.flash_attn,
            ..EngineConfig::default()
        }
    }
}

impl ModelOptions {
    /// The engine that follows for a model trained for `n_ctx_train` tokens.
    pub fn engine_config(&self, n_ctx_train: usize) -> EngineConfig {
        let capacity = &self.capacity;
        EngineConfig {
            n_ctx: self.run.ctx_size.map(|n| if n == 0 { n_ctx_train } else { n as usize }),
            n_sequences: capacity.parallel.into(),
            exact: self.drafts.exact,
            n_batch: capacity.batch_size.min(capacity.ubatch_size.unwrap_or(u32::MAX)) as usize,
            max_queue: capacity.max_queue as usize,
            checkpoint_bytes: (capacity.checkpoint_ram as usize) << 20,
            checkpoint_every: capacity.checkpoint_every.map(|n| n.max(0) as usize),
            store_bytes: (capacity.cache_ram as usize) << 20,
            disk: capacity
                .cache_dir
                .clone()
                .map(|dir| DiskConfig { dir, n_bytes: u64::from(capacity.cache_disk) << 20 }),
            kv_bytes: match capacity.kv_memory {
                KvMemory::Auto => None,
                KvMemory::Mib(n) => Some((n as usize) << 20),
            },
            warm_up: capacity.no_warmup.then_some(false),
            embeddings: self.embeddings,
            ..self.run.compute.engine_config()
        }
    }

    /// What was given and changes nothing beside the rest, a sentence each.
    pub fn without_effect(&self, has_head: bool, has_draft: bool) -> Vec<String> {
        let compute = &self.run.compute;
        let embedding = if self.embeddings { Vec::new() } else { self.embedding.without_effect() };
        let drafts = self.drafts.without_effect(has_head, has_draft);
        [compute.device.without_effect(), compute.rope.without_effect(), drafts, embedding].concat()
    }
}
