//! The engine: sequences, schedule, steps, sampling.
//! Owns who computes when and what becomes of the logits. Knows nothing of ggml's ops, JSON or HTTP.
//!
//! One thread owns model state and computes. [`Engine::spawn`] starts it and gives an [`EngineHandle`]; a
//! [`GenerateRequest`], valid by construction, is submitted and answered by a [`Generation`], a stream of [`Event`]s.
//! Sequences join and leave at every step; a step mixes the tokens of running answers with a piece of a prompt.
//! Dropping a `Generation` cancels it; a slow reader is skipped and never holds up others.
#![forbid(unsafe_code)]

mod cache;
mod config;
mod constraint;
mod embed;
mod event;
mod handle;
mod life;
mod live;
mod proposer;
mod request;
mod room;
mod run;
pub mod sample;
mod saved;
mod schedule;
mod sequence;
mod slots;
pub mod stop;
mod store;
mod thinking;

pub use config::{EngineConfig, EngineError, Exact, FlashAttention};
pub use constraint::{Allowed, Constraint, Grammar};
pub use embed::Pooling;
pub use event::{Event, FinishReason, Guess, Piece, PromptProgress, Summary, Timings};
pub use handle::{EngineHandle, Generation, Reserved, SubmitError};
pub use life::EngineLife;
pub use proposer::{Ask, Observed, Proposer, SavedDraftError};
pub use request::{GenerateRequest, Limits, MAX_LOGPROBS, RequestError, RequestOptions, Scope};
pub use room::check_room;
pub use run::{Engine, EngineStats};
pub use saved::SavedSlot;
pub use slots::{SlotError, SlotInfo, SlotWork};
pub use thinking::Thinking;
