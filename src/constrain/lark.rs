//! Parts of llguidance's Lark: how texts, expressions and schemas are written in it.

use serde_json::{Value, json};

/// A text that is matched as it stands.
pub fn text(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// A regular expression.
pub fn regex(expression: &str) -> String {
    format!("/{}/", llguidance::regex_to_lark(expression, ""))
}

/// A pattern that may match anywhere, as one that matches the whole text.
pub fn whole(pattern: &str) -> String {
    let (start, inner) = match pattern.strip_prefix('^') {
        Some(inner) => ("", inner),
        None => ("(?s:.*)", pattern),
    };
    let ends = inner.ends_with('$') && !inner.ends_with(r"\$");
    let (inner, end) = if ends { (&inner[..inner.len() - 1], "") } else { (inner, "(?s:.*)") };
    format!("{start}({inner}){end}")
}

/// JSON by a schema, on one line as templates print it: what follows it need not be told from its own white space.
pub(crate) fn json_line(schema: &Value) -> String {
    let style = json!({ "whitespace_flexible": false, "key_separator": ": ", "item_separator": ", " });
    format!("%json {}", with_style(schema, style))
}

/// A schema with how its JSON may be laid out: as the model likes, but without blank lines and long runs of spaces, in
/// which a small model can lose itself.
pub(crate) fn json_schema(schema: &Value) -> Value {
    with_style(schema, json!({ "whitespace_pattern": r"\x20|\n\x20{0,24}" }))
}

fn with_style(schema: &Value, mut style: Value) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        // Nothing is valid by it, which is said when it is compiled.
        Value::Bool(false) => json!({ "enum": [] }),
        schema => schema.clone(),
    };
    if let Some(map) = schema.as_object_mut() {
        style["json_allow_general_unicode_escapes"] = true.into();
        map.insert("x-guidance".into(), style);
    }
    schema
}
