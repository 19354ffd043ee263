//! The endpoints over the small model of the repository: by the router alone, and over a real socket.

mod access;
mod agents;
mod bodies;
mod chat;
mod control;
mod conversations;
mod defaults;
mod downloads;
mod drafts;
mod embeddings;
mod engines;
mod form;
mod images;
mod kept;
mod lora;
mod messages;
mod metric_names;
mod models;
mod native;
mod native_fields;
mod ollama;
mod rerank;
mod responses;
mod rig;
mod room;
mod scopes;
mod scoreboard;
mod socket;
mod support;
mod tiny_served;
mod work;

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../../tests/support/adapters.rs"]
mod adapters;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../../tests/support/tiny.rs"]
mod tiny;
#[path = "../../../../tests/support/words.rs"]
mod words;
