//! Kimi K3: everything between tags that are opened and closed by name; a parameter names its value's type.

use super::family::{Arguments, BASE, Calls, Family, Form, Reasoning, Tagged};

pub(super) const FAMILY: Family = Family {
    name: "kimi3",
    signs: &[&["<|open|>", "<|close|>", "<|sep|>"]],
    tokens: &["<|open|>", "<|close|>", "<|sep|>"],
    reasoning: Reasoning {
        open: "<|open|>think<|sep|>",
        // Every tag begins with this token.
        token: "<|open|>think",
        close: "<|close|>think<|sep|>",
        shown_by: "'think'",
        around: ["", "<|open|>response<|sep|>"],
    },
    marks: &[
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|open|>message<|sep|>",
        "<|close|>message<|sep|>",
        "<|open|>think<|sep|><|close|>think<|sep|>",
    ],
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["<|sep|>"],
            opening: "<|open|>tools<|sep|>",
            first: "",
            before: "<|open|>call tool=\"",
            after: "\" index=\"\u{1}\"<|sep|>",
            arguments: Arguments::Tagged(Tagged {
                open: "<|open|>argument key=\"",
                named: "\" type=\"\u{2}\"<|sep|>",
                types: ("string", &["number", "boolean", "object", "array", "null", "integer"]),
                value: "",
                close: "<|close|>argument<|sep|>",
                end: Some("<|close|>call<|sep|>"),
                gap: "",
                own_lines: false,
            }),
            end: "<|close|>call<|sep|>",
            between: Some(""),
            closing: "<|close|>tools<|sep|>",
        }],
        openings: &[],
        unopened: false,
        end_reasoning: true,
        skips: &[],
        ends: &["<|close|>tools<|sep|>"],
    }),
    ..BASE
};
