//! What every tower is: sizes, a graph over patches, and the inputs of that graph.

use ggml::{Data, Dtype, Graph, Name, Tensor};
use vision::Patches;

use super::file::ProjectorFile;
use super::shape::TowerShape;
use crate::error::LoadError;

/// A row of the table.
pub(crate) struct Entry {
    /// `clip.projector_type`.
    pub(crate) name: &'static str,
    /// What names of the text models begin with.
    pub(crate) texts: &'static str,
    /// Reads sizes and asks for tensors.
    pub(crate) open: fn(&mut ProjectorFile<'_, '_, '_>) -> Result<Box<dyn Tower>, LoadError>,
}

impl Entry {
    /// Whether rows of `n_embd_text` of such a tower are what a model of text of this architecture and width takes.
    pub(crate) fn fits(&self, n_embd_text: usize, architecture: &str, n_embd: usize) -> Result<(), LoadError> {
        if !architecture.starts_with(self.texts) {
            let Self { name, texts, .. } = self;
            let what = format!(
                "a projector of type `{name}` belongs to models whose architecture begins with `{texts}`, this one is \
                 `{architecture}`: give the projector that was made for the model"
            );
            return Err(LoadError::Projector(what));
        }
        if n_embd_text != n_embd {
            let what = format!(
                "the projector makes embeddings of {n_embd_text} elements, the model takes {n_embd}: it was made for a model \
                 of another size"
            );
            return Err(LoadError::Projector(what));
        }
        Ok(())
    }
}

/// A tower over its weights.
pub(crate) trait Tower: Send + Sync {
    /// Sizes.
    fn shape(&self) -> &TowerShape;
    /// The graph: `pixels: [patch * patch * 3, n_patches]` gives `[n_embd, n_tokens]`.
    fn build<'g>(&self, g: &Graph<'g>, of: &Seen<'g>) -> Tensor<'g>;
    /// What the graph takes beside pixels.
    fn inputs(&self, patches: &Patches) -> Vec<Input>;
    /// Two frames of a video are seen as one.
    fn takes_pairs(&self) -> bool {
        false
    }
}

/// The picture that a graph is built for.
pub(crate) struct Seen<'g> {
    pub(crate) pixels: Tensor<'g>,
    /// Of the second of two frames; `None` for a picture.
    pub(crate) later: Option<Tensor<'g>>,
    pub(crate) n_patches: usize,
    /// Nothing of it lies on a GPU.
    pub(crate) on_cpu: bool,
}

/// Contents of an input.
pub(crate) enum Input {
    I32(Name, Vec<i32>),
    F32(Name, Vec<f32>),
}

impl Input {
    pub(crate) fn data(&self) -> (Name, Data<'_>) {
        match self {
            Input::I32(name, values) => (*name, Data::I32(values)),
            Input::F32(name, values) => (*name, Data::F32(values)),
        }
    }
}

/// An input of `n` ids.
pub(crate) fn ids<'g>(g: &Graph<'g>, name: impl Into<Name>, n: usize) -> Tensor<'g> {
    g.input(name, Dtype::I32, [n as i64, 1, 1, 1])
}
