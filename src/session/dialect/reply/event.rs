//! What a reply is taken apart into.

/// A piece of a reply, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyEvent {
    /// More reasoning, without the spaces at its ends.
    Reasoning(String),
    /// More of the text, without the blank lines after reasoning and the spaces before a call.
    Text(String),
    /// A call begins.
    ToolCallStart {
        /// Number of the call in this reply, from 0.
        index: usize,
        /// Name of the function.
        name: String,
    },
    /// More of the arguments' JSON; all pieces of a call together are one object.
    ToolCallArguments {
        /// Number of the call.
        index: usize,
        /// The next piece of JSON text.
        delta: String,
    },
    /// The call is complete.
    ToolCallEnd {
        /// Number of the call.
        index: usize,
    },
}
