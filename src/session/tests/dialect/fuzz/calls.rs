//! What holds of the arguments of every tool in every dialect: they are refused in words, or the grammar of their calls can be walked.

use std::sync::OnceLock;

use constrain::Limits;
use session::dialect::{Dialect, Thinking, Tool, ToolChoice, Tools};

use crate::vocab::vocab_of;

/// Texts of templates, each of one form of calls.
const SIGNS: [&str; 11] = [
    "<tool_call><function=",
    "<tool_call><think>",
    "<arg_key>",
    "[TOOL_CALLS][ARGS]",
    "<|tool_call>call:",
    "<｜tool▁calls▁begin｜>",
    "｜DSML｜tool_calls>",
    "<|tool_calls_section_begin|><|tool_call_argument_begin|>",
    "<|tool_call_start|>",
    "<|START_ACTION|>\"tool_call_id\"",
    "<|open|><|close|><|sep|>",
];

/// The schema of a tool's arguments as JSON; its length picks the form.
pub fn check(bytes: &[u8]) {
    let Ok(schema) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    static DIALECTS: OnceLock<Vec<Dialect>> = OnceLock::new();
    let dialects = DIALECTS.get_or_init(|| {
        let vocab = vocab_of(&[]);
        SIGNS.iter().map(|sign| Dialect::detect(Some(sign), &vocab)).collect()
    });
    for choice in [ToolChoice::Required, ToolChoice::Auto] {
        for dialect in [&dialects[0], &dialects[bytes.len() % SIGNS.len()]] {
            let tool = Tool { name: "f".into(), parameters: schema.clone() };
            let tools = Tools { tools: vec![tool], choice: choice.clone(), parallel: true, allowed: None };
            match dialect.tool_spec(tools, None, Thinking::Open, &Limits::default()) {
                Ok(spec) => forms::walk(&spec.expect("a form of calls")),
                Err(error) => assert!(error.is_of_the_form(), "{error}"),
            }
        }
    }
}

#[path = "../../../../constrain/tests/fuzz/forms.rs"]
pub mod forms;
