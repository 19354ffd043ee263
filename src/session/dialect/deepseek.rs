//! DeepSeek: calls between tokens of their own. V3.1 writes the name and the JSON, V3 and R1 a type before and a fence around it.

use super::family::{Arguments, Calls, Family, Form, THINK};

pub(super) const FAMILY: Family = Family {
    name: "deepseek",
    signs: &[&["<｜tool▁calls▁begin｜>"], &["<｜Assistant｜>"]],
    tokens: &["<｜tool▁calls▁begin｜>"],
    reasoning: THINK,
    calls: Some(Calls {
        forms: &[
            Form {
                shown_by: &["<｜tool▁calls▁begin｜>", "```json"],
                before: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                after: "\n```json\n",
                end: "\n```<｜tool▁call▁end｜>",
                between: Some("\n"),
                ..BARE
            },
            BARE,
        ],
        openings: &[],
        skips: &["```", "<｜tool▁call▁end｜>"],
        ends: &["<｜tool▁calls▁end｜>"],
    }),
};

const BARE: Form = Form {
    shown_by: &["<｜tool▁calls▁begin｜>"],
    opening: "<｜tool▁calls▁begin｜>",
    first: "",
    before: "<｜tool▁call▁begin｜>",
    after: "<｜tool▁sep｜>",
    arguments: Arguments::Json,
    end: "<｜tool▁call▁end｜>",
    between: Some(""),
    closing: "<｜tool▁calls▁end｜>",
};
