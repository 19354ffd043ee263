//! Drafting: what it must not change, and what it must bring. `README.md` says which promise each module holds.

#[path = "../support/mod.rs"]
mod support;

mod async_drafts;
mod batch_invariance;
mod identity;
mod ngram;
mod reference;
mod rules;
mod sampled;
mod sampled_law;
mod separate_heads;
mod structured;
