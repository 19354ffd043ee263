//! MiniMax M2: calls of several functions between one pair of tags, each parameter between tags.

use super::family::{Arguments, BASE, Calls, Family, Form, Reasoning, Tagged};

pub(super) const FAMILY: Family = Family {
    name: "minimax",
    signs: &[&["<minimax:tool_call>"]],
    tokens: &["<minimax:tool_call>"],
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["<minimax:tool_call>"],
            opening: "<minimax:tool_call>",
            first: "",
            before: "\n<invoke name=\"",
            after: "\">\n",
            arguments: Arguments::Tagged(Tagged {
                open: "<parameter name=\"",
                named: "\">",
                types: ("", &[]),
                value: "",
                close: "</parameter>",
                end: Some("</invoke>"),
                gap: "\n",
                own_lines: false,
            }),
            end: "</invoke>",
            between: Some(""),
            closing: "\n</minimax:tool_call>",
        }],
        openings: &[],
        unopened: false,
        end_reasoning: true,
        skips: &[],
        ends: &["</minimax:tool_call>"],
    }),
    ..BASE
};

/// MiniMax M3, whose calls nest tags by the names of parameters and are not read.
pub(super) const M3: Family = Family {
    name: "minimax3",
    signs: &[&["<mm:think>"]],
    tokens: &["<mm:think>"],
    reasoning: Reasoning {
        open: "<mm:think>",
        token: "<mm:think>",
        close: "</mm:think>",
        shown_by: "</mm:think>",
        around: ["", ""],
    },
    marks: &["</mm:think>"],
    ..BASE
};
