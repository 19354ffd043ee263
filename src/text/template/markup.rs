//! Texts that are marked as safe, Python's `Markup`: what is added to one is escaped. Templates run without automatic escaping, so this
//! shows only where they use the filters `safe` and `escape`.

use minijinja::value::Value;
use minijinja::{Error, State};

use super::budget::{left, text_of, too_much_text};

/// The text of `value`, escaped unless it is safe itself.
pub(super) fn escaped(state: &mut State<'_, '_>, value: &Value) -> Result<String, Error> {
    let text = text_of(state, value)?;
    if value.is_safe() {
        return Ok(text);
    }
    let n_marks = text.bytes().filter(|b| matches!(b, b'&' | b'<' | b'>' | b'"' | b'\'')).count();
    if text.len() + n_marks * 5 > left(state) {
        return Err(too_much_text());
    }
    let mut escaped = String::with_capacity(text.len() + n_marks * 5);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    Ok(escaped)
}

/// `text` made from `of`: safe if that is.
pub(super) fn like(of: &Value, text: String) -> Value {
    if of.is_safe() { Value::from_safe_string(text) } else { Value::from(text) }
}

/// `value` made from `of`, if it is a text.
pub(super) fn same(of: &Value, value: Value) -> Value {
    match value.as_str() {
        Some(text) if of.is_safe() && !value.is_safe() => Value::from_safe_string(text.to_owned()),
        _ => value,
    }
}
