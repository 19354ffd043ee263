//! What every front end does alike: open a model, turn a conversation into a request, turn the engine's events into a reply.
//! Knows no terminal, no HTTP and no tensors.

#![forbid(unsafe_code)]

pub mod dialect;
