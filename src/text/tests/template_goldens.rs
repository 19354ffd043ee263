//! Templates give the same bytes as Python's Jinja set up as in transformers.
//! The files that end in `.z` come from `scripts/chat_goldens.py TEMPLATE FILE` (JSON, packed by zlib), `template_traits.json` from
//! the same with `--lines`; `template_small.chats.json` is transformers 5.23.0's own `apply_chat_template`.

use serde_json::{Value, json};
use text::template::{Chat, ChatTemplate, TemplateError};

#[test]
fn prompts_equal_those_of_transformers() {
    let goldens: Value = parse(include_str!("data/template_small.chats.json"));
    let chats = goldens["chats"].as_array().unwrap();
    assert_eq!(chats.len(), 12);
    compare(include_str!("data/template_small.jinja"), chats);
}

#[test]
fn the_small_template_equals_python() {
    let chats = packed(include_bytes!("data/template_small.more.json.z"));
    compare(include_str!("data/template_small.jinja"), chats.as_array().unwrap());
}

#[test]
fn the_pocket_template_equals_python() {
    let chats = packed(include_bytes!("data/template_pocket.chats.json.z"));
    compare(include_str!("data/template_pocket.jinja"), chats.as_array().unwrap());
}

#[test]
fn what_templates_use_of_jinja_equals_python() {
    let chats = packed(include_bytes!("data/template_features.chats.json.z"));
    compare(include_str!("data/template_features.jinja"), chats.as_array().unwrap());
}

/// Every line of the templates is one of its own: what Python says of values, operators, filters, tests, methods and statements.
#[test]
fn every_trait_of_jinja_is_as_in_python() {
    let expected = parse(include_str!("data/template_traits.json"));
    let lines = include_str!("data/template_traits.jinja").lines();
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>"), ("pad_token", "<pad>")];
    let messages = json!([{"role": "user", "content": "Hi\nyou"}, {"role": "assistant", "content": "4."}]);
    let chat = Chat { messages: messages.as_array().unwrap().clone(), add_generation_prompt: true, ..Chat::default() };
    assert_eq!(lines.clone().count(), expected.as_array().unwrap().len());
    for (line, expected) in lines.zip(expected.as_array().unwrap()) {
        let rendered = ChatTemplate::new(line).and_then(|template| {
            template.with_special_tokens(tokens.map(|(name, text)| (name.into(), text.into()))).render(&chat)
        });
        match rendered {
            Ok(prompt) => assert_eq!(Some(&*prompt.text), expected["text"].as_str(), "{line}"),
            Err(error) => assert!(expected["error"].is_string(), "{line}: {error}, {expected} expected"),
        }
    }
}

fn compare(source: &str, chats: &[Value]) {
    let template = ChatTemplate::new(source).unwrap();
    for (i, golden) in chats.iter().enumerate() {
        let input = || golden.get("messages").unwrap();
        match (template.render(&chat(golden)), golden.get("error")) {
            (Ok(prompt), None) => {
                let expected = golden["text"].as_str().unwrap();
                assert_eq!(prompt.text, expected, "chat {i}: {}", input());
            }
            (Err(TemplateError::Raised { message, line }), Some(expected)) => {
                assert_eq!(message, expected.as_str().unwrap(), "chat {i}");
                assert!(line > 0);
            }
            // What Python's own operations refuse is refused here in other words.
            (Err(TemplateError::Render { .. }), Some(expected)) => {
                assert!(expected.as_str().unwrap().contains("undefined"), "chat {i}: {expected}");
            }
            (got, expected) => panic!("chat {i}: {got:?}, expected {expected:?}: {}", input()),
        }
    }
}

fn chat(golden: &Value) -> Chat {
    let list = |key: &str| golden.get(key).and_then(Value::as_array).cloned();
    Chat {
        messages: list("messages").unwrap(),
        tools: list("tools").unwrap_or_default(),
        add_generation_prompt: golden["add_generation_prompt"].as_bool().unwrap(),
        enable_thinking: golden.get("enable_thinking").and_then(Value::as_bool),
        kwargs: serde_json::Map::new(),
    }
}

fn packed(bytes: &[u8]) -> Value {
    parse(std::str::from_utf8(&miniz_oxide::inflate::decompress_to_vec_zlib(bytes).unwrap()).unwrap())
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}
