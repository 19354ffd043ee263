//! LFM2 and LFM2.5: a list of calls as Python writes them, with keyword arguments.

use super::family::{Arguments, BASE, Calls, Family, Form};

pub(super) const FAMILY: Family = Family {
    name: "lfm2",
    signs: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"], &["List of tools: [", "<|im_start|>"]],
    tokens: &["<|tool_call_start|>"],
    marks: &["<|tool_call_end|>"],
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &[],
            opening: "<|tool_call_start|>",
            first: "[",
            before: "",
            after: "(",
            arguments: Arguments::Keywords,
            end: ")",
            between: Some(", "),
            closing: "]<|tool_call_end|>",
        }],
        openings: &[],
        unopened: false,
        end_reasoning: false,
        skips: &[","],
        ends: &["]"],
    }),
    ..BASE
};
