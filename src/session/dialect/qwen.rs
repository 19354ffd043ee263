//! Qwen. Qwen3-Coder, Qwen3.5 and later write each parameter between tags; Qwen2.5, QwQ and Qwen3 write JSON, as [`super::hermes`] does.

use super::family::{Arguments, BASE, Calls, Family, Form, Tagged};
use super::hermes;

pub(super) const FAMILY: Family = Family {
    name: "qwen",
    signs: &[&["<tool_call>", "<function="], &["<tool_call>", "<think>"], &["<tool_call>", "Qwen"]],
    tokens: &["<tool_call>"],
    calls: Some(Calls {
        forms: &[
            Form {
                shown_by: &["<function="],
                opening: "<tool_call>",
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
                    own_lines: true,
                }),
                end: "</function>\n</tool_call>",
                between: Some("\n<tool_call>"),
                closing: "",
            },
            hermes::JSON,
        ],
        openings: &[],
        unopened: true,
        end_reasoning: true,
        skips: &[],
        ends: &["</tool_call>"],
    }),
    ..BASE
};
