//! What a model of some metadata consists of: tensors with their shapes, sizes, and state, without a file of tensors.
//! It is what the architecture asks for when it is opened over nothing, so that a tool can never know other tensors than
//! the graph.

use std::collections::HashSet;

use gguf::Metadata;
use memory::{LayerState, StateLayout};

use crate::arch;
use crate::architecture::{Hparams, ModelFile};
use crate::error::LoadError;
use crate::head_file::architecture_of;
use crate::head_shape::HeadShape;
use crate::keys::Keys;
use crate::rope_options::RopeOptions;
use crate::share::Share;
use crate::tensors::{TensorSchema, Tensors};

/// What a model of some metadata consists of.
#[derive(Clone, Debug)]
pub struct Schema {
    /// In the order in which the architecture asks for them: those of a NextN head, `blk.{n_layer}` and on, are last.
    pub tensors: Vec<TensorSchema>,
    /// Sizes; the context length is left out.
    pub hparams: Hparams,
    /// State of the target model's layers; none in a file of a head that is an architecture of its own.
    pub state: StateLayout,
    /// State of each MTP layer that the metadata count.
    pub mtp_states: Vec<LayerState>,
    /// What a layer of the NextN head computes, where the metadata count one; else why that cannot be said.
    pub head: Result<HeadShape, String>,
}

impl Schema {
    /// The schema of a model of `n_vocab` tokens. `has` tells which tensors a file has: where one thing may be stored in
    /// several ways, the one that is there is the one that is required.
    ///
    /// ```
    /// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pocket-q4_k_m.gguf");
    /// let bytes = std::fs::read(file).unwrap();
    /// let header = gguf::Header::parse(&bytes).unwrap();
    /// let n_vocab = header.metadata().array("tokenizer.ggml.tokens").unwrap().unwrap().len();
    /// let has = |name: &str| header.tensor(name).is_some();
    /// let schema = model::Schema::of(header.metadata(), n_vocab, &has).unwrap();
    /// assert!(schema.tensors.iter().filter(|t| t.required).all(|t| has(&t.name)));
    /// ```
    ///
    /// # Errors
    /// An architecture that is not known; a hyper-parameter that is missing, out of its range, or at odds with another.
    pub fn of(meta: &Metadata<'_>, n_vocab: usize, has: &dyn Fn(&str) -> bool) -> Result<Schema, LoadError> {
        let prefix = meta.require_str("general.architecture")?;
        let mut tensors = Tensors::List { has, list: Vec::new(), names: HashSet::new() };
        let keys = Keys::new(meta, prefix, RopeOptions::default());
        if let Some(head) = arch::find_head(prefix) {
            let hparams = (head.open)(&keys, &mut tensors, n_vocab)?;
            let (state, mtp_states) = (StateLayout::default(), vec![LayerState::None]);
            let head = Err("it is a head that is an architecture of its own".into());
            return Ok(Schema { tensors: listed(tensors), hparams, state, mtp_states, head });
        }
        let entry = arch::find(architecture_of(prefix))?;
        let share = Share::WHOLE;
        let file = ModelFile { keys, head_keys: None, own_head: true, tensors: &mut tensors, n_vocab, share };
        let opened = (entry.open)(&mut { file })?;
        let (state, mtp_states, hparams) = (opened.arch.state(), opened.arch.mtp_states(), opened.hparams);
        Ok(Schema { tensors: listed(tensors), hparams, state, mtp_states, head: opened.head })
    }
}

fn listed(tensors: Tensors<'_>) -> Vec<TensorSchema> {
    match tensors {
        Tensors::List { list, .. } => list,
        Tensors::Bind { .. } => Vec::new(),
    }
}
