//! How an argument's value stands between its tags: a text as it is, anything else as JSON.
//! Follows the rules by which `text::reply` reads it back: a type that can be a text is one.

use serde_json::Value;

use crate::document::{Document, constants};
use crate::lark;
use crate::rules::Rules;

/// The grammar of a value by `schema`, a part of `document`, with the closing tag. A terminal that it needs is called `name`
/// and added to `rules`.
pub(super) fn value<'v>(
    schema: &'v Value,
    document: &mut Document<'v>,
    name: &str,
    rules: &mut Rules,
) -> Result<String, String> {
    let resolved = document.resolve(schema);
    if let Some(constants) = constants(resolved) {
        let texts: Vec<String> = constants.iter().map(literal).collect::<Result<_, _>>()?;
        return Ok(format!("({})", texts.join(" | ")));
    }
    if document.may_be_text(schema) {
        rules.push(format!("{name}: ({}) {}", text(resolved)?, lark::text(CLOSING)));
        return Ok(name.to_owned());
    }
    let json = match resolved.get("type").and_then(Value::as_str) {
        // Without bounds any number of digits would do, and readers of JSON do not take them all.
        Some("integer") if is_plain(resolved) => lark::regex("-?(0|[1-9][0-9]{0,14})"),
        Some("number") if is_plain(resolved) => {
            lark::regex(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?")
        }
        _ => rules.json(document.alone(resolved, rules.max_bytes())?),
    };
    Ok(format!("{json} {}", lark::text(CLOSING)))
}

/// One value, written out, with the closing tag.
fn literal(value: &Value) -> Result<String, String> {
    let written = match value {
        Value::String(text) => {
            if ENDS.iter().any(|end| format!("\n{text}").contains(end)) {
                return Err(format!("the text {text:?} would end its own tags"));
            }
            text.clone()
        }
        other => other.to_string(),
    };
    Ok(lark::text(&(written + CLOSING)))
}

/// Any text that does not look like the end of a value, as far as pattern and length allow: expressions that must all match.
fn text(schema: &Value) -> Result<String, String> {
    let ends = format!(r"(?s:.*)({})(?s:.*)", ENDS.join("|").replace('\n', r"\n"));
    // The line break before a tag may be the one after the opening tag.
    let mut parts = vec![
        lark::regex("(?s:.*)"),
        format!("~{}", lark::regex(&ends)),
        format!("~{}", lark::regex("<parameter=(?s:.*)")),
    ];
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
    Ok(parts.join(" & "))
}

/// True when nothing but the type, and words about it, is said.
fn is_plain(schema: &Value) -> bool {
    const WORDS: [&str; 6] = ["type", "title", "description", "default", "examples", "$comment"];
    schema.as_object().is_some_and(|map| map.keys().all(|key| WORDS.contains(&key.as_str())))
}

/// What ends every value.
const CLOSING: &str = "\n</parameter>\n";
/// What a text cannot hold: its reader could take it for the end.
const ENDS: &[&str] = &["</parameter", "</function", "\n<parameter="];
