//! Ollama's messages in the shape that templates know.

use serde_json::{Value, json};
use session::{Conversation, Reasoning};

use super::options;
use super::types::{OllamaChatRequest, OllamaFields};
use crate::content::Content;
use crate::error::ApiError;

/// The conversation of `/api/chat` and all that shapes its prompt.
///
/// # Errors
/// 400 with the field that cannot be taken.
pub(super) fn conversation(
    body: OllamaChatRequest,
    fields: &OllamaFields,
    defaults: &Reasoning,
) -> Result<Conversation, ApiError> {
    let mut calls = Calls::default();
    let given = body.messages.unwrap_or_default().into_iter().enumerate();
    let messages = given.map(|(i, message)| shaped(i, message, &mut calls)).collect::<Result<_, _>>()?;
    Ok(Conversation { tools: body.tools.unwrap_or_default(), ..of(messages, fields, defaults)? })
}

/// A conversation of these messages.
///
/// # Errors
/// 400 for a wrong `think` or `format`.
pub(super) fn of(messages: Vec<Value>, fields: &OllamaFields, defaults: &Reasoning) -> Result<Conversation, ApiError> {
    Ok(Conversation {
        messages,
        form: options::form(fields.format.as_ref())?,
        reasoning: options::reasoning(defaults, fields.think.as_ref())?,
        continue_last: true,
        ..Conversation::default()
    })
}

/// Calls that have no result yet: ids are ours where the client has none, and results find them by name.
#[derive(Default)]
struct Calls {
    open: Vec<(String, String)>,
    n: usize,
}

impl Calls {
    /// The id of a call.
    fn opened(&mut self, name: &str, id: Option<&str>) -> String {
        let id = id.map_or_else(|| format!("call_{}", self.n), str::to_owned);
        self.n += 1;
        self.open.push((name.to_owned(), id.clone()));
        id
    }

    /// The call that a result of the tool `name` belongs to, or of the call `id`.
    fn closed(&mut self, name: Option<&str>, id: Option<&str>) -> Option<(String, String)> {
        let fits = |call: &(String, String)| match (id, name) {
            (Some(id), _) => call.1 == id,
            (None, Some(name)) => call.0 == name,
            (None, None) => true,
        };
        let at = self.open.iter().position(fits)?;
        Some(self.open.remove(at))
    }
}

/// A content with images before its text; `None` where they are no texts.
pub(super) fn with_images(images: &[Value], text: &str) -> Option<Value> {
    let mut content = Content::default();
    for image in images {
        content.image_of_base64(image.as_str()?);
    }
    content.text(text);
    Some(content.into_value())
}

fn shaped(i: usize, mut message: Value, calls: &mut Calls) -> Result<Value, ApiError> {
    let wrong = |what: &str| ApiError::field("messages", format!("messages[{i}]{what}"));
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(wrong(".role: a text is expected"));
    }
    let fields = message.as_object_mut().ok_or_else(|| wrong(": an object is expected"))?;
    if let Some(Value::Array(images)) = fields.remove("images").filter(|images| images != &json!([])) {
        let text = fields.get("content").and_then(Value::as_str).unwrap_or_default();
        let content =
            with_images(&images, text).ok_or_else(|| wrong(".images: a list of images in base64 expected"))?;
        fields.insert("content".into(), content);
    }
    if let Some(thinking) = fields.remove("thinking").filter(|thinking| !thinking.is_null()) {
        fields.insert("reasoning_content".into(), thinking);
    }
    if fields.get("content").is_none_or(Value::is_null) {
        fields.insert("content".into(), json!(""));
    }
    match fields.remove("tool_calls") {
        None | Some(Value::Null) => {}
        Some(Value::Array(given)) if given.is_empty() => {}
        Some(Value::Array(given)) => {
            let one = |call: Value| {
                let function = call.get("function").filter(|function| function.is_object());
                let function = function.ok_or_else(|| wrong(".tool_calls: objects with a `function` are expected"))?;
                let name = function.get("name").and_then(Value::as_str);
                let name = name.ok_or_else(|| wrong(".tool_calls: a function's `name` is expected"))?;
                let arguments = function.get("arguments").cloned().unwrap_or_else(|| json!({}));
                let id = calls.opened(name, call.get("id").and_then(Value::as_str).filter(|id| !id.is_empty()));
                let function = json!({ "name": name, "arguments": arguments });
                Ok(json!({ "id": id, "type": "function", "function": function }))
            };
            let shaped = given.into_iter().map(one).collect::<Result<Vec<_>, ApiError>>()?;
            fields.insert("tool_calls".into(), shaped.into());
        }
        Some(_) => return Err(wrong(".tool_calls: a list is expected")),
    }
    if fields.get("role").is_some_and(|role| role == "tool") {
        let text = |value: Option<Value>| value.and_then(|v| v.as_str().map(str::to_owned)).filter(|v| !v.is_empty());
        let name = text(fields.remove("tool_name")).or_else(|| text(fields.get("name").cloned()));
        let id = text(fields.get("tool_call_id").cloned());
        if let Some((name, id)) = calls.closed(name.as_deref(), id.as_deref()) {
            fields.insert("name".into(), name.into());
            fields.insert("tool_call_id".into(), id.into());
        } else if let Some(name) = name {
            fields.insert("name".into(), name.into());
        }
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(messages: Value) -> Result<Vec<Value>, ApiError> {
        let body = OllamaChatRequest { messages: messages.as_array().cloned(), tools: None };
        Ok(conversation(body, &OllamaFields::default(), &Reasoning::default())?.messages)
    }

    #[test]
    fn results_find_their_calls_by_the_tools_name() {
        let call = |name: &str, n: i32| json!({ "function": { "name": name, "arguments": { "n": n } } });
        let shaped = shape(json!([
            { "role": "user", "content": "a" },
            { "role": "assistant", "content": "", "thinking": "b", "tool_calls": [call("f", 1), call("g", 2), call("f", 3)] },
            { "role": "tool", "content": "c", "tool_name": "g" },
            { "role": "tool", "content": "d", "tool_name": "f" },
            { "role": "tool", "content": "e" },
            { "role": "tool", "content": "of none", "tool_name": "h" },
        ]))
        .unwrap();
        assert_eq!(shaped[1]["reasoning_content"], "b");
        assert!(shaped[1].get("thinking").is_none());
        let function = json!({ "name": "f", "arguments": { "n": 1 } });
        assert_eq!(shaped[1]["tool_calls"][0], json!({ "id": "call_0", "type": "function", "function": function }));
        let results: Vec<_> = shaped[2..].iter().map(|m| (m["name"].as_str(), m["tool_call_id"].as_str())).collect();
        let expected =
            [(Some("g"), Some("call_1")), (Some("f"), Some("call_0")), (Some("f"), Some("call_2")), (Some("h"), None)];
        assert_eq!(results, expected);
    }

    #[test]
    fn what_is_no_message_is_told_with_its_place() {
        for (wrong, words) in [
            (json!([{ "role": "user", "content": "a" }, {}]), "messages[1].role"),
            (json!([7]), "messages[0].role"),
            (json!([{ "role": "user", "content": "a", "images": [7] }]), "messages[0].images"),
            (json!([{ "role": "assistant", "tool_calls": {} }]), "messages[0].tool_calls"),
            (json!([{ "role": "assistant", "tool_calls": [{}] }]), "messages[0].tool_calls"),
            (json!([{ "role": "assistant", "tool_calls": [{ "function": {} }] }]), "messages[0].tool_calls"),
        ] {
            let error = shape(wrong).unwrap_err();
            assert!(error.message.starts_with(words), "{error}");
        }
        assert_eq!(shape(json!([{ "role": "assistant", "images": [] }])).unwrap()[0]["content"], "");
    }
}
