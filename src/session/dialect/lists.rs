//! Families whose calls are a list of JSON objects between two texts: Command R7B and R+, Nemotron Nano v2, Apriel, Firefunction,
//! Apertus, Granite 3, Phi-4-mini, MiniMax M1; and GigaChat, whose call is one object after a text.

use super::family::{Arguments, BASE, Calls, Family, Form, Reasoning};

pub(super) const COMMAND: Family = Family {
    name: "command",
    signs: &[&["<|START_ACTION|>"]],
    tokens: &["<|START_ACTION|>"],
    reasoning: Reasoning {
        open: "<|START_THINKING|>",
        token: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
        shown_by: "<|END_THINKING|>",
        around: ["", ""],
    },
    marks: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["\"tool_call_id\""],
            opening: "<|START_ACTION|>",
            first: "[\n    ",
            before: "{\"tool_call_id\": \"\u{1}\", \"tool_name\": \"",
            after: "\", \"parameters\": ",
            between: Some(",\n    "),
            closing: "\n]<|END_ACTION|>",
            ..LIST
        }],
        ends: &["<|END_ACTION|>"],
        ..CALLS
    }),
    ..BASE
};

pub(super) const COMMAND_PLUS: Family = Family {
    name: "command+",
    signs: &[&["<|CHATBOT_TOKEN|>", "Action:"]],
    marks: &["<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"],
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["Action:", "\"tool_name\""],
            opening: "Action:\n```json",
            first: "\n[",
            before: "{\"tool_name\": \"",
            after: "\", \"parameters\": ",
            closing: "]\n```",
            ..LIST
        }],
        ends: &["```"],
        ..CALLS
    }),
    ..BASE
};

pub(super) const NEMOTRON: Family = Family {
    name: "nemotron",
    signs: &[&["<TOOLCALL>"]],
    tokens: &["<TOOLCALL>"],
    calls: Some(Calls {
        forms: &[Form { shown_by: &["<TOOLCALL>["], opening: "<TOOLCALL>", closing: "]</TOOLCALL>", ..LIST }],
        ends: &["</TOOLCALL>"],
        ..CALLS
    }),
    ..BASE
};

pub(super) const APRIEL: Family = Family {
    name: "apriel",
    signs: &[&["<tool_calls>["]],
    tokens: &[],
    reasoning: Reasoning {
        open: "Here are my reasoning steps:",
        token: "Here are my reasoning steps:",
        close: "[BEGIN FINAL RESPONSE]",
        shown_by: "[BEGIN FINAL RESPONSE]",
        around: ["\n", "\n"],
    },
    marks: &["[END FINAL RESPONSE]"],
    calls: Some(Calls {
        forms: &[Form { shown_by: &["<tool_calls>["], opening: "<tool_calls>", closing: "]</tool_calls>", ..LIST }],
        ends: &["</tool_calls>"],
        ..CALLS
    }),
    ..BASE
};

/// Granite 3 and Phi-4-mini.
pub(super) const GRANITE: Family = Family {
    name: "granite",
    signs: &[&["<|tool_call|>"]],
    tokens: &["<|tool_call|>"],
    marks: &["<|/tool_call|>"],
    calls: Some(Calls {
        forms: &[
            Form { shown_by: &["<|/tool_call|>"], opening: "<|tool_call|>", closing: "]<|/tool_call|>", ..LIST },
            Form { shown_by: &["<|tool_call|>"], opening: "<|tool_call|>", ..LIST },
        ],
        skips: &[","],
        ends: &["]"],
        ..CALLS
    }),
    ..BASE
};

/// MiniMax M1, one object on a line.
pub(super) const MINIMAX_M1: Family = Family {
    name: "minimax1",
    signs: &[&["<tool_calls>", "<beginning_of_sentence>"]],
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["<tool_calls>"],
            opening: "<tool_calls>",
            first: "\n",
            between: Some("\n"),
            closing: "\n</tool_calls>",
            ..LIST
        }],
        skips: &[],
        ends: &["</tool_calls>"],
        ..CALLS
    }),
    ..BASE
};

pub(super) const FIREFUNCTION: Family = Family {
    name: "firefunction",
    signs: &[&["functools["]],
    calls: Some(Calls {
        forms: &[Form { shown_by: &["functools["], opening: "functools", closing: "]", ..LIST }],
        skips: &[","],
        ends: &["]"],
        ..CALLS
    }),
    ..BASE
};

pub(super) const APERTUS: Family = Family {
    name: "apertus",
    signs: &[&["<|tools_prefix|>"]],
    tokens: &["<|tools_prefix|>"],
    reasoning: Reasoning {
        open: "<|inner_prefix|>",
        token: "<|inner_prefix|>",
        close: "<|inner_suffix|>",
        shown_by: "<|inner_suffix|>",
        around: ["", ""],
    },
    calls: Some(Calls {
        forms: &[Form {
            shown_by: &["<|tools_prefix|>"],
            opening: "<|tools_prefix|>",
            before: "{\"",
            after: "\": ",
            arguments: Arguments::Json,
            closing: "]<|tools_suffix|>",
            ..LIST
        }],
        skips: &["}", ",", "]"],
        ends: &["<|tools_suffix|>"],
        ..CALLS
    }),
    ..BASE
};

pub(super) const GIGACHAT: Family = Family {
    name: "gigachat",
    signs: &[&["<|message_sep|>", "function call"], &["<|function_call|>"]],
    tokens: &["<|function_call|>"],
    calls: Some(Calls {
        forms: &[
            Form { shown_by: &["<|function_call|>"], opening: "<|function_call|>", ..ALONE },
            Form { shown_by: &["<|message_sep|>"], opening: "<|message_sep|>\n\nfunction call<|role_sep|>\n", ..ALONE },
        ],
        skips: &[],
        ..CALLS
    }),
    ..BASE
};

const LIST: Form = Form {
    shown_by: &[],
    opening: "",
    first: "[",
    before: "{\"name\": \"",
    after: "\", \"arguments\": ",
    arguments: Arguments::Object,
    end: "}",
    between: Some(", "),
    closing: "]",
};

const ALONE: Form = Form { first: "", between: None, closing: "", ..LIST };

const CALLS: Calls =
    Calls { forms: &[], openings: &[], unopened: false, end_reasoning: false, skips: &[",", "]"], ends: &[] };
