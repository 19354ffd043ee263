//! Anthropic's interface: `/v1/messages` and `/v1/messages/count_tokens`.

mod error;
mod input;
pub(crate) mod messages;
mod notes;
mod tools;
pub(crate) mod types;

pub(crate) use error::{AnthropicError, in_its_shape};
