//! What the text of a model family looks like: reasoning tags, tool calls, where a turn ends.

pub use text::reply::{ReplyEvent, ReplyOptions, ReplyParser, ToolSchema};
