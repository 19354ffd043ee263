//! Items of a conversation as messages in the shape that templates know.

use serde_json::{Value, json};

use super::tools::{ToolMap, called, custom_arguments};
use super::types::ResponsesRequest;
use crate::content::Content;
use crate::error::{ApiError, shortened};
use crate::form;
use crate::pictures;
use session::{Conversation, Reasoning};

/// The conversation of `items`, of which the last `n_own` came with the request, and all that shapes its prompt.
///
/// # Errors
/// 400 with the field that cannot be taken.
pub(super) fn chat_input(
    body: &ResponsesRequest,
    items: &[Value],
    n_own: usize,
    tools: &ToolMap,
    defaults: &Reasoning,
) -> Result<Conversation, ApiError> {
    let mut turns = Turns::default();
    if let Some(text) = &body.instructions {
        turns.messages.push(json!({ "role": "system", "content": text }));
    }
    let own = items.len() - n_own;
    for (i, item) in items.iter().enumerate() {
        // Those that were kept were read once already.
        turns.take(i.saturating_sub(own), item)?;
    }
    turns.flush();
    let mut reasoning = defaults.clone();
    // Thinking is an item of its own here.
    reasoning.in_content = false;
    if let Some(effort) = body.reasoning.as_ref().and_then(|r| r.effort.as_deref()) {
        form::effort(&mut reasoning, "reasoning.effort", effort)?;
    }
    let calls = form::tool_choice(body.tool_choice.as_ref(), |namespace, name| tools.called(namespace, name))?;
    Ok(Conversation {
        messages: turns.messages,
        tools: tools.functions.clone(),
        tool_choice: calls.choice,
        allowed_tools: calls.allowed,
        one_call: body.parallel_tool_calls == Some(false),
        form: form::format_of("text.format", body.text.as_ref().and_then(|text| text.format.as_ref()))?,
        reasoning,
        ..Conversation::default()
    })
}

/// Messages so far. Reasoning, text and calls that follow each other are one message of the assistant.
#[derive(Default)]
struct Turns {
    messages: Vec<Value>,
    reasoning: String,
    text: Option<String>,
    calls: Vec<Value>,
}

impl Turns {
    fn take(&mut self, i: usize, item: &Value) -> Result<(), ApiError> {
        let wrong = |what: String| ApiError::field("input", format!("input[{i}]{what}"));
        let field = |name: &str| {
            let value = item.get(name).and_then(Value::as_str);
            value.ok_or_else(|| wrong(format!(".{name}: a text is expected")))
        };
        let content = |name: &str| {
            let value = item.get(name).unwrap_or(&Value::Null);
            text_of(value).ok_or_else(|| {
                wrong(format!(".{name}: a text, or parts of type input_text, input_image or output_text expected"))
            })
        };
        let user_content = || match item.get("content") {
            Some(Value::Array(parts)) if parts.iter().any(is_seen) => {
                seen(parts, |what| wrong(format!(".content: {what}")))
            }
            _ => content("content").map(Value::from),
        };
        let kind = item.get("type").and_then(Value::as_str).or(item.get("role").map(|_| "message"));
        match kind.unwrap_or_default() {
            "message" => match field("role")? {
                "assistant" => {
                    if self.text.is_some() || !self.calls.is_empty() {
                        self.flush();
                    }
                    self.text = Some(content("content")?);
                }
                role @ ("user" | "system" | "developer") => {
                    self.flush();
                    self.messages.push(json!({ "role": role, "content": user_content()? }));
                }
                role => {
                    let found = shortened(role);
                    return Err(wrong(format!(
                        ".role: user, assistant, system or developer expected, `{found}` found"
                    )));
                }
            },
            "reasoning" => {
                if self.text.is_some() || !self.calls.is_empty() {
                    self.flush();
                }
                let said = item.get("content").filter(|content| content.as_array().is_some_and(|c| !c.is_empty()));
                let texts = said.or(item.get("summary")).and_then(text_of);
                self.reasoning += &texts.unwrap_or_default();
            }
            "function_call" => {
                let namespace = item.get("namespace").and_then(Value::as_str);
                self.call(field("call_id")?, &called(namespace, field("name")?), field("arguments")?);
            }
            "custom_tool_call" => {
                self.call(field("call_id")?, field("name")?, &custom_arguments(field("input")?));
            }
            // The client ran it; its tool is not offered again, but what it did is part of the conversation.
            "local_shell_call" => {
                let action = item.get("action").unwrap_or(&Value::Null).to_string();
                self.call(field("call_id").or_else(|_| field("id"))?, "local_shell", &action);
            }
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
                self.flush();
                let id = field("call_id").or_else(|_| field("id"))?;
                let output = output(item.get("output").unwrap_or(&Value::Null));
                let output =
                    output.ok_or_else(|| wrong(".output: a text, or a list of parts with types expected".into()))?;
                self.messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
            }
            // What a server did for itself leaves nothing that a model has to see.
            "web_search_call"
            | "file_search_call"
            | "code_interpreter_call"
            | "image_generation_call"
            | "mcp_list_tools"
            | "tool_search_call"
            | "tool_search_output" => {}
            kind => {
                let known = "message, reasoning, or a tool's call or output";
                let found = shortened(kind);
                return Err(wrong(format!(".type: {known} expected, `{found}` found")));
            }
        }
        Ok(())
    }

    fn call(&mut self, id: &str, name: &str, arguments: &str) {
        let function = json!({ "name": name, "arguments": arguments });
        self.calls.push(json!({ "id": id, "type": "function", "function": function }));
    }

    /// Ends the message of the assistant that is open.
    fn flush(&mut self) {
        let Self { messages, reasoning, text, calls } = self;
        if text.is_none() && calls.is_empty() {
            // Thinking that led to nothing is not part of a conversation.
            reasoning.clear();
            return;
        }
        let mut message = json!({ "role": "assistant", "content": text.take().unwrap_or_default() });
        if !reasoning.is_empty() {
            message["reasoning_content"] = std::mem::take(reasoning).into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = std::mem::take(calls).into();
        }
        messages.push(message);
    }
}

/// A text, whole or in parts of text; `None` where something else is in it.
fn text_of(content: &Value) -> Option<String> {
    const TEXTS: [&str; 6] = ["input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"];
    let part = |part: &Value| {
        let kind = part.get("type").and_then(Value::as_str).filter(|kind| TEXTS.contains(kind))?;
        part.get(if kind == "refusal" { kind } else { "text" })?.as_str().map(str::to_owned)
    };
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(part).collect(),
        _ => None,
    }
}

/// What a tool gave, with a note in place of what is neither text nor an image at a URL: a result may be long past, and a
/// conversation must go on with it.
fn output(content: &Value) -> Option<Value> {
    let Value::Array(parts) = content else { return text_of(content).map(Value::from) };
    let mut contents = Content::default();
    for part in parts {
        match image_url(part) {
            Some(url) => contents.image(url),
            None if pictures::is_video(part) => contents.video(part),
            None => {
                let kind = part.get("type").and_then(Value::as_str)?;
                contents.text(&text_of(&json!([part])).unwrap_or_else(|| form::left_out(kind)));
            }
        }
    }
    Some(contents.into_value())
}

/// What a user says in `parts` with images among them.
fn seen(parts: &[Value], wrong: impl Fn(&str) -> ApiError) -> Result<Value, ApiError> {
    let mut contents = Content::default();
    for part in parts {
        match (image_url(part), is_image(part)) {
            (Some(url), _) => contents.image(url),
            (None, true) => return Err(wrong("input_image: an `image_url` expected: files are not kept here")),
            (None, false) if pictures::is_video(part) => contents.video(part),
            (None, false) => {
                let text = text_of(&json!([part]));
                contents
                    .text(&text.ok_or_else(|| wrong("parts of type input_text, input_image or input_video expected"))?);
            }
        }
    }
    Ok(contents.into_value())
}

/// Whether a part of an item is an image.
fn is_image(part: &Value) -> bool {
    part.get("type").and_then(Value::as_str) == Some("input_image")
}

fn image_url(part: &Value) -> Option<&str> {
    let url = part.get("image_url").filter(|_| is_image(part))?;
    url.as_str().or_else(|| url.get("url")?.as_str())
}

/// Whether a part of an item is an image or a video.
fn is_seen(part: &Value) -> bool {
    is_image(part) || pictures::is_video(part)
}

/// Whether images or videos are among the parts of items.
pub(super) fn have_images(items: &[Value]) -> bool {
    let parts = |item: &Value, name: &str| {
        item.get(name).and_then(Value::as_array).is_some_and(|parts| parts.iter().any(is_seen))
    };
    items.iter().any(|item| parts(item, "content") || parts(item, "output"))
}
