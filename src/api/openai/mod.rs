//! OpenAI's endpoints, a file each.

pub(crate) mod chat;
mod chat_types;
pub(crate) mod models;
