//! What holds of every chat template: it is refused in words, or makes a prompt with sound boundaries.

use serde_json::json;
use text::template::{Chat, ChatTemplate, Prompt, TemplateError};

/// Reads an input: a template and, after a zero byte, the messages as JSON, if they are any.
pub fn check(bytes: &[u8]) {
    let whole = String::from_utf8_lossy(bytes);
    let (source, messages) = whole.split_once('\0').unwrap_or((&whole, ""));
    let Ok(template) = ChatTemplate::new(source).map_err(said) else { return };
    let messages: Vec<_> = serde_json::from_str(messages).unwrap_or_else(|_| {
        vec![
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "What is 2 + 2?"}),
            json!({"role": "assistant", "content": "", "reasoning_content": "a sum", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 2, \"b\": 2}"}}]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "4"}),
            json!({"role": "user", "content": [{"type": "text", "text": "Sure?"}]}),
        ]
    });
    let tool = json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}});
    for (tools, enable_thinking) in [(vec![tool], None), (vec![], Some(false))] {
        let chat = Chat {
            messages: messages.clone(),
            tools,
            add_generation_prompt: true,
            enable_thinking,
            kwargs: serde_json::Map::new(),
        };
        if let Ok(prompt) = template.render(&chat).map_err(said) {
            is_sound(&prompt);
        }
    }
}

fn said(error: TemplateError) {
    assert!(!error.to_string().is_empty());
}

fn is_sound(prompt: &Prompt) {
    assert!(prompt.boundaries.is_sorted() && !prompt.boundaries.contains(&0));
    assert!(prompt.boundaries.iter().all(|&at| prompt.text.is_char_boundary(at)), "{:?}", prompt.boundaries);
    assert!(prompt.n_lasting <= prompt.boundaries.len() && prompt.repeated <= prompt.text.len());
    assert!(prompt.text.is_char_boundary(prompt.repeated));
}
