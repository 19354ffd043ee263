//! Reads replies as the front ends do, one JSON object a line in and out: what scripts/published/replies.py compares with.
//!
//! In: `template` (a path), `reply`, and what a request has: `messages`, `tools`, `enable_thinking`, `add_generation_prompt`,
//! `reasoning` (tags of reasoning are read). `in_reasoning` overrides what the prompt says. Out: `family`, `starts_in_reasoning`,
//! `content`, `reasoning`, `calls` as `[name, arguments]`, `cut_alike` (the events of single characters are the same), `unrendered`
//! (why the template gave no prompt).
#![allow(clippy::print_stdout, reason = "its results")]

use std::io::BufRead;

use serde_json::{Value, json};
use session::dialect::{Dialect, ReplyEvent, ReplyOptions, ToolSchema};
use text::Vocab;
use text::template::{Chat, ChatTemplate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A template shows its family by itself; the vocabulary has bytes only.
    let vocab = vocab::vocab_of(&[]);
    for line in std::io::stdin().lock().lines() {
        println!("{}", answer(&serde_json::from_str(&line?)?, &vocab)?);
    }
    Ok(())
}

fn answer(case: &Value, vocab: &Vocab) -> Result<Value, Box<dyn std::error::Error>> {
    let of = |key| case.get(key).and_then(Value::as_str).ok_or(format!("{key}: a text expected"));
    let list = |key| case.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let flag = |key| case.get(key).and_then(Value::as_bool);
    let (source, reply) = (std::fs::read_to_string(of("template")?)?, of("reply")?);
    let dialect = Dialect::detect(Some(&source), vocab);
    let tools = list("tools");
    let chat = Chat {
        messages: list("messages"),
        tools: tools.clone(),
        add_generation_prompt: flag("add_generation_prompt").unwrap_or(true),
        enable_thinking: flag("enable_thinking"),
        ..Chat::default()
    };
    let prompt = ChatTemplate::new(&source).and_then(|template| template.render(&chat));
    let starts = prompt.as_ref().is_ok_and(|prompt| dialect.starts_in_reasoning(prompt));
    let starts_in_reasoning = flag("in_reasoning").unwrap_or(starts);
    let options = ReplyOptions {
        starts_in_reasoning,
        continues: flag("continues").unwrap_or(false),
        reasoning: flag("reasoning").unwrap_or(true),
        tools: !tools.is_empty(),
        forced: false,
        either: false,
        tool_schemas: tools.iter().filter_map(ToolSchema::from_tool).collect(),
    };
    let read = Read::of(&dialect, &options, [reply]);
    let mut bytes = [0; 4];
    let letters: Vec<String> = reply.chars().map(|c| c.encode_utf8(&mut bytes).to_owned()).collect();
    let cut = Read::of(&dialect, &options, letters.iter().map(String::as_str));
    Ok(json!({
        "family": dialect.name(),
        "starts_in_reasoning": starts_in_reasoning,
        "content": read.text,
        "reasoning": read.thought,
        "calls": read.calls,
        "cut_alike": read == cut,
        "unrendered": prompt.err().map(|error| error.to_string()),
    }))
}

/// What the events of a reply add up to.
#[derive(Default, PartialEq)]
struct Read {
    thought: String,
    text: String,
    calls: Vec<(String, String)>,
}

impl Read {
    fn of<'r>(dialect: &Dialect, options: &ReplyOptions, pieces: impl IntoIterator<Item = &'r str>) -> Self {
        let mut parser = dialect.parser(options.clone());
        let mut events: Vec<ReplyEvent> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
        events.extend(parser.finish());
        let mut read = Self::default();
        for event in events {
            match event {
                ReplyEvent::Reasoning(more) => read.thought += &more,
                ReplyEvent::Text(more) => read.text += &more,
                ReplyEvent::ToolCallStart { name, .. } => read.calls.push((name, String::new())),
                ReplyEvent::ToolCallArguments { index, delta } => read.calls[index].1 += &delta,
                ReplyEvent::ToolCallEnd { .. } => {}
            }
        }
        read
    }
}

#[path = "../tests/dialect/vocab.rs"]
mod vocab;
