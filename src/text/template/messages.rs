//! Messages as clients send them, turned into messages as templates read them.
//! Owns the differences between the two; knows no template.

use minijinja::value::Value;
use serde_json::Value as Json;

use super::TemplateError;

/// One value per message: tool call arguments are objects, `reasoning` is also there as `reasoning_content`.
pub(super) fn prepared(messages: &[Json]) -> Result<Vec<Value>, TemplateError> {
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| {
            let detail = |detail| TemplateError::Message { index, detail };
            Ok(value_of(&one(message).map_err(detail)?))
        })
        .collect()
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

fn one(message: &Json) -> Result<Json, String> {
    let Json::Object(message) = message else {
        return Err(format!("an object with `role` and `content` expected, {} found", kind(message)));
    };
    if !matches!(message.get("role"), Some(Json::String(_))) {
        return Err("`role` has to be a string".to_owned());
    }
    let mut message = message.clone();
    if let (Some(Json::String(reasoning)), None | Some(Json::Null)) =
        (message.get("reasoning"), message.get("reasoning_content"))
    {
        let reasoning = Json::String(reasoning.clone());
        message.insert("reasoning_content".to_owned(), reasoning);
    }
    if let Some(Json::Array(calls)) = message.get_mut("tool_calls") {
        for (i, call) in calls.iter_mut().enumerate() {
            parse_arguments(call).map_err(|e| format!("tool_calls[{i}].function.arguments: {e}"))?;
        }
    }
    Ok(Json::Object(message))
}

/// Clients send the arguments as a string of JSON; templates loop over an object.
fn parse_arguments(call: &mut Json) -> Result<(), String> {
    let in_function = call.get("function").is_some();
    let owner = if in_function { call.get_mut("function") } else { Some(call) };
    let Some(arguments) = owner.and_then(|f| f.get_mut("arguments")) else {
        return Ok(());
    };
    let parsed = match &*arguments {
        Json::String(text) if text.trim().is_empty() => Json::Object(serde_json::Map::new()),
        Json::String(text) => serde_json::from_str(text)
            .map_err(|e| format!("the string is not JSON ({e}); send an object as JSON text"))?,
        _ => return Ok(()),
    };
    if !parsed.is_object() {
        return Err(format!("a JSON object expected, {} found in the string", kind(&parsed)));
    }
    *arguments = parsed;
    Ok(())
}

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
