//! The messages of a conversation before a template sees them: what they may hold, and the pictures among them.
//! Owns the parts of contents. Knows no template.

use serde_json::{Value, json};

/// What is wrong with messages, in words for who sent them.
///
/// # Errors
/// There is no message, one whose content is neither text nor parts that are known, or `n_seen` is not the numbers of parts of
/// type `image` and `video`.
pub(crate) fn check(messages: &[Value], n_seen: [usize; 2], sees: bool) -> Result<(), String> {
    if messages.is_empty() {
        return Err("messages: at least one message is expected".to_owned());
    }
    let mut n_found = [0; 2];
    for (i, message) in messages.iter().enumerate() {
        if message.get("content").is_some_and(|c| !(c.is_null() || c.is_string() || c.is_array())) {
            return Err(format!("messages[{i}].content: a text, null or a list of parts expected"));
        }
        for part in parts(message) {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
            match kind {
                "text" if part.get("text").is_some_and(Value::is_string) => {}
                "image" if sees => n_found[0] += 1,
                "video" if sees => n_found[1] += 1,
                "image" | "video" => return Err(format!("messages[{i}].content: {BLIND}")),
                kind => {
                    let shown: String = kind.chars().take(80).collect();
                    let known = if sees { "`text`, `image` and `video`" } else { "`text`" };
                    return Err(format!("messages[{i}].content: parts of type {known} expected, `{shown}` found"));
                }
            }
        }
    }
    for ((found, given), kind) in n_found.into_iter().zip(n_seen).zip(["image", "video"]) {
        if found != given {
            return Err(format!("messages: {found} parts of type `{kind}`, and {given} {kind}s beside them"));
        }
    }
    Ok(())
}

/// Why an image is refused where no projector is.
pub const BLIND: &str = "the model reads text only: for images it needs its projector, a file mmproj*.gguf (--mmproj)";

/// The same with each picture and each video as a text.
pub(crate) fn with_pictures_as(mut messages: Vec<Value>, picture: &str, video: &str) -> Vec<Value> {
    for message in &mut messages {
        for part in message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
            let shown = match kind(part) {
                Some("image") => picture,
                Some("video") => video,
                _ => continue,
            };
            *part = json!({ "type": "text", "text": shown });
        }
    }
    messages
}

/// Whether a text among the messages' contents has `word`.
pub(crate) fn have_word(messages: &[Value], word: &str) -> bool {
    let has = |text: Option<&Value>| text.and_then(Value::as_str).is_some_and(|text| text.contains(word));
    messages.iter().any(|message| has(message.get("content")) || parts(message).any(|part| has(part.get("text"))))
}

/// Two contents as one, a blank line between them.
pub(crate) fn joined(first: Option<&Value>, second: Option<&Value>) -> Value {
    let has_picture =
        |content: Option<&Value>| content.and_then(Value::as_array).is_some_and(|parts| parts.iter().any(is_seen));
    if !has_picture(first) && !has_picture(second) {
        return [text_of(first), text_of(second)].join("\n\n").into();
    }
    let part = |text: &str| json!({ "type": "text", "text": text });
    let parts = |content: Option<&Value>| match content {
        Some(Value::Array(parts)) => parts.clone(),
        content => vec![part(&text_of(content))],
    };
    [parts(first), vec![part("\n\n")], parts(second)].concat().into()
}

/// The text of a message's content, its parts joined.
pub fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => String::new(),
    }
}

fn parts(message: &Value) -> impl Iterator<Item = &Value> {
    message.get("content").and_then(Value::as_array).into_iter().flatten()
}

fn is_seen(part: &Value) -> bool {
    matches!(kind(part), Some("image" | "video"))
}

fn kind(part: &Value) -> Option<&str> {
    part.get("type").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Value {
        json!({ "type": "image" })
    }

    fn text(text: &str) -> Value {
        json!({ "type": "text", "text": text })
    }

    #[test]
    fn images_are_counted_and_refused_without_a_projector() {
        let messages = [json!({ "role": "user", "content": [text("a"), image(), image()] })];
        assert_eq!(check(&messages, [2, 0], true), Ok(()));
        assert!(check(&messages, [1, 0], true).unwrap_err().contains("2 parts of type `image`, and 1 image"));
        assert!(check(&messages, [2, 1], true).unwrap_err().contains("0 parts of type `video`, and 1 video"));
        assert!(check(&messages, [2, 0], false).unwrap_err().contains("--mmproj"));
        let film = [json!({ "role": "user", "content": [{ "type": "video" }] })];
        assert_eq!(check(&film, [0, 1], true), Ok(()));
        assert!(check(&film, [0, 1], false).unwrap_err().contains("--mmproj"));
        let sound = json!({ "role": "user", "content": [{ "type": "input_audio" }] });
        assert!(check(&[sound], [0, 0], true).unwrap_err().contains("`input_audio` found"));
    }

    #[test]
    fn contents_are_joined_with_their_images() {
        let words = json!("a");
        let seen = json!([image(), text("b")]);
        assert_eq!(joined(Some(&words), Some(&words)), json!("a\n\na"));
        assert_eq!(joined(Some(&seen), Some(&words)), json!([image(), text("b"), text("\n\n"), text("a")]));
        let film = json!({ "type": "video" });
        assert_eq!(joined(Some(&json!([film])), Some(&words)), json!([film, text("\n\n"), text("a")]));
        let content = json!([image(), film, text("b")]);
        let messages = with_pictures_as(vec![json!({ "role": "user", "content": content })], "<p>", "<v>");
        assert_eq!(messages[0]["content"], json!([text("<p>"), text("<v>"), text("b")]));
    }
}
