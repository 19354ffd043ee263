//! What a request demands of the form of its answer: `response_format`, grammars, `tool_choice`.
//! The one place that reads these fields; what cannot be forced is refused, never left out in silence.

use serde_json::Value;

use crate::error::ApiError;
use crate::prepare::ToolChoice;

/// Reads `tool_choice` in OpenAI's form.
///
/// # Errors
/// 400 for another form.
pub(crate) fn tool_choice(value: Option<&Value>) -> Result<ToolChoice, ApiError> {
    let wrong = || {
        let expected = "`none`, `auto`, `required` or {\"type\": \"function\", \"function\": {\"name\": ...}}";
        ApiError::field("tool_choice", format!("tool_choice: {expected} expected"))
    };
    match value {
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" | "any" => Ok(ToolChoice::Required),
            _ => Err(wrong()),
        },
        Some(object) => {
            let name = object.get("function").unwrap_or(object).get("name").and_then(Value::as_str);
            Ok(ToolChoice::Named(name.ok_or_else(wrong)?.to_owned()))
        }
    }
}

/// Refuses what this server cannot force.
///
/// # Errors
/// 400 with the field.
pub(crate) fn check(body: &Value, tool_choice: &ToolChoice) -> Result<(), ApiError> {
    if let Some(format) = body.get("response_format").filter(|f| !f.is_null()) {
        let kind = format.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind != "text" {
            return Err(ApiError::field("response_format", "response_format: only the type `text` is served"));
        }
    }
    for field in ["grammar", "json_schema", "regex", "choice", "lark"] {
        if body.get(field).is_some_and(|value| !value.is_null() && value != "") {
            return Err(ApiError::field(field, format!("{field}: this server does not force the form of answers")));
        }
    }
    match tool_choice {
        ToolChoice::None | ToolChoice::Auto => Ok(()),
        ToolChoice::Required | ToolChoice::Named(_) => {
            Err(ApiError::field("tool_choice", "tool_choice: only `none` and `auto` are served"))
        }
    }
}
