//! Values by a schema, however they are written: numbers and other JSON, and what a schema says of texts.

use constrain::{Document, Rules, lark};
use serde_json::Value;

/// JSON by a schema that has been resolved.
pub(super) fn json<'v>(schema: &'v Value, document: &Document<'v>, rules: &mut Rules) -> Result<String, String> {
    Ok(match schema.get("type").and_then(Value::as_str) {
        // Without bounds any number of digits would do, and readers of JSON do not take them all.
        Some("integer") if is_plain(schema) => lark::regex(INTEGER),
        Some("number") if is_plain(schema) => lark::regex(NUMBER),
        _ => rules.json(document.alone(schema, rules.max_bytes())?),
    })
}

/// Fields in their order, each a rule and whether it is required: those that are not with or without, a comma between any two. `rule`
/// adds a rule and gives its name.
pub(super) fn sequence(fields: &[(String, bool)], comma: &str, mut rule: impl FnMut(&str) -> String) -> String {
    // From the last to the first: what may follow a field, and what may follow where none has come yet.
    let (mut after_one, mut after_none) = (r#""""#.to_owned(), r#""""#.to_owned());
    for (field, is_required) in fields.iter().rev() {
        let first = format!("{field} {after_one}");
        after_none = rule(&if *is_required { first } else { format!("({first} | {after_none})") });
        let next = format!("{comma} {field}");
        after_one = rule(&if *is_required { format!("{next} {after_one}") } else { format!("({next})? {after_one}") });
    }
    after_none
}

/// What pattern and length say of a text: expressions that must all match.
pub(super) fn text_bounds(schema: &Value) -> Result<Vec<String>, String> {
    let mut parts = Vec::new();
    let is_text = schema.get("type").and_then(Value::as_str) == Some("string");
    if let (true, Some(pattern)) = (is_text, schema.get("pattern").and_then(Value::as_str)) {
        parts.push(lark::regex(&lark::whole(pattern)));
    }
    let length = |key| schema.get(key).and_then(Value::as_u64).filter(|_| is_text);
    match (length("minLength").unwrap_or(0), length("maxLength")) {
        (0, None) => {}
        (least, None) => parts.push(lark::regex(&format!("(?s:.){{{least},}}"))),
        (least, Some(most)) if least <= most => parts.push(lark::regex(&format!("(?s:.){{{least},{most}}}"))),
        (least, Some(most)) => return Err(format!("minLength {least} is more than maxLength {most}")),
    }
    Ok(parts)
}

/// True when nothing but the type, and words about it, is said.
fn is_plain(schema: &Value) -> bool {
    const WORDS: [&str; 6] = ["type", "title", "description", "default", "examples", "$comment"];
    schema.as_object().is_some_and(|map| map.keys().all(|key| WORDS.contains(&key.as_str())))
}

/// An integer that every reader of JSON can take.
const INTEGER: &str = "-?(0|[1-9][0-9]{0,14})";
/// A number that every reader of JSON can take.
pub(super) const NUMBER: &str = r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?";
