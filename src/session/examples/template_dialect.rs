//! Says which dialect chat templates show: `template_dialect TEMPLATE.jinja ..`, one JSON object a line.
//!
//! `dialect` is the family, found without a vocabulary. `call` says whether a call that the template writes is read back as it was,
//! `reasoning` the same of reasoning and the answer after it; null: the template writes none.

use serde_json::{Value, json};
use session::dialect::{Dialect, ReplyEvent, ReplyOptions, ToolSchema};
use text::template::{Chat, ChatTemplate};
use text::{Vocab, VocabSource};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Every byte is a token, and there are no others: what is found is found from the template.
    let letters: Vec<String> = letters().map(String::from).collect();
    let source = VocabSource {
        model: "gpt2",
        pre: "qwen2",
        tokens: letters.iter().map(String::as_str).collect(),
        ..VocabSource::default()
    };
    let vocab = Vocab::new(&source)?;
    for path in std::env::args().skip(1) {
        let source = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let dialect = Dialect::detect(Some(&source), &vocab);
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(name, text)| (name.into(), text.into()));
        let read = match ChatTemplate::new(&source) {
            Ok(template) => {
                let template = template.with_special_tokens(tokens);
                [reads_call(&template, &dialect), reads_reasoning(&template, &dialect)]
            }
            Err(error) => return Err(format!("{path}: {error}").into()),
        };
        println!("{}", json!({ "template": path, "dialect": dialect.name(), "call": read[0], "reasoning": read[1] }));
    }
    Ok(())
}

fn reads_call(template: &ChatTemplate, dialect: &Dialect) -> Option<bool> {
    let arguments = json!({"city": "Paris", "days": 2});
    let call =
        json!({"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": arguments}});
    let message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let events = read(template, dialect, &message, "Paris")?;
    let mut calls: Vec<(String, String)> = Vec::new();
    for event in events {
        match event {
            ReplyEvent::ToolCallStart { name, .. } => calls.push((name, String::new())),
            ReplyEvent::ToolCallArguments { index, delta } => calls[index].1 += &delta,
            _ => {}
        }
    }
    let [(name, text)] = &calls[..] else { return Some(false) };
    Some(name == "get_weather" && serde_json::from_str::<Value>(text).is_ok_and(|read| read == arguments))
}

fn reads_reasoning(template: &ChatTemplate, dialect: &Dialect) -> Option<bool> {
    let message = json!({"role": "assistant", "content": "It is 4.", "reasoning_content": "Two and two."});
    let events = read(template, dialect, &message, "Two and two.")?;
    let (mut reasoning, mut text) = (String::new(), String::new());
    for event in events {
        match event {
            ReplyEvent::Reasoning(more) => reasoning += &more,
            ReplyEvent::Text(more) => text += &more,
            _ => {}
        }
    }
    Some(reasoning == "Two and two." && text.trim_start().starts_with("It is 4."))
}

/// What the dialect reads of `message` as the template writes it; `None` where it does not write `part`.
fn read(template: &ChatTemplate, dialect: &Dialect, message: &Value, part: &str) -> Option<Vec<ReplyEvent>> {
    let tool = json!({"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters":
        {"type": "object", "properties": {"city": {"type": "string", "description": "Its name"},
                                          "days": {"type": "integer", "description": "How many"}}, "required": ["city"]}}});
    let question = json!({"role": "user", "content": "What?"});
    let mut chat = Chat {
        messages: vec![question, message.clone()],
        tools: vec![tool.clone()],
        enable_thinking: Some(true),
        ..Chat::default()
    };
    let whole = template.render(&chat).ok()?;
    chat.messages.pop();
    chat.add_generation_prompt = true;
    let prompt = template.render(&chat).ok()?;
    let opened = whole.text.starts_with(&prompt.text);
    let mut at = whole.text.bytes().zip(prompt.text.bytes()).take_while(|(a, b)| a == b).count();
    while !whole.text.is_char_boundary(at) {
        at -= 1;
    }
    // Two tags may begin alike.
    let tag = ['<', '['].into_iter().filter_map(|open| whole.text[..at].rfind(open)).max();
    if !opened && let Some(tag) = tag.filter(|&tag| !whole.text[tag..at].contains(['>', ']'])) {
        at = tag;
    }
    let reply = &whole.text[at..];
    if !reply.contains(part) {
        return None;
    }
    let options = ReplyOptions {
        starts_in_reasoning: opened && dialect.starts_in_reasoning(&prompt),
        reasoning: true,
        tools: true,
        tool_schemas: ToolSchema::from_tool(&tool).into_iter().collect(),
        ..ReplyOptions::default()
    };
    let mut parser = dialect.parser(options);
    let mut events: Vec<ReplyEvent> = parser.push(reply);
    events.extend(parser.finish());
    Some(events)
}

/// The characters that stand for bytes.
fn letters() -> impl Iterator<Item = char> {
    let shown = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..256).filter(move |byte| !shown(byte)).count() as u32;
    (0..256).filter(shown).chain(0x100..0x100 + others).filter_map(char::from_u32)
}
