//! What a head in a file of its own takes of the target's passes: the residual streams of some layers, made one.
//! Owns the streams while a graph is built. Knows no head and no architecture.

use std::cell::RefCell;

use ggml::{Graph, Tensor};

/// How such a head makes one row of several layers' streams.
pub(crate) trait Features: Send + Sync {
    /// The layers before which it takes the stream, in its own order; the number of layers is the stream after the last.
    fn layers(&self) -> &[usize];
    /// Width of what it makes of them.
    fn n_embd(&self) -> usize;
    /// `streams`: one for each of [`Features::layers`], `[n_embd of the target, n_tokens]`; gives `[n_embd, n_tokens]`.
    fn fuse<'g>(&self, g: &Graph<'g>, streams: &[Tensor<'g>]) -> Tensor<'g>;
}

/// The streams of one graph, as far as they are known.
pub(crate) struct Taps<'s, 'g> {
    features: &'s dyn Features,
    streams: RefCell<Vec<Option<Tensor<'g>>>>,
}

impl<'s, 'g> Taps<'s, 'g> {
    pub(crate) fn new(features: &'s dyn Features) -> Self {
        Self { features, streams: RefCell::new(vec![None; features.layers().len()]) }
    }

    /// Takes the stream before layer `il`, if it is wanted.
    pub(crate) fn take(&self, il: usize, x: Tensor<'g>) {
        let mut streams = self.streams.borrow_mut();
        let wanted = self.features.layers().iter().zip(streams.iter_mut()).filter(|(layer, _)| **layer == il);
        wanted.for_each(|(_, stream)| *stream = Some(x));
    }

    /// What is made of them; `last` is the stream after the last layer.
    pub(crate) fn fused(&self, g: &Graph<'g>, last: Tensor<'g>) -> Tensor<'g> {
        let streams: Vec<_> = self.streams.borrow().iter().map(|stream| stream.unwrap_or(last)).collect();
        self.features.fuse(g, &streams)
    }
}
