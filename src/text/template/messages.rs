//! Messages as clients send them, turned into messages as templates read them.
//! Owns the differences between the two; knows no template.

use minijinja::value::Value;
use serde_json::Value as Json;

use super::TemplateError;
use super::budget::MAX_VALUE;
use super::json::{Layout, dumps};

/// The form in which a template reads what messages hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forms {
    /// How it reads the arguments of tool calls.
    pub arguments: Arguments,
    /// How it reads contents that are lists of parts.
    pub contents: Contents,
    /// How it reads those of tool results.
    pub results: Contents,
}

impl Default for Forms {
    fn default() -> Self {
        Self { arguments: Arguments::Objects, contents: Contents::AsGiven, results: Contents::AsGiven }
    }
}

/// How a template reads the arguments of tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    /// As objects.
    Objects,
    /// As JSON text: it puts them between other texts.
    Text,
}

/// How a template reads the contents of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// As they come: absent, a text or a list of parts.
    AsGiven,
    /// As texts: parts of text are joined.
    Joined,
    /// As texts, and an absent one is null: some templates look for it in messages with calls.
    Nulls,
    /// As texts, and an absent one is empty.
    Texts,
}

/// One value per message, as `transformers` hands them over: without what is null, and with the reasoning under each of its names.
/// Contents and arguments of tool calls are as the template reads them, whichever way they were sent.
pub(super) fn prepared(messages: &[Json], forms: Forms) -> Result<Vec<Value>, TemplateError> {
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| {
            let detail = |detail| TemplateError::Message { index, detail };
            Ok(value_of(&one(message, forms).map_err(detail)?))
        })
        .collect()
}

/// Whether a message has tool calls.
pub(super) fn has_calls(message: &Json) -> bool {
    message.get("tool_calls").and_then(Json::as_array).is_some_and(|calls| !calls.is_empty())
}

/// Whether a message's content is a list of parts.
pub(super) fn has_parts(message: &Json) -> bool {
    message.get("content").is_some_and(Json::is_array)
}

/// JSON as a value of the template engine, keys in their order.
pub(super) fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => items.iter().map(value_of).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), value_of(v)))),
    }
}

fn one(message: &Json, forms: Forms) -> Result<Json, String> {
    let Json::Object(message) = message else {
        return Err(format!("an object with `role` and `content` expected, {} found", kind(message)));
    };
    if !matches!(message.get("role"), Some(Json::String(_))) {
        return Err("`role` has to be a string".to_owned());
    }
    let mut message = message.clone();
    message.retain(|_, value| !value.is_null());
    let is_result = message.get("role").and_then(Json::as_str) == Some("tool");
    let contents = if is_result { forms.results } else { forms.contents };
    let absent = match contents {
        Contents::AsGiven | Contents::Joined => None,
        Contents::Nulls => Some(Json::Null),
        Contents::Texts => Some(Json::String(String::new())),
    };
    if let Some(content) = absent.filter(|_| !message.contains_key("content")) {
        message.insert("content".to_owned(), content);
    }
    if contents != Contents::AsGiven
        && let Some(text) = message.get("content").and_then(joined)
    {
        message.insert("content".to_owned(), Json::String(text));
    }
    if let Some(reasoning) = REASONING.iter().find_map(|name| message.get(*name)).cloned() {
        message.entry("thinking").or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".to_owned(), reasoning);
    }
    if let Some(Json::Array(calls)) = message.get_mut("tool_calls") {
        for (i, call) in calls.iter_mut().enumerate() {
            set_arguments(call, forms.arguments).map_err(|e| format!("tool_calls[{i}].function.arguments: {e}"))?;
        }
    }
    Ok(Json::Object(message))
}

/// The text of a list of parts; `None` where it is none, or a part has no text.
fn joined(content: &Json) -> Option<String> {
    content.as_array()?.iter().map(|part| part.get("text")?.as_str()).collect()
}

/// Clients send the arguments as a string of JSON; most templates loop over an object.
fn set_arguments(call: &mut Json, form: Arguments) -> Result<(), String> {
    let in_function = call.get("function").is_some();
    let owner = if in_function { call.get_mut("function") } else { Some(call) };
    let Some(arguments) = owner.and_then(|f| f.get_mut("arguments")) else {
        return Ok(());
    };
    let parsed = match &*arguments {
        Json::String(text) if text.trim().is_empty() => Json::Object(serde_json::Map::new()),
        Json::String(text) => serde_json::from_str(text)
            .map_err(|e| format!("the string is not JSON ({e}); send an object as JSON text"))?,
        other => other.clone(),
    };
    if arguments.is_string() && !parsed.is_object() {
        return Err(format!("a JSON object expected, {} found in the string", kind(&parsed)));
    }
    match form {
        Arguments::Objects => *arguments = parsed,
        Arguments::Text if arguments.as_str().is_some_and(|text| !text.trim().is_empty()) => {}
        Arguments::Text => *arguments = Json::String(dumps_line(&value_of(&parsed))?),
    }
    Ok(())
}

fn dumps_line(value: &Value) -> Result<String, String> {
    let json = dumps(value, Layout::default(), MAX_VALUE).map_err(|error| error.to_string())?;
    json.ok_or_else(|| format!("longer than {MAX_VALUE} bytes"))
}

/// The names under which reasoning is sent; the first is the one that most templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}
