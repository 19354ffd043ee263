//! Hermes, and the many that write calls as it does: JSON with `name` and `arguments` between tags.

use super::family::{Arguments, BASE, Calls, Family, Form};

pub(super) const FAMILY: Family = Family {
    name: "hermes",
    signs: &[&["<tool_call>"]],
    tokens: &[],
    calls: Some(Calls {
        forms: &[JSON],
        openings: &[],
        unopened: false,
        end_reasoning: false,
        skips: &[],
        ends: &["</tool_call>"],
    }),
    ..BASE
};

/// JSON between tags.
pub(super) const JSON: Form = Form {
    shown_by: &["<tool_call>"],
    opening: "<tool_call>",
    first: "",
    before: "\n{\"name\": \"",
    after: "\", \"arguments\": ",
    arguments: Arguments::Object,
    end: "}\n</tool_call>",
    between: Some("\n<tool_call>"),
    closing: "",
};
