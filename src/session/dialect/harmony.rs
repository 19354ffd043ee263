//! gpt-oss: replies are messages with a channel each; a call is a message to a function, with its arguments as JSON.

use super::family::{Arguments, BASE, Calls, Family, Form, Messages, Reasoning};

pub(super) const FAMILY: Family = Family {
    name: "harmony",
    signs: &[&["<|channel|>", "<|message|>"]],
    tokens: &["<|channel|>", "<|message|>"],
    reasoning: Reasoning {
        open: "<|channel|>analysis<|message|>",
        // Every message begins with a channel: no token opens reasoning alone.
        token: "<|channel|>analysis",
        close: "<|end|>",
        shown_by: "analysis",
        around: ["", "<|start|>assistant<|channel|>final<|message|>"],
    },
    messages: Some(Messages {
        start: "<|start|>assistant",
        channel: "<|channel|>",
        recipient: " to=",
        body: "<|message|>",
        ends: &["<|end|>", "<|return|>", "<|call|>"],
        reasoning: "analysis",
        user: "user",
        functions: "functions.",
    }),
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["functions."],
            opening: "<|channel|>commentary to=",
            first: "",
            before: "functions.",
            after: " <|constrain|>json<|message|>",
            arguments: Arguments::Json,
            // The token that ends a call ends the reply.
            end: "",
            between: None,
            closing: "",
        }],
        openings: &[],
        unopened: false,
        end_reasoning: false,
        skips: &[],
        ends: &["<|call|>", "<|end|>", "<|return|>"],
    }),
    ..BASE
};
