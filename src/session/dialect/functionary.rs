//! Functionary 3.1: a function's name in a tag, its arguments as JSON, and a tag after it.

use super::family::{Arguments, BASE, Calls, Family, Form};

pub(super) const FAMILY: Family = Family {
    name: "functionary",
    signs: &[&["<function=example_function_name>{"], &["{start_tag}={function_name}"]],
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["'<function='"],
            opening: "",
            first: "",
            before: "<function=",
            after: ">",
            arguments: Arguments::Json,
            end: "</function>",
            between: Some(""),
            closing: "",
        }],
        openings: &["<|python_tag|>"],
        unopened: true,
        end_reasoning: false,
        skips: &[],
        ends: &["</function>"],
    }),
    ..BASE
};
