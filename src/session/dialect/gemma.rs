//! Gemma. Gemma 4 writes calls in a notation of its own and reasons in a channel; Gemma 1 to 3 have neither.

use super::family::{Arguments, BASE, Calls, Family, Form, Reasoning};

pub(super) const FAMILY: Family = Family {
    name: "gemma",
    signs: &[&["<|tool_call>"], &["<|turn>"], &["<start_of_turn>"]],
    tokens: &["<|tool_call>"],
    reasoning: Reasoning {
        open: "<|channel>thought",
        token: "<|channel>",
        close: "<channel|>",
        shown_by: "<channel|>",
        around: ["\n", ""],
    },
    // The model closes a channel that it never opened, and opens empty ones.
    marks: &["<channel|>", "<|channel>", "<|channel>thought\n<channel|>"],
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
        unopened: false,
        end_reasoning: false,
        skips: &[],
        ends: &["<tool_call|>"],
    }),
    ..BASE
};
