//! OpenAI's endpoints, a file each.

pub(crate) mod chat;
pub(crate) mod chat_types;
pub(crate) mod completions;
pub(crate) mod downloads;
pub(crate) mod embeddings;
pub(crate) mod models;
pub(crate) mod parts;
pub(crate) mod responses;
