//! Texts of blocks that are not plain text, and what is taken from texts that clients sign.

use serde_json::Value;

use crate::form::left_out;

/// The text of a block: that of documents and search results where they hold some, else a note in its place, since a block stays
/// in the history and every later turn would fail with it. `None` for what has no type.
pub(super) fn text_of(block: &Value) -> Option<String> {
    let field = |name: &str| block.get(name).and_then(Value::as_str);
    let kind = field("type")?;
    let found = match kind {
        "text" => field("text").map(str::to_owned),
        "document" => document(block),
        "search_result" => {
            let source = [field("title"), field("source")].into_iter().flatten().collect::<Vec<_>>().join(", ");
            texts(block.get("content")).map(|text| format!("{source}\n{text}"))
        }
        _ => None,
    };
    Some(found.unwrap_or_else(|| left_out(kind)))
}

/// A document of plain text, or of blocks with text.
fn document(block: &Value) -> Option<String> {
    let source = block.get("source")?;
    let text = match source.get("type").and_then(Value::as_str)? {
        "text" => source.get("data").and_then(Value::as_str)?.to_owned(),
        "content" => texts(source.get("content"))?,
        _ => return None,
    };
    let title = block.get("title").and_then(Value::as_str);
    Some(title.map(|title| format!("{title}\n")).unwrap_or_default() + &text)
}

/// A text, or blocks that are nothing but text.
fn texts(content: Option<&Value>) -> Option<String> {
    match content? {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => {
            let texts = blocks.iter().map(|block| block.get("text").and_then(Value::as_str));
            texts.collect::<Option<Vec<_>>>().map(|texts| texts.join("\n"))
        }
        _ => None,
    }
}

/// A system text without the header that Claude Code puts before it: it says nothing to a model and differs in every request, so
/// that no cached prefix would match.
pub(super) fn without_header(text: &str) -> &str {
    let Some(mut rest) = text.strip_prefix("x-anthropic-billing-header:") else { return text };
    loop {
        let trimmed = rest.trim_start();
        let name = trimmed.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
        match trimmed[name..].strip_prefix('=').and_then(|value| value.split_once(';')) {
            Some((value, after)) if name > 0 && !value.contains(['\n', ' ']) => rest = after,
            _ => return trimmed,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_billing_header_is_taken_off_and_the_rest_stays() {
        let header = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;";
        assert_eq!(without_header(header), "");
        assert_eq!(without_header(&format!("{header}You are a = b; c.")), "You are a = b; c.");
        assert_eq!(without_header(&format!("{header}\n\nx")), "x");
        for other in ["", "You are brief.", "see x-anthropic-billing-header: a=b;"] {
            assert_eq!(without_header(other), other);
        }
    }

    #[test]
    fn blocks_are_their_text_or_a_note() {
        for (block, text) in [
            (json!({"type": "text", "text": "a"}), Some("a")),
            (json!({"type": "image", "source": {"type": "base64", "data": "x"}}), Some("[image left out]")),
            (json!({"type": "document", "title": "T", "source": {"type": "text", "data": "b"}}), Some("T\nb")),
            (json!({"type": "document", "source": {"type": "base64", "data": "x"}}), Some("[document left out]")),
            (
                json!({"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "c"}]}),
                Some("T, s\nc"),
            ),
            (json!({"type": "tool_reference", "tool_name": "f"}), Some("[tool_reference left out]")),
            (json!({"text": "a"}), None),
        ] {
            assert_eq!(text_of(&block).as_deref(), text, "{block}");
        }
    }
}
