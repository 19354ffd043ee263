//! What an engine is made with, and why it may not start.

use std::fmt;
use std::str::FromStr;

use memory::{CacheType, MemoryConfig};
use model::{Facts, MemoryPlan, Model};

use crate::batch::{BatchPolicy, MAX_FORCED};
use crate::cache::CacheLimits;
use crate::disk_store::DiskConfig;
use crate::finished::ReplySink;

/// Positions of a sequence when the user does not say: the model's, up to this.
const DEFAULT_N_CTX: usize = 8192;

/// Most positions of a sequence: the kernels count them in 32 bits, and memory rounds them up.
const MAX_N_CTX: usize = 1 << 30;

/// Batch-invariant output: whether a generation's bits depend on its own tokens alone, not on drafts nor on other sequences.
///
/// Drafts leave generations as they are in either case, as far as tokens have the bits that they have alone
/// (docs/NUMERICS.md): on a CPU that holds for one sequence without further ado.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Exact {
    /// Whatever is ready shares a batch.
    #[default]
    Off,
    /// Batches are shared as far as the device's kernels keep tokens apart; where they do not, every generation computes
    /// alone, in batches of 8 tokens, drafts or not.
    On,
    /// Every generation computes alone, in batches of so many tokens.
    Width(usize),
}

impl FromStr for Exact {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match (s, s.parse()) {
            ("on", _) => Ok(Self::On),
            ("off", _) => Ok(Self::Off),
            (_, Ok(n @ 1..=32)) => Ok(Self::Width(n)),
            _ => Err(format!("`{s}` is not one of on, off, or a batch width from 1 to 32")),
        }
    }
}

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On => f.write_str("on"),
            Self::Width(n) => write!(f, "{n}"),
        }
    }
}

/// Tokens of every batch of a generation, where tokens have the same bits only in batches of the same width: the most that
/// the kernels for small batches of GPUs take.
const EXACT_WIDTH: usize = 8;

/// Prompt tokens between checkpoints. A copy of some 19 MB (Qwen3.5 of 0.8 B) takes as long as a few tokens on a CPU, and as
/// some dozens on a GPU.
const CHECKPOINT_EVERY_ON_CPU: usize = 512;
const CHECKPOINT_EVERY: usize = 2048;

/// Which form attention takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FlashAttention {
    /// What is fastest where both are possible.
    #[default]
    Auto,
    /// The fused op.
    On,
    /// Products and softmax, values kept transposed; plain cache types only.
    Off,
}

impl FromStr for FlashAttention {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("`{s}` is not one of on, off, auto")),
        }
    }
}

impl fmt::Display for FlashAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Positions of one sequence; `None` is the model's, up to 8192.
    pub n_ctx: Option<usize>,
    /// Sequences at a time.
    pub n_sequences: usize,
    /// Threads that compute; `None` is one for each core.
    pub threads: Option<usize>,
    /// Type of the cached keys.
    pub cache_type_k: CacheType,
    /// Type of the cached values.
    pub cache_type_v: CacheType,
    /// Rotate cached keys and values of quantised types, so that they lose less by rounding.
    pub cache_rotation: bool,
    /// Form of attention.
    pub flash_attention: FlashAttention,
    /// Tokens of one batch at most.
    pub n_batch: usize,
    /// Prompt tokens of a batch while generations are running: how long a long prompt may hold them up. More, up to `n_batch`, on
    /// a GPU that takes less than 100 ms for them.
    pub n_batch_shared: usize,
    /// Requests that may wait for a sequence, at least 1: every request waits, if only until the running step is over.
    pub max_queue: usize,
    /// Host memory for checkpoints of recurrent state, in bytes, over all sequences.
    pub checkpoint_bytes: usize,
    /// Prompt tokens after which a checkpoint of recurrent state is taken where there is no message boundary; more where
    /// the prompt is so long that they would not fit. 0 takes them at message boundaries only; `None` is 512 on a CPU and
    /// 2048 elsewhere, where a copy costs more beside the prompt.
    pub checkpoint_every: Option<usize>,
    /// Host memory for whole sequences that had to leave their slots, in bytes; 0 keeps none.
    pub store_bytes: usize,
    /// Where sequences are kept that outlive the program, and how much of them; `None` keeps none.
    pub disk: Option<DiskConfig>,
    /// Gets the replies that are complete, where somebody learns from them.
    pub replies: Option<ReplySink>,
    /// Memory that state of running and resting sequences may take, in bytes, where it is taken when it is written; `None` is
    /// nine tenths of what the machine has free at the start.
    pub kv_bytes: Option<usize>,
    /// Batch-invariant output: off, on, or a fixed batch width.
    pub exact: Exact,
    /// Compute buffers have room for requests with [`crate::RequestOptions::embed`].
    pub embeddings: bool,
    /// Compute something before the first request, so that it finds kernels loaded, graphs built and the costs of drafts
    /// known; `None` does so where the model is on a GPU. On a CPU there is little to prepare.
    pub warm_up: Option<bool>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            n_ctx: None,
            n_sequences: 1,
            threads: None,
            cache_type_k: CacheType::F16,
            cache_type_v: CacheType::F16,
            cache_rotation: true,
            flash_attention: FlashAttention::Auto,
            n_batch: 512,
            n_batch_shared: 128,
            max_queue: 64,
            checkpoint_bytes: 1 << 30,
            checkpoint_every: None,
            store_bytes: 0,
            disk: None,
            replies: None,
            kv_bytes: None,
            exact: Exact::Off,
            embeddings: false,
            warm_up: None,
        }
    }
}

impl EngineConfig {
    /// Threads to compute with: as asked, or one for each core.
    pub fn n_threads(&self) -> usize {
        self.threads.unwrap_or_else(ggml::n_cores).max(1)
    }

    /// What the cache of sequence state may do with `model`.
    pub(crate) fn cache(&self, model: &Model) -> CacheLimits {
        let every = if model.is_on_cpu() { CHECKPOINT_EVERY_ON_CPU } else { CHECKPOINT_EVERY };
        CacheLimits {
            checkpoint_bytes: self.checkpoint_bytes,
            checkpoint_every: self.checkpoint_every.unwrap_or(every),
            store_bytes: self.store_bytes,
            // A generation's bits may not depend on how far others were when it came.
            share: self.exact == Exact::Off,
        }
    }

    /// Refuses settings that make no engine.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let refuse = |what: String| Err(EngineError::Config(what));
        for (name, n) in [
            ("n_sequences", self.n_sequences),
            ("n_batch", self.n_batch),
            ("n_batch_shared", self.n_batch_shared),
            ("max_queue", self.max_queue),
            ("n_ctx", self.n_ctx.unwrap_or(1)),
        ] {
            if n == 0 {
                return refuse(format!("{name}: at least 1 expected, 0 found"));
            }
        }
        if let Some(n_ctx) = self.n_ctx.filter(|&n| n > MAX_N_CTX) {
            return refuse(format!("n_ctx: at most {MAX_N_CTX} expected, {n_ctx} found"));
        }
        if self.n_sequences > self.n_batch {
            let (n_sequences, n_batch) = (self.n_sequences, self.n_batch);
            return refuse(format!(
                "{n_sequences} sequences do not fit into batches of {n_batch} tokens: raise n_batch"
            ));
        }
        Ok(())
    }

    /// Refuses drafts of `depth` tokens that do not fit into a batch for all sequences together.
    pub(crate) fn check_depth(&self, depth: usize) -> Result<(), EngineError> {
        let (n_sequences, n_batch) = (self.n_sequences, self.n_batch);
        if (depth + 1).saturating_mul(n_sequences) > n_batch {
            let what = format!(
                "drafts of {depth} tokens for {n_sequences} sequences do not fit into batches of {n_batch} tokens"
            );
            return Err(EngineError::Config(what));
        }
        Ok(())
    }

    /// Which tokens may share a batch of a model.
    pub(crate) fn batch_policy(&self, facts: &Facts) -> BatchPolicy {
        match (self.exact, facts.rows_alike_with(&self.plain_state(facts))) {
            (Exact::Off, _) => BatchPolicy::Any,
            (Exact::On, Some(n)) => BatchPolicy::UpTo(n),
            (Exact::On, None) => BatchPolicy::Width(EXACT_WIDTH),
            (Exact::Width(n), _) => BatchPolicy::Width(n),
        }
    }

    /// State for the sequences of an engine without drafts, for those who do without one.
    pub fn memory(&self, model: &Model) -> MemoryConfig {
        self.plain_state(model.facts())
    }

    /// Positions of a sequence: as asked, or the model's.
    pub(crate) fn n_ctx(&self, facts: &Facts) -> usize {
        self.n_ctx.unwrap_or(facts.hparams.n_ctx_train.min(DEFAULT_N_CTX))
    }

    /// As [`EngineConfig::memory`], of what is known of a model.
    pub fn plain_state(&self, facts: &Facts) -> MemoryConfig {
        // The unfused form and its transposed values serve the CPU's kernels.
        let plain_values = facts.on_cpu && self.cache_type_v.is_plain() && !self.cache_type_k.is_turbo();
        MemoryConfig {
            n_slots: self.n_sequences,
            n_ctx: self.n_ctx(facts),
            type_k: self.cache_type_k,
            type_v: self.cache_type_v,
            v_transposed: match self.flash_attention {
                FlashAttention::On => false,
                FlashAttention::Off => true,
                FlashAttention::Auto => plain_values,
            },
            n_snapshots: 1,
            transactional: false,
            max_rows: None,
            rotate: self.cache_rotation,
        }
    }

    /// What the engine keeps beside the weights of a model, with drafts of up to `depth` tokens: it allocates by this, and
    /// layers are placed by it. What a source of drafts keeps is its own to add.
    pub fn memory_plan(&self, facts: &Facts, depth: usize) -> MemoryPlan {
        let (plain, policy) = (self.plain_state(facts), self.batch_policy(facts));
        // Layers are placed before it is known what a GPU's kernels promise, and with it which drafts `--exact` allows.
        let is_open = self.exact == Exact::On && !facts.on_cpu && facts.rows_alike.is_none();
        let depth = if is_open { depth } else { depth.min(policy.max_draft()) };
        let n_snapshots = policy.n_past().max(depth + 1);
        let n_ctx = plain.n_ctx.saturating_add(policy.n_past());
        let max_rows = Some(self.n_batch.max(n_snapshots).max(MAX_FORCED));
        MemoryPlan {
            state: MemoryConfig { n_snapshots, n_ctx, max_rows, ..plain },
            head: None,
            own_head: false,
            draft_words: None,
            n_batch: self.n_batch,
            n_out: self.n_sequences.saturating_mul(n_snapshots),
            flash_attention: !plain.v_transposed,
            n_runners: 1,
            beside: 0,
        }
    }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// State for the sequences.
    #[error(transparent)]
    Memory(#[from] memory::Error),
    /// The device, or compute buffers.
    #[error(transparent)]
    Run(#[from] model::RunError),
    /// The sequences' state, or compute buffers, do not fit beside the weights: what is needed, what is free, and settings
    /// that fit.
    #[error("{0}")]
    Room(String),
    /// Settings that make no engine.
    #[error("{0}")]
    Config(String),
    /// The system has no thread for it.
    #[error("the engine's thread was not started: {0}")]
    Thread(#[from] std::io::Error),
}

#[cfg(test)]
mod tests {
    use ggml::Device;
    use memory::{Kv, LayerState, StateLayout};

    use super::*;

    /// What a backend says of its kernels holds for fused attention over cells that these read; all else keeps batches of one width.
    #[test]
    fn a_gpus_promise_is_of_the_cells_that_its_kernels_read() {
        // The host's processor stands for a GPU that says nothing of its kernels.
        let kv = Kv { n_head_kv: 1, d_k: 64, d_v: 64, window: None, latent: false };
        let layout = StateLayout { layers: vec![LayerState::Kv(kv)] };
        let gpus = vec![Device::cpu().unwrap()];
        let silent = Facts { rows_alike: Some(48), layout, gpus, ..Facts::default() };
        let gpu = Facts { gpus: Vec::new(), ..silent.clone() };
        let policy =
            |facts: &Facts, config: EngineConfig| EngineConfig { exact: Exact::On, ..config }.batch_policy(facts);
        let quantised = || EngineConfig { cache_type_v: CacheType::Q8_0, ..EngineConfig::default() };
        let unfused = EngineConfig { flash_attention: FlashAttention::Off, ..EngineConfig::default() };
        assert_eq!(policy(&gpu, EngineConfig::default()), BatchPolicy::UpTo(48));
        assert_eq!(policy(&gpu, quantised()), BatchPolicy::UpTo(48));
        assert_eq!(policy(&silent, quantised()), BatchPolicy::Width(EXACT_WIDTH));
        assert_eq!(policy(&gpu, unfused), BatchPolicy::Width(EXACT_WIDTH));
        assert_eq!(
            policy(&Facts { rows_alike: None, ..gpu.clone() }, EngineConfig::default()),
            BatchPolicy::Width(EXACT_WIDTH)
        );
        assert_eq!(policy(&Facts { on_cpu: true, ..gpu }, quantised()), BatchPolicy::UpTo(48));
        assert_eq!(
            EngineConfig::default().batch_policy(&Facts { rows_alike: Some(48), ..Facts::default() }),
            BatchPolicy::Any
        );
    }
}
