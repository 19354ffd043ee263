//! Seed-OSS: parameters between tags as Qwen's, on the lines of their tags, and tags of its own around calls and reasoning.

use super::family::{Arguments, BASE, Calls, Family, Form, Reasoning, Tagged};

pub(super) const FAMILY: Family = Family {
    name: "seed",
    signs: &[&["<seed:tool_call>"]],
    tokens: &["<seed:tool_call>"],
    reasoning: Reasoning {
        open: "<seed:think>",
        token: "<seed:think>",
        close: "</seed:think>",
        shown_by: "</seed:think>",
        around: ["", "\n"],
    },
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["<seed:tool_call>"],
            opening: "<seed:tool_call>",
            first: "",
            before: "\n<function=",
            after: ">\n",
            arguments: Arguments::Tagged(Tagged {
                open: "<parameter=",
                named: ">",
                types: ("", &[]),
                value: "",
                close: "</parameter>",
                end: Some("</function>"),
                gap: "\n",
                own_lines: false,
            }),
            end: "</function>\n</seed:tool_call>",
            between: Some("\n<seed:tool_call>"),
            closing: "",
        }],
        openings: &[],
        unopened: true,
        end_reasoning: true,
        skips: &[],
        ends: &["</seed:tool_call>"],
    }),
    ..BASE
};
