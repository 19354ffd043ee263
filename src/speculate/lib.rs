//! Speculation: the MTP (NextN) layer and other proposers of drafts.
//! Owns how tokens are drafted. Knows nothing of HTTP, and nothing of sampling: the engine verifies every draft.
#![forbid(unsafe_code)]

mod acceptance_warning;
mod assistant;
mod async_proposer;
mod best_of;
mod calibration;
mod chances;
mod combined;
mod config;
mod depth;
mod depth_control;
mod draft_model;
mod draft_vocab;
mod graph_prices;
mod gumbel;
mod head_cells;
mod head_choice;
mod lookup_choice;
mod mtp_inputs;
mod nextn;
mod ngram;
mod pace;
mod pick;
mod same_words;
mod saved_mtp;
mod step_costs;

pub use assistant::Assistant;
pub use async_proposer::{AsyncProposer, DraftAhead};
pub use best_of::BestOf;
pub use calibration::Calibration;
pub use combined::CombinedProposer;
pub use config::{
    DraftMode, Mode, SpecConfig, SpecError, calibrated_proposer, draft_model_plan, memory_plan, memory_plan_with,
    proposer, proposer_with,
};
pub use depth::Depth;
pub use draft_model::DraftModel;
pub use draft_vocab::DraftVocabSize;
pub use nextn::{NextN, NextNConfig};
pub use ngram::Ngram;
