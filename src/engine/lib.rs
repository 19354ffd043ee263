//! The engine: sequences, schedule, steps, sampling.
//! Owns who computes when and what becomes of the logits. Knows nothing of ggml's ops, JSON or HTTP.
//!
//! One thread owns model state and computes. [`Engine::spawn`] starts it and gives an [`EngineHandle`]; a
//! [`GenerateRequest`], valid by construction, is submitted and gives a [`Generation`], a stream of [`Event`]s.
//! Sequences join and leave at every step; a step mixes the tokens of running generations with a chunk of a prompt.
//! Dropping a `Generation` cancels it; a slow reader is skipped and never holds up others.
#![forbid(unsafe_code)]

mod batch;
pub mod busy;
mod cache;
mod config;
mod constraint;
mod disk_store;
mod drafter;
mod engine;
mod event;
mod finished;
mod handle;
mod host_memory;
mod lines;
mod live_state;
mod liveness;
mod memory_check;
mod pass_times;
mod pooling;
pub mod private_files;
mod proposer;
mod request;
mod reused;
pub mod sample;
mod schedule;
mod sequence;
mod sequence_arrival;
mod sequence_copy;
mod sequence_store;
mod slot_file;
mod slot_info;
mod stats;
pub mod stop;
mod submission;
mod thinking;

pub use config::{EngineConfig, EngineError, Exact, FlashAttention};
pub use constraint::{Allowed, Constraint, Grammar};
pub use disk_store::DiskConfig;
pub use engine::Engine;
pub use event::{DraftPosition, Event, FinishReason, Piece, PromptProgress, Summary, Timings};
pub use finished::{FinishedReply, ReplySink};
pub use handle::{EngineHandle, Generation, Reserved, SubmitError};
pub use lines::LineLimits;
pub use liveness::EngineLife;
pub use memory_check::check_memory;
pub use pooling::Pooling;
pub use proposer::{
    Built, DraftRequest, ObservedSequence, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange,
    TargetState,
};
pub use request::{ContextShift, GenerateRequest, Limits, MAX_LOGPROBS, RequestError, RequestOptions, Scope};
pub use reused::Reused;
pub use slot_file::SavedSlot;
pub use slot_info::{SlotError, SlotInfo, SlotWork};
pub use stats::EngineStats;
pub use submission::GenerationId;
pub use thinking::Thinking;
