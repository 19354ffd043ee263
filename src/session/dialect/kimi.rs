//! Kimi K2: calls between tokens of their own, in a section; a call's id holds its function's name and the call's number.

use super::family::{Arguments, BASE, Calls, Family, Form};

pub(super) const FAMILY: Family = Family {
    name: "kimi",
    signs: &[&["<|tool_calls_section_begin|>"]],
    tokens: &["<|tool_calls_section_begin|>"],
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["<|tool_call_argument_begin|>"],
            opening: "<|tool_calls_section_begin|>",
            first: "",
            before: "<|tool_call_begin|>functions.",
            after: ":\u{1}<|tool_call_argument_begin|>",
            arguments: Arguments::Json,
            end: "<|tool_call_end|>",
            between: Some(""),
            closing: "<|tool_calls_section_end|>",
        }],
        openings: &[],
        unopened: true,
        end_reasoning: true,
        skips: &["<|tool_call_end|>"],
        ends: &["<|tool_calls_section_end|>"],
    }),
    ..BASE
};
