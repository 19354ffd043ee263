//! Ollama's interface: `/api/chat`, `/api/generate`, `/api/tags` and their kin, and the line by which its clients find a server.

mod asked;
pub(crate) mod chat;
pub(crate) mod embed;
mod error;
pub(crate) mod generate;
mod input;
pub(crate) mod models;
mod names;
mod options;
mod probe;
pub(crate) mod pull;
mod reply;
pub(crate) mod types;

pub(crate) use error::{OllamaError, in_its_shape};
pub(crate) use probe::{probe, probes};
