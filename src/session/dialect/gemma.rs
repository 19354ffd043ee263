//! Gemma. Gemma 4 writes calls in a notation of its own and reasons in a channel; Gemma 1 to 3 have neither.

use super::family::{Arguments, Calls, Family, Form, Reasoning};

pub(super) const FAMILY: Family = Family {
    name: "gemma",
    signs: &[&["<|tool_call>"], &["<|turn>"], &["<start_of_turn>"]],
    tokens: &["<|tool_call>"],
    reasoning: Reasoning { open: "<|channel>thought", token: "<|channel>", close: "<channel|>", around: ["\n", ""] },
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["<|tool_call>call:"],
            opening: "<|tool_call>",
            first: "",
            before: "call:",
            after: "{",
            arguments: Arguments::Marked("<|\"|>"),
            end: "}<tool_call|>",
            between: Some("<|tool_call>"),
            closing: "",
        }],
        openings: &[],
        skips: &[],
        ends: &["<tool_call|>"],
    }),
};
