//! Mistral: a list of JSON objects after a tag; from Mistral Small 3.2 on each call has the tag, its name, its id and its arguments.

use super::family::{Arguments, BASE, Calls, Family, Form, Reasoning};

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    signs: &[&["[TOOL_CALLS]"], &["[INST]", "[THINK]"]],
    tokens: &["[TOOL_CALLS]"],
    reasoning: Reasoning {
        open: "[THINK]",
        token: "[THINK]",
        close: "[/THINK]",
        shown_by: "[/THINK]",
        around: ["", ""],
    },
    calls: Some(Calls {
        forms: &[
            Form { shown_by: &["[CALL_ID]", "[ARGS]"], after: "[CALL_ID]\0[ARGS]", ..NAMED },
            NAMED,
            Form {
                shown_by: &["[TOOL_CALLS]"],
                opening: "[TOOL_CALLS]",
                first: "[",
                before: "{\"name\": \"",
                after: "\", \"arguments\": ",
                arguments: Arguments::Object,
                end: ", \"id\": \"\0\"}",
                between: Some(", "),
                closing: "]",
            },
        ],
        openings: &[],
        unopened: false,
        end_reasoning: false,
        skips: &[","],
        ends: &["]"],
    }),
    ..BASE
};

const NAMED: Form = Form {
    shown_by: &["[ARGS]"],
    opening: "[TOOL_CALLS]",
    first: "",
    before: "",
    after: "[ARGS]",
    arguments: Arguments::Json,
    end: "",
    between: Some("[TOOL_CALLS]"),
    closing: "",
};
