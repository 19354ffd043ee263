//! DeepSeek: calls between tokens of their own. V3.1 writes the name and the JSON, V3 and R1 a type before and a fence around it.

use super::family::{Arguments, BASE, Calls, Family, Form};

pub(super) const FAMILY: Family = Family {
    name: "deepseek",
    signs: &[&["<｜tool▁calls▁begin｜>"], &["<｜Assistant｜>"]],
    tokens: &["<｜tool▁calls▁begin｜>"],
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
        unopened: false,
        end_reasoning: false,
        skips: &["```", "<｜tool▁call▁end｜>"],
        ends: &["<｜tool▁calls▁end｜>"],
    }),
    ..BASE
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
