//! What an architecture is to the rest: graphs over bound weights, sizes, state, and what there is of a NextN head.

use ggml::{Graph, WeightId};
use memory::{LayerState, Segment, StateLayout};

use crate::blocks::Linear;
use crate::draft::{DraftBlock, DraftStep};
use crate::error::LoadError;
use crate::features::Features;
use crate::head_shape::HeadShape;
use crate::keys::Keys;
use crate::pictures::PictureKind;
use crate::rank_head::RankHead;
use crate::share::Share;
use crate::step::Step;
use crate::tensors::Tensors;

/// Sizes that everything above the graphs needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hparams {
    /// Layers of the target model.
    pub n_layer: usize,
    /// Width of the hidden states.
    pub n_embd: usize,
    /// Rows of the output matrix.
    pub n_vocab: usize,
    /// Positions that the model was trained for.
    pub n_ctx_train: usize,
    /// Experts that one token uses in a layer; 0 in a dense model.
    pub n_expert_used: usize,
    /// Query heads of a layer of attention, where it has most.
    pub n_head: usize,
}

/// What a file holds of a NextN head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextNHead {
    /// The file does not mention one.
    Absent,
    /// All of its tensors are there, checked and bound.
    Bound,
    /// The metadata promise one, and these tensors are missing.
    Missing(Vec<String>),
}

impl NextNHead {
    /// True when the head can be used.
    pub fn is_bound(&self) -> bool {
        *self == NextNHead::Bound
    }
}

/// What a head in another file may take of a model.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    /// The embedding, `[n_embd, n_vocab]`.
    pub(crate) embed: WeightId,
    /// The output matrix.
    pub(crate) output: Linear,
}

/// A model's graphs over its weights.
pub(crate) trait Architecture: Send + Sync {
    /// State of the target model's layers.
    fn state(&self) -> StateLayout;
    /// The target model's forward pass.
    fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>);
    /// Nodes that a forward pass over these segments needs at most.
    fn max_nodes(&self, segments: &[Segment]) -> usize;
    /// What stands in place of the output matrix in models that rank; `None` in others.
    fn rank_head(&self) -> Option<&RankHead> {
        None
    }
    /// The tables that a head in another file takes of a model whose passes give the streams of layers ([`Step::tap`]); `None`
    /// where they do not.
    fn tables(&self) -> Option<Tables> {
        None
    }
    /// What such a head makes of those streams: a pass that gives hidden states puts it out.
    fn features(&self) -> Option<&dyn Features> {
        None
    }
    /// State of each MTP layer; none without a NextN head.
    fn mtp_states(&self) -> Vec<LayerState> {
        Vec::new()
    }
    /// State of each MTP layer of the model's own NextN head, where it is kept beside that of another file; else none.
    fn own_mtp_states(&self) -> Vec<LayerState> {
        Vec::new()
    }
    /// The output matrix that each MTP layer's draft tokens come from, of all heads; none without a NextN head.
    fn draft_heads(&self) -> Vec<WeightId> {
        Vec::new()
    }
    /// The token of each row of that matrix, where the head has one of its own for part of the vocabulary.
    fn draft_words(&self) -> Option<&[u32]> {
        None
    }
    /// The block that the head drafts at once; `None` where it makes one token after the other.
    fn draft_block(&self) -> Option<DraftBlock> {
        None
    }
    /// The MTP layers take hidden states before the final norm: a pass that gives hidden states puts out `stream`, too
    /// ([`Step::end`]).
    fn mtp_takes_stream(&self) -> bool {
        false
    }
    /// How pictures stand among tokens; `None` where the model takes none.
    fn pictures(&self) -> Option<PictureKind> {
        None
    }
    /// Positions are rotated otherwise in a context of so many positions than in short ones: states of the two must not be
    /// mixed up.
    fn rotates_as_long(&self, _n_ctx: usize) -> bool {
        false
    }
    /// The NextN head keeps no cells: it reads those of the target model ([`DraftStep::at_end`]).
    fn head_reads_target(&self) -> bool {
        false
    }
    /// Nodes of one draft token of such a head, at most.
    fn max_draft_nodes(&self, _: &[Segment]) -> usize {
        0
    }
    /// The NextN head's draft. Never called without one.
    fn draft<'g>(&self, _: &Graph<'g>, _: &DraftStep<'_, 'g>) {}
}

/// A file from which an architecture is opened.
pub(crate) struct ModelFile<'f, 'm, 'a> {
    /// The model's metadata.
    pub(crate) keys: Keys<'m, 'a>,
    /// Those of the file that the NextN head comes from, where that is another one.
    pub(crate) head_keys: Option<Keys<'m, 'a>>,
    /// A NextN head in the model's own file is wanted, also where there are `head_keys`.
    pub(crate) own_head: bool,
    pub(crate) tensors: &'f mut Tensors<'a>,
    pub(crate) n_vocab: usize,
    /// The part of each layer that is wanted.
    pub(crate) share: Share,
}

/// What an architecture makes of a file.
pub(crate) struct Opened {
    pub(crate) arch: Box<dyn Architecture>,
    pub(crate) hparams: Hparams,
    pub(crate) nextn: NextNHead,
    /// The part of each layer that it computes.
    pub(crate) share: Share,
    /// What a layer of the NextN head computes, where the metadata count one; else why that cannot be said.
    pub(crate) head: Result<HeadShape, String>,
}

impl Opened {
    /// The output matrices that draft tokens come from, each once.
    pub(crate) fn draft_heads(&self) -> Vec<WeightId> {
        each_once(self.arch.draft_heads())
    }
}

/// `ids` without those that came before.
pub(crate) fn each_once(ids: Vec<WeightId>) -> Vec<WeightId> {
    ids.iter().enumerate().filter(|(i, id)| !ids[..*i].contains(id)).map(|(_, id)| *id).collect()
}

/// One row of the table of architectures.
pub(crate) struct Entry {
    /// Names in files.
    pub(crate) names: &'static [&'static str],
    /// It takes a NextN head.
    pub(crate) nextn: bool,
    /// Reads the metadata and asks for the tensors. Run over a file it gives the model, run over
    /// [`Tensors::List`] it gives the schema: there is no other list of an architecture's tensors.
    pub(crate) open: fn(&mut ModelFile<'_, '_, '_>) -> Result<Opened, LoadError>,
}

/// A NextN head that is an architecture of its own, in a file of its own.
pub(crate) struct HeadEntry {
    /// Its name in files.
    pub(crate) name: &'static str,
    /// The architecture that it drafts for, whose `open` binds it.
    pub(crate) target: &'static str,
    /// Reads its metadata and asks for its tensors over [`Tensors::List`], for its schema.
    pub(crate) open: fn(&Keys<'_, '_>, &mut Tensors<'_>, usize) -> Result<Hparams, LoadError>,
}

/// Nodes of a forward pass, with room to spare: `n_layer` layers with so many experts used.
pub(crate) fn max_nodes(n_layer: usize, n_expert_used: usize, segments: &[Segment]) -> usize {
    let per_layer: usize = 96 + n_expert_used * 2 + segments.iter().map(|s| 48 + 4 * s.n_snapshots).sum::<usize>();
    // The rest of the last layer may be there twice: `Step::end`.
    128 + (n_layer + 1) * per_layer
}
