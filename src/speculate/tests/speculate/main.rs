//! Proposers of drafts over small models of the repository and random ones: each module holds one promise.

mod adapters;
mod assistant;
mod bad_numbers;
mod cache_types;
mod draft_models;
mod feature_heads;
mod lookup;
mod memory_plan;
mod mtp_layers;
mod p_min;
mod shares;
mod sharing;
mod slot_files;
mod swap;
mod two_heads;

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../../tests/support/feature_heads.rs"]
mod heads;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../../tests/support/adapters.rs"]
mod lora;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../../tests/support/tiny.rs"]
mod tiny;
#[path = "../../../../tests/support/words.rs"]
mod words;
