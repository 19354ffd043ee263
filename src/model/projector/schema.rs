//! What a projector of some metadata consists of: what its tower asks for when it is opened over nothing.

use std::collections::HashSet;

use gguf::{Header, Metadata};

use super::file::{Known, ProjectorFile, projector_type};
use super::table::{ARCHITECTURE, find};
use super::tower::Entry;
use crate::error::LoadError;
use crate::tensors::{TensorSchema, Tensors};

/// What a projector of some metadata consists of.
#[derive(Clone)]
pub struct ProjectorSchema {
    /// In the order in which the tower asks for them.
    pub tensors: Vec<TensorSchema>,
    entry: &'static Entry,
    /// Width of the rows that it gives: the text model's.
    pub n_embd_text: usize,
    /// Width of the tower.
    pub n_embd: usize,
    /// Blocks of the tower.
    pub n_layer: usize,
    /// Pixels along a side of a patch.
    pub patch: usize,
    /// Patches along a side of what becomes one token.
    pub merge: usize,
}

impl ProjectorSchema {
    /// The kind of tower: `clip.projector_type`.
    pub fn kind(&self) -> &'static str {
        self.entry.name
    }

    /// Whether a file is a projector's.
    pub fn is_for(meta: &Metadata<'_>) -> bool {
        matches!(meta.str("general.architecture"), Ok(Some(ARCHITECTURE)))
    }

    /// The schema of the projector in a file. Of its tensors only names and shapes are read.
    ///
    /// # Errors
    /// Another architecture, a kind of tower that is not known; a size that is missing, out of its range, or at odds with
    /// another.
    pub fn of(header: &Header<'_>) -> Result<ProjectorSchema, LoadError> {
        let n_rows = |name: &str| header.tensor(name).map(|t| t.ne[1]);
        ProjectorSchema::of_meta(header.metadata(), &|name| header.tensor(name).is_some(), &n_rows)
    }

    /// As [`ProjectorSchema::of`], over metadata: `has` tells which tensors there are, `n_rows` their dimension 1.
    ///
    /// # Errors
    /// As [`ProjectorSchema::of`].
    pub fn of_meta(
        meta: &Metadata<'_>,
        has: &dyn Fn(&str) -> bool,
        n_rows: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<ProjectorSchema, LoadError> {
        let entry = find(meta)?;
        let mut tensors = Tensors::List { has, list: Vec::new(), names: HashSet::new() };
        let known = Known { n_rows, number: &|_| None };
        let tower = (entry.open)(&mut ProjectorFile::new(meta, &mut tensors, known))?;
        let shape = tower.shape();
        let (n_embd_text, n_embd, n_layer) = (shape.n_embd_text, shape.n_embd, shape.n_layer);
        let (patch, merge) = (shape.processor.patch, shape.processor.merge);
        let Tensors::List { list, .. } = tensors else { unreachable!("it was made so above") };
        Ok(ProjectorSchema { tensors: list, entry, n_embd_text, n_embd, n_layer, patch, merge })
    }

    /// Whether its rows are what a model of text of this architecture and width takes in place of embeddings.
    ///
    /// # Errors
    /// [`LoadError::Projector`] with what disagrees.
    pub fn fits(&self, architecture: &str, n_embd: usize) -> Result<(), LoadError> {
        self.entry.fits(self.n_embd_text, architecture, n_embd)
    }

    /// The kind of tower that a file names, known or not.
    ///
    /// # Errors
    /// A key of another type.
    pub fn kind_of<'a>(meta: &Metadata<'a>) -> Result<Option<&'a str>, LoadError> {
        projector_type(meta)
    }
}
