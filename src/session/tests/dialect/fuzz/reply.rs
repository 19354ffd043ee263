//! What holds of every reply in every dialect: its cuts do not change what comes out, and arguments of calls are objects.

use std::sync::OnceLock;

use serde_json::json;
use session::dialect::{Dialect, ReplyEvent, ReplyOptions, ToolSchema};

use crate::vocab::vocab_of;

/// Texts of templates, each of one family.
const SIGNS: [&str; 24] = [
    "<tool_call><function=<think></think>",
    "<arg_key></think>",
    "[TOOL_CALLS][/THINK]",
    "<|tool_call><channel|>",
    "<｜tool▁calls▁begin｜></think>",
    "<|start_header_id|><|python_tag|>",
    "<tool_call>",
    "",
    "｜DSML｜</think>",
    "<|tool_calls_section_begin|></think>",
    "<|open|><|close|><|sep|>'think'",
    "<minimax:tool_call></think>",
    "<mm:think></mm:think>",
    "<|channel|><|message|>analysis",
    "<atem:function_calls>to=self",
    "<seed:tool_call></seed:think>",
    "{start_tag}={function_name}",
    "<function name=\"<param name=\"",
    "<|tool_call_start|></think>",
    "<|START_ACTION|><|END_THINKING|>",
    "<TOOLCALL></think>",
    "<|tools_prefix|><|inner_suffix|>",
    "<|function_call|>",
    "functools[",
];

/// Reads an input: a byte of options and the family and one that says where to cut and more of the family, then the reply.
pub fn check(bytes: &[u8]) {
    let [options, cut, reply @ ..] = bytes else { return };
    let reply = String::from_utf8_lossy(reply);
    static DIALECTS: OnceLock<Vec<Dialect>> = OnceLock::new();
    let dialects = DIALECTS.get_or_init(|| {
        let vocab = vocab_of(&[]);
        SIGNS.iter().map(|sign| Dialect::detect(Some(sign), &vocab)).collect()
    });
    let dialect = &dialects[usize::from(options >> 4 | (cut >> 5) << 4) % SIGNS.len()];
    let schema = json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "text": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": ["number", "null"]},
        "on": {"type": "boolean"}, "list": {"type": "array"}, "map": {"anyOf": [{"type": "object"}, {"const": 7}]}}}}});
    let options = ReplyOptions {
        starts_in_reasoning: options & 1 > 0,
        continues: cut >> 4 & 1 > 0,
        reasoning: options & 2 > 0,
        tools: options & 4 > 0,
        forced: false,
        either: false,
        tool_schemas: if options & 8 > 0 { ToolSchema::from_tool(&schema).into_iter().collect() } else { Vec::new() },
    };
    let whole = parsed(dialect, &options, [&*reply]);
    let letters: Vec<String> = reply.chars().map(String::from).collect();
    assert_eq!(parsed(dialect, &options, letters.iter().map(String::as_str)), whole, "letter by letter");
    let n = usize::from(*cut) % 16 + 2;
    let pieces: Vec<String> = letters.chunks(n).map(|piece| piece.concat()).collect();
    assert_eq!(parsed(dialect, &options, pieces.iter().map(String::as_str)), whole, "in pieces of {n} characters");
    // Text between the tags of a call may come between the pieces of its arguments.
    let mut calls: Vec<String> = Vec::new();
    for event in &whole {
        match event {
            ReplyEvent::ToolCallStart { index, .. } => {
                assert_eq!(*index, calls.len());
                calls.push(String::new());
            }
            ReplyEvent::ToolCallArguments { index, delta } => calls[*index] += delta,
            _ => {}
        }
    }
    for arguments in calls {
        let read = serde_json::from_str::<serde_json::Value>(&arguments);
        assert!(read.is_ok_and(|value| value.is_object()), "{arguments}");
    }
}

/// The events of a reply in pieces, neighbours of one kind joined.
fn parsed<'r>(dialect: &Dialect, options: &ReplyOptions, pieces: impl IntoIterator<Item = &'r str>) -> Vec<ReplyEvent> {
    let mut parser = dialect.parser(options.clone());
    let mut events: Vec<ReplyEvent> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let mut joined: Vec<ReplyEvent> = Vec::new();
    for event in events {
        match (joined.last_mut(), &event) {
            (Some(ReplyEvent::Text(text)), ReplyEvent::Text(more))
            | (Some(ReplyEvent::Reasoning(text)), ReplyEvent::Reasoning(more)) => *text += more,
            (
                Some(ReplyEvent::ToolCallArguments { index, delta }),
                ReplyEvent::ToolCallArguments { index: of, delta: more },
            ) if index == of => *delta += more,
            _ => joined.push(event),
        }
    }
    joined
}
