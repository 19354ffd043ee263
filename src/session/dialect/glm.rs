//! GLM 4.5 to 4.7: the name after a tag, then keys and values between tags; GLM 4.7 writes no line breaks between them.

use super::family::{Arguments, BASE, Calls, Family, Form, Tagged};

pub(super) const FAMILY: Family = Family {
    name: "glm",
    signs: &[&["<arg_key>"]],
    tokens: &["<arg_key>"],
    marks: &["<|role_end|>"],
    calls: Some(Calls {
        forms: &[
            Form {
                shown_by: &["</arg_key><arg_value>"],
                after: "",
                between: Some("<tool_call>"),
                arguments: tagged(""),
                ..LINES
            },
            LINES,
        ],
        openings: &[],
        unopened: false,
        end_reasoning: true,
        skips: &[],
        ends: &["</tool_call>"],
    }),
    ..BASE
};

const LINES: Form = Form {
    shown_by: &["<arg_key>"],
    opening: "<tool_call>",
    first: "",
    before: "",
    after: "\n",
    arguments: tagged("\n"),
    end: "</tool_call>",
    between: Some("\n<tool_call>"),
    closing: "",
};

const fn tagged(gap: &'static str) -> Arguments {
    Arguments::Tagged(Tagged {
        open: "<arg_key>",
        named: "</arg_key>",
        types: ("", &[]),
        value: "<arg_value>",
        close: "</arg_value>",
        end: None,
        gap,
        own_lines: false,
    })
}
