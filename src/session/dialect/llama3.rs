//! Llama 3.1 to 3.3: a reply that is one JSON object with `name` and `parameters` is a call. A tag may come before it.

use super::family::{Arguments, BASE, Calls, Family, Form};

pub(super) const FAMILY: Family = Family {
    name: "llama3",
    signs: &[&["<|start_header_id|>", "\"parameters\": "], &["<|start_header_id|>", "<|python_tag|>"]],
    tokens: &["<|python_tag|>"],
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["\"parameters\": "],
            opening: "",
            first: "",
            before: "{\"name\": \"",
            after: "\", \"parameters\": ",
            arguments: Arguments::Object,
            end: "}",
            between: None,
            closing: "",
        }],
        openings: &["<|python_tag|>"],
        unopened: false,
        end_reasoning: false,
        skips: &[";"],
        ends: &[],
    }),
    ..BASE
};
