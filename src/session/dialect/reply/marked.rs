//! Arguments as Gemma writes them, made JSON: keys stand bare, and a mark stands around texts, in which nothing is escaped.

use super::value::escaped;

/// `text` as JSON, as far as it is any: what reads JSON decides. Also takes keys and texts in JSON's own quotes.
pub(super) fn to_json(text: &str, mark: &str) -> String {
    let (mut json, mut rest) = (String::new(), text);
    while let Some(c) = rest.chars().next() {
        let n = match c {
            _ if rest.starts_with(mark) => {
                let inner = &rest[mark.len()..];
                let end = inner.find(mark).unwrap_or(inner.len());
                push_text(&mut json, &inner[..end]);
                (mark.len() + end + mark.len()).min(rest.len())
            }
            '"' => {
                let n = quoted(rest);
                json.push_str(&rest[..n]);
                n
            }
            '{' | '}' | '[' | ']' | ',' | ':' => {
                json.push(c);
                1
            }
            _ if c.is_whitespace() => c.len_utf8(),
            _ => {
                let n = rest.find(['{', '}', '[', ']', ',', ':', '"', '<']).unwrap_or(rest.len()).max(c.len_utf8());
                let word = rest[..n].trim();
                let is_value = !rest[n..].starts_with(':') && serde_json::from_str::<serde_json::Value>(word).is_ok();
                if is_value {
                    json.push_str(word)
                } else {
                    push_text(&mut json, word)
                }
                n
            }
        };
        rest = &rest[n..];
    }
    json
}

fn push_text(json: &mut String, text: &str) {
    json.push('"');
    json.push_str(&escaped(text));
    json.push('"');
}

/// The length of a text in quotes at the beginning.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}
