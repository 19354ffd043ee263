//! What lies beside a model's weights, in bytes: sequence state and what passes need.
//! Owns the arithmetic. Layers are placed by it before there is a model, and the engine makes its state of the same
//! numbers; what an engine keeps is the engine's to say ([`MemoryPlanner`]).

use std::fmt;
use std::sync::Arc;

use ggml::Device;
use memory::{LayerState, MemoryConfig, StateLayout};

use crate::architecture::Hparams;
use crate::draft::DraftBlock;

/// What is known of a model before its weights have a place.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Sizes.
    pub hparams: Hparams,
    /// State of the target model's layers.
    pub layout: StateLayout,
    /// State of each of the NextN head's layers; none without a head.
    pub head: Vec<LayerState>,
    /// Likewise of the model's own head, as many layers, where it is kept beside that of another file; else none.
    pub own_head: Vec<LayerState>,
    /// The block that the head drafts at once, where it does.
    pub block: Option<DraftBlock>,
    /// Rows of the head's own output matrix, where these are part of the vocabulary.
    pub n_draft_words: Option<usize>,
    /// Bytes of a row of the matrix that draft tokens come from, of all of them where there are several; 0 without a head.
    pub head_row_bytes: usize,
    /// Nothing of it lies on a GPU. False as long as that is open.
    pub on_cpu: bool,
    /// See [`crate::Model::rows_alike`]; `None` as long as it is open where the weights lie.
    pub rows_alike: Option<usize>,
    /// GPUs that weights lie on; none as long as that is open.
    pub gpus: Vec<Device>,
    /// Numbers that a layer makes of one row, where it makes most: the outputs of all of its matrices.
    pub layer_width: usize,
}

impl Facts {
    /// See [`crate::Model::n_mtp_layers`].
    pub fn n_mtp_layers(&self) -> usize {
        if self.block.is_some() { 1 } else { self.head.len() }
    }

    /// [`Facts::rows_alike`] with a KV cache of this type: GPUs say it of each type.
    pub fn rows_alike_with(&self, state: &MemoryConfig) -> Option<usize> {
        let of_layer = |least: usize, layer: &LayerState| {
            let LayerState::Kv(kv) = layer else { return Some(least) };
            self.gpus.iter().try_fold(least, |least, &d| Some(least.min(state.rows_read_alike(*kv, d)?)))
        };
        let n = self.rows_alike?;
        match self.on_cpu {
            true => Some(n),
            false => (!state.v_transposed).then(|| self.layout.layers.iter().try_fold(n, of_layer)).flatten(),
        }
    }
}

/// What an engine keeps beside the weights of a model.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPlan {
    /// State of the target model.
    pub state: MemoryConfig,
    /// State of the NextN head, where drafts come from it, and how many of its layers are used, from the first.
    pub head: Option<(MemoryConfig, usize)>,
    /// The model's own head drafts beside that of another file, where it is kept.
    pub own_head: bool,
    /// First rows of the head and copies of others that drafts are made of; `None` is the whole vocabulary.
    pub draft_words: Option<(usize, usize)>,
    /// Rows of a pass at most.
    pub n_batch: usize,
    /// Rows of a pass that give logits, at most.
    pub n_out: usize,
    /// Attention without the full score matrix.
    pub flash_attention: bool,
    /// Streams of work that have compute buffers.
    pub n_runners: usize,
    /// Bytes of what else is kept: state and compute buffers of a draft model.
    pub beside: usize,
}

/// Bytes beside the weights of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryBytes {
    /// State of each layer of the target model, then of the NextN head's (of both heads', where there are two), with the rows that
    /// drafts are made of.
    pub blocks: Vec<usize>,
    /// Of these what one sequence needs, where the memory of others is taken when they write to it; as `blocks` where it cannot be.
    pub least: Vec<usize>,
    /// Compute buffers, on each device that has layers.
    pub passes: usize,
    /// What a draft model keeps, on whichever device.
    pub beside: usize,
}

impl MemoryBytes {
    /// State of all layers.
    pub fn state(&self) -> usize {
        self.blocks.iter().fold(0, |all: usize, &n| all.saturating_add(n))
    }
}

impl MemoryPlan {
    /// The bytes of it. Those of state are exact; those of passes are more than they will need.
    ///
    /// # Errors
    /// As [`MemoryConfig::layer_bytes`].
    pub fn bytes(&self, facts: &Facts) -> Result<MemoryBytes, memory::Error> {
        let layers = facts.layout.layers.iter();
        let mut blocks = layers.clone().map(|layer| self.state.layer_bytes(layer)).collect::<Result<Vec<_>, _>>()?;
        let mut least = layers.map(|layer| self.state.least_bytes(layer)).collect::<Result<Vec<_>, _>>()?;
        if let Some((head, n_layers)) = &self.head {
            let mut words = self.draft_words.map_or(0, |n| draft_vocab_bytes(facts.head_row_bytes, n));
            let n_layers = if facts.block.is_some() { usize::MAX } else { *n_layers };
            for (k, layer) in facts.head.iter().take(n_layers).enumerate() {
                let own = facts.own_head.get(k).filter(|_| self.own_head);
                let bytes = |of: fn(&MemoryConfig, &LayerState) -> Result<usize, memory::Error>| {
                    let own = own.map_or(Ok(0), |layer| of(head, layer))?;
                    Ok::<_, memory::Error>(of(head, layer)?.saturating_add(own))
                };
                let words = std::mem::take(&mut words);
                blocks.push(bytes(MemoryConfig::layer_bytes)?.saturating_add(words));
                least.push(bytes(MemoryConfig::least_bytes)?.saturating_add(words));
            }
        }
        let passes = self.n_runners.max(1).saturating_mul(self.pass_bytes(facts));
        Ok(MemoryBytes { blocks, least, passes, beside: self.beside })
    }

    /// What a pass needs on one device: ggml reuses the memory of one layer for the next.
    fn pass_bytes(&self, facts: &Facts) -> usize {
        const F32: usize = 4;
        const MASK: usize = 2;
        let sizes = &facts.hparams;
        let n_ctx = self.state.n_ctx.saturating_add(CELLS_ROUNDED);
        let n_rows = self.n_batch.min(n_ctx);
        // Results of matrices, and rows of the target model between.
        let layer = F32 * (facts.layer_width + ROWS_BETWEEN * sizes.n_embd);
        // A mask, and its copy on another device; scores before and after the softmax.
        let scores = if self.flash_attention { 0 } else { 2 * F32 * sizes.n_head };
        let per_row = n_ctx.saturating_mul(2 * MASK * facts.layout.n_windows() + scores).saturating_add(layer);
        let of_snapshots = facts.layout.layers.iter().map(|layer| match layer {
            LayerState::Recurrent(r) => r.n_bytes(),
            LayerState::Kv(_) | LayerState::None => 0,
        });
        let snapshots = of_snapshots.max().unwrap_or(0);
        let n_snapshots = self.state.n_slots.saturating_mul(self.state.n_snapshots + 1);
        let logits = 3 * F32 * sizes.n_vocab * self.n_out;
        let own = if self.own_head { &facts.own_head[..] } else { &[] };
        let head = StateLayout { layers: [&facts.head[..], own].concat() };
        let rotations =
            self.state.rotation_bytes(&facts.layout) + self.head.map_or(0, |(config, _)| config.rotation_bytes(&head));
        let (latent, turned) = self.latent_bytes(facts, n_ctx);
        per_row
            .saturating_add(latent)
            .saturating_mul(n_rows)
            .saturating_add(turned)
            .saturating_add(snapshots.saturating_mul(n_snapshots))
            .saturating_add(logits)
            .saturating_add(rotations)
            .saturating_add(SMALL)
    }

    /// What latent layers need besides: for each row, queries and outputs as wide as what is kept, for all heads; and in the
    /// unfused form the values of all cells once more, turned, from floats if they are kept as blocks.
    fn latent_bytes(&self, facts: &Facts, n_ctx: usize) -> (usize, usize) {
        const F32: usize = 4;
        let kvs = facts.layout.layers.iter().filter_map(|layer| match layer {
            LayerState::Kv(kv) if kv.latent => Some(kv),
            _ => None,
        });
        let (row, values) =
            kvs.map(|kv| (facts.hparams.n_head * (2 * kv.d_k + kv.d_v), kv.d_v)).max().unwrap_or_default();
        let turned = if self.flash_attention { 0 } else { 2 * F32 * values };
        (F32 * row, turned.saturating_mul(n_ctx).saturating_mul(self.state.n_slots))
    }
}

/// Bytes that [`crate::DraftVocab::new`] allocates for so many first rows and copies of others, of `row_bytes` each.
fn draft_vocab_bytes(row_bytes: usize, (n_first, n_side): (usize, usize)) -> usize {
    // An id and a place in the mask for each.
    let tables = n_first.saturating_add(n_side).saturating_mul(4 + 4);
    row_bytes.saturating_mul(n_side).saturating_add(tables)
}

/// Cells are rounded up by less than this.
const CELLS_ROUNDED: usize = 256;

/// Rows of the target model's width that a layer makes beside the results of its matrices: norms, sums, copies.
const ROWS_BETWEEN: usize = 12;

/// Ids, positions and what a buffer is rounded up to.
const SMALL: usize = 1 << 20;

/// Says what an engine will keep beside a model.
type Plans = dyn Fn(&Facts) -> MemoryPlan + Send + Sync;

/// Plans the memory beside a model when the model's sizes are known; plans nothing by default.
#[derive(Clone, Default)]
pub struct MemoryPlanner(Option<Arc<Plans>>);

impl MemoryPlanner {
    /// What `plan` says of a model.
    pub fn new(plan: impl Fn(&Facts) -> MemoryPlan + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(plan)))
    }

    /// The bytes of it.
    pub(crate) fn bytes(&self, facts: &Facts) -> Result<MemoryBytes, memory::Error> {
        self.0.as_ref().map_or_else(|| Ok(MemoryBytes::default()), |plan| plan(facts).bytes(facts))
    }
}

impl fmt::Debug for MemoryPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "MemoryPlanner(..)" } else { "MemoryPlanner(nothing)" })
    }
}
