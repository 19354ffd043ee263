//! The engine over small models of the repository and random ones: each module holds one promise.

mod adapters;
mod bad_numbers;
mod constraint;
mod control;
mod disk;
mod embeddings;
mod endings;
mod greedy;
mod lifecycle;
mod pictures;
mod prefix;
mod readers;
mod room;
mod sample_draws;
mod sample_known;
mod sample_stages;
mod scopes;
mod sharing;
mod shift;
mod slot_files;
mod soak;
mod widths;

use engine::{EngineHandle, RequestOptions};

/// The same, with nothing taken from cached state or left to it.
fn uncached(options: RequestOptions) -> RequestOptions {
    RequestOptions { cache: false, ..options }
}

/// Tokens that were computed so far.
fn n_computed(engine: &EngineHandle) -> u64 {
    engine.stats().expect("it runs").n_tokens
}

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../../tests/support/adapters.rs"]
mod lora;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../../tests/support/tiny.rs"]
mod tiny;
#[path = "../../../../tests/support/words.rs"]
mod words;
