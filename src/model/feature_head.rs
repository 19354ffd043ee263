//! Draft heads in files of their own that read the residual streams of the target's layers, whatever its architecture.
//! Owns what they take of a target, and the target with such a head in the place of its own. Knows no head's formula.

use ggml::{Graph, WeightId};
use memory::{LayerState, Segment, StateLayout};

use crate::architecture::{Architecture, Tables};
use crate::blocks::Linear;
use crate::draft::{DraftBlock, DraftStep};
use crate::error::LoadError;
use crate::features::Features;
use crate::head_file::refused;
use crate::keys::{Keys, WIDTH};
use crate::rank_head::RankHead;
use crate::step::Step;
use crate::tensors::Tensors;

/// Such a head over its weights.
pub(crate) trait FeatureHead: Features {
    /// State of its layers.
    fn states(&self) -> Vec<LayerState>;
    /// The matrix that its draft tokens come from.
    fn output(&self) -> WeightId;
    /// The token of each of that matrix's rows, where it has rows of its own for part of the vocabulary.
    fn words(&self) -> Option<&[u32]>;
    /// Rows of the block that it drafts at once; `None` where each draft token is made of the one before.
    fn block(&self) -> Option<DraftBlock> {
        None
    }
    /// The draft.
    fn draft<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>);
}

/// One row of the table of such heads.
pub(crate) struct FeatureHeadEntry {
    /// Its name in files.
    pub(crate) name: &'static str,
    /// What stands before the names of its tensors among the target's.
    pub(crate) label: &'static str,
    /// Reads its metadata and asks for its tensors.
    pub(crate) open: Open,
}

/// Opens a head for a target.
type Open = fn(&Keys<'_, '_>, &mut Tensors<'_>, &FeatureTarget) -> Result<Box<dyn FeatureHead>, LoadError>;

/// What such a head needs to know of its target.
pub(crate) struct FeatureTarget {
    pub(crate) n_layer: usize,
    pub(crate) n_embd: usize,
    pub(crate) n_vocab: usize,
    pub(crate) tables: Tables,
}

impl FeatureTarget {
    /// The layers that a file reads (`target_layers`), for a target of this width.
    pub(crate) fn layers(&self, keys: &Keys<'_, '_>, n_embd_target: usize) -> Result<Vec<usize>, LoadError> {
        if n_embd_target != self.n_embd {
            return Err(refused(format!("it reads hidden states of {n_embd_target}, the model's are {}", self.n_embd)));
        }
        let layers = keys.numbers("target_layers", MAX_LAYERS)?;
        match layers.iter().find(|&&il| il > self.n_layer) {
            Some(il) => {
                Err(refused(format!("it reads layer {il}, the model has {}: made for a larger one?", self.n_layer)))
            }
            None => Ok(layers),
        }
    }

    /// The embedding that a head of width `n_embd` takes: its own, or the target's.
    pub(crate) fn embedding(&self, t: &mut Tensors<'_>, n_embd: usize) -> Result<WeightId, LoadError> {
        match t.globals().find("token_embd.weight", &[n_embd, self.n_vocab])? {
            Some(own) => Ok(own),
            None if n_embd == self.n_embd => Ok(self.tables.embed),
            None => Err(refused(format!(
                "it has no embedding of its own, and the model's has {} elements a token, {n_embd} expected",
                self.n_embd
            ))),
        }
    }

    /// The output matrix, the target's where it has none, with the token of each of its rows where they are not all.
    pub(crate) fn output(&self, t: &mut Tensors<'_>, n_embd: usize) -> Result<(Linear, Option<Vec<u32>>), LoadError> {
        let words = t.ids("d2t", self.n_vocab)?;
        let n_rows = words.as_ref().map_or(self.n_vocab, Vec::len);
        match Linear::find(&mut t.globals(), "output", n_embd, n_rows, false)? {
            Some(own) => Ok((own, words)),
            None if words.is_some() => Err(LoadError::Missing("output.weight".into())),
            None if n_embd == self.n_embd => Ok((self.tables.output, None)),
            None => Err(LoadError::Missing("output.weight".into())),
        }
    }

    /// The width of a head, which is that of the rows that it takes.
    pub(crate) fn width(keys: &Keys<'_, '_>) -> Result<usize, LoadError> {
        keys.need("embedding_length", WIDTH)
    }
}

/// Layers that a head reads at most.
const MAX_LAYERS: usize = 32;

/// A target whose drafts come from such a head.
pub(crate) struct WithFeatures {
    pub(crate) target: Box<dyn Architecture>,
    pub(crate) head: Box<dyn FeatureHead>,
}

impl Architecture for WithFeatures {
    fn state(&self) -> StateLayout {
        self.target.state()
    }

    fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>) {
        self.target.forward(g, step);
    }

    fn max_nodes(&self, segments: &[Segment]) -> usize {
        self.target.max_nodes(segments) + 4 * MAX_LAYERS
    }

    fn rank_head(&self) -> Option<&RankHead> {
        self.target.rank_head()
    }

    fn tables(&self) -> Option<Tables> {
        self.target.tables()
    }

    fn features(&self) -> Option<&dyn Features> {
        Some(&*self.head)
    }

    fn mtp_states(&self) -> Vec<LayerState> {
        self.head.states()
    }

    fn draft_heads(&self) -> Vec<WeightId> {
        vec![self.head.output()]
    }

    fn draft_words(&self) -> Option<&[u32]> {
        self.head.words()
    }

    fn draft_block(&self) -> Option<DraftBlock> {
        self.head.block()
    }

    fn rotates_as_long(&self, n_ctx: usize) -> bool {
        self.target.rotates_as_long(n_ctx)
    }

    fn draft<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>) {
        self.head.draft(g, step);
    }
}
