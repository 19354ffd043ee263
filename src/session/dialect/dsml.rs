//! DeepSeek V3.2 and V4: calls of several functions between tags, each parameter with a word that says whether its value is a text.

use super::family::{Arguments, BASE, Calls, Family, Form, Tagged};

pub(super) const FAMILY: Family = Family {
    name: "dsml",
    signs: &[&["｜DSML｜"]],
    tokens: &["｜DSML｜"],
    calls: Some(Calls {
        forms: &[
            Form { shown_by: &["function_calls>"], ..V32 },
            Form {
                shown_by: &["tool_calls>"],
                opening: "<｜DSML｜tool_calls>",
                closing: "\n</｜DSML｜tool_calls>",
                ..V32
            },
        ],
        openings: &[],
        unopened: false,
        end_reasoning: true,
        skips: &[],
        ends: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
    }),
    ..BASE
};

const V32: Form = Form {
    shown_by: &[],
    opening: "<｜DSML｜function_calls>",
    first: "",
    before: "\n<｜DSML｜invoke name=\"",
    after: "\">\n",
    arguments: Arguments::Tagged(Tagged {
        open: "<｜DSML｜parameter name=\"",
        named: "\" string=\"\u{2}\">",
        types: ("true", &["false"]),
        value: "",
        close: "</｜DSML｜parameter>",
        end: Some("</｜DSML｜invoke>"),
        gap: "\n",
        own_lines: false,
    }),
    end: "</｜DSML｜invoke>",
    between: Some(""),
    closing: "\n</｜DSML｜function_calls>",
};
