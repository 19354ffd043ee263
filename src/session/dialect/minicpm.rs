//! MiniCPM5: functions and parameters in tags without anything around them.

use super::family::{Arguments, BASE, Calls, Family, Form, Tagged};

pub(super) const FAMILY: Family = Family {
    name: "minicpm",
    signs: &[&["<function name=\"", "<param name=\""]],
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["<function name=\""],
            opening: "",
            first: "",
            before: "<function name=\"",
            after: "\">",
            arguments: Arguments::Tagged(Tagged {
                open: "<param name=\"",
                named: "\">",
                types: ("", &[]),
                value: "",
                close: "</param>",
                end: Some("</function>"),
                gap: "",
                own_lines: false,
            }),
            end: "</function>",
            between: Some(""),
            closing: "",
        }],
        openings: &[],
        unopened: true,
        end_reasoning: false,
        skips: &[],
        ends: &[],
    }),
    ..BASE
};
