//! The architectures: one file each, and the table that names them.

mod llama;
mod qwen3;
mod qwen35;

use ggml::{Graph, WeightId};
use memory::{LayerState, Segment, StateLayout};

use crate::draft::DraftStep;
use crate::error::LoadError;
use crate::head_file::HeadFile;
use crate::keys::Keys;
use crate::load::Loader;
use crate::model::{Hparams, NextNHead};
use crate::step::Step;

/// A model's graphs over its weights.
pub(crate) trait Architecture: Send + Sync {
    /// State of the trunk's layers.
    fn state(&self) -> StateLayout;
    /// The trunk's pass.
    fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>);
    /// Nodes that a pass over these segments needs at most.
    fn max_nodes(&self, segments: &[Segment]) -> usize;
    /// State of the NextN head's layer; `None` without a head.
    fn head_state(&self) -> Option<LayerState> {
        None
    }
    /// The matrix that the NextN head's guesses come from; `None` without a head.
    fn draft_head(&self) -> Option<WeightId> {
        None
    }
    /// The head's draft. Never called without a head.
    fn draft<'g>(&self, _: &Graph<'g>, _: &DraftStep<'_, 'g>) {}
}

/// What an architecture makes of a file.
pub(crate) struct Opened {
    pub(crate) arch: Box<dyn Architecture>,
    pub(crate) hparams: Hparams,
    pub(crate) nextn: NextNHead,
}

/// Opens a model: its metadata, its tensors, the size of its vocabulary, and the file that its NextN head is in where that
/// is another one.
type Open = fn(&Keys<'_, '_>, &mut Loader<'_>, usize, Option<&HeadFile<'_, '_>>) -> Result<Opened, LoadError>;

/// One line of the table: names in files, and how to open them.
pub(crate) struct Entry {
    pub(crate) names: &'static [&'static str],
    /// It takes a NextN head.
    pub(crate) nextn: bool,
    pub(crate) open: Open,
}

const TABLE: &[Entry] = &[qwen35::ENTRY, qwen3::ENTRY, llama::ENTRY];

/// The entry for `general.architecture`.
pub(crate) fn find(name: &str) -> Result<&'static Entry, LoadError> {
    let entry = TABLE.iter().find(|e| e.names.contains(&name));
    entry.ok_or_else(|| LoadError::Architecture { found: name.to_owned(), known: names().join(", ") })
}

/// Every architecture's name in files.
pub fn names() -> Vec<&'static str> {
    TABLE.iter().flat_map(|e| e.names).copied().collect()
}

/// Nodes of a pass, with room to spare: `n_layer` layers with so many experts used.
pub(crate) fn max_nodes(n_layer: usize, n_expert_used: usize, segments: &[Segment]) -> usize {
    let per_layer: usize = 64 + n_expert_used * 2 + segments.iter().map(|s| 48 + 4 * s.n_snapshots).sum::<usize>();
    // The rest of the last layer may be there twice: `Step::end`.
    128 + (n_layer + 1) * per_layer
}
