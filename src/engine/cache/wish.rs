//! What a request asks of the cache.

use model::{AdapterSet, Pictures};
use text::TokenId;

use crate::request::{GenerateRequest, Scope};
use crate::submission::GenerationId;

/// What a request says of the state that it begins with.
#[derive(Clone, Copy)]
pub(crate) struct Wish<'a> {
    pub(crate) request: GenerationId,
    pub(crate) prompt: &'a [TokenId],
    /// Nothing is taken up that ends inside of one.
    pub(crate) pictures: &'a Pictures,
    /// Take up state that is there, and leave its own to others.
    pub(crate) reuse: bool,
    /// The slot to take if it is free.
    pub(crate) slot: Option<usize>,
    /// Whose request it is: state of others saves nothing.
    pub(crate) scope: Scope,
    /// What it is computed with: state of others is of no use.
    pub(crate) adapters: &'a AdapterSet,
}

impl<'a> Wish<'a> {
    pub(crate) fn of(id: GenerationId, request: &'a GenerateRequest) -> Self {
        let options = request.options();
        Self {
            request: id,
            prompt: request.prompt(),
            pictures: request.pictures(),
            reuse: options.cache,
            slot: options.slot,
            scope: options.scope,
            adapters: &options.adapters,
        }
    }
}
