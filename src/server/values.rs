//! Values of options that are more than a number: how they are read, and what is wrong with those that could never do.

use serde_json::{Map, Value};

/// A template, or the name of one.
pub(super) fn chat_template(typed: &str) -> Result<String, String> {
    if let Some(source) = session::named_template(typed) {
        return Ok(source);
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if typed.trim().is_empty() || !typed.chars().all(is_name) {
        return Ok(typed.to_owned());
    }
    let names: Vec<&str> = session::template_names().collect();
    Err(format!(
        "no template is called so; known are {}. Give another one itself, or its file with --chat-template-file",
        names.join(", ")
    ))
}

/// A time, up to a day.
pub(super) fn seconds(typed: &str) -> Result<f64, String> {
    let seconds = typed.parse::<f64>().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "a number of seconds from 0 to 86400 expected".to_owned())
}

pub(super) fn json_object(typed: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(typed)
        .map_err(|error| format!("a JSON object such as {{\"enable_thinking\": false}} expected: {error}"))
}

/// As browsers send it: a scheme, a host, a port unless it is the scheme's own. What could never match is a mistake.
pub(super) fn origin(typed: &str) -> Result<String, String> {
    let host = typed.split_once("://").map_or("", |(_, host)| host);
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '?' | '#' | '@') && !c.is_ascii_uppercase();
    let sound = matches!(typed, "*" | "null" | "localhost") || (!host.is_empty() && host.chars().all(plain));
    if sound {
        Ok(typed.to_owned())
    } else {
        Err("an origin is like https://example.org, without a path, or `localhost`, or `*`".into())
    }
}

/// The name in a URL, without what stands around it: what could never match is a mistake.
pub(super) fn host_name(typed: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if typed == "*" || (!typed.is_empty() && typed.chars().all(plain)) {
        Ok(typed.to_owned())
    } else {
        Err("a host is a name like server.example.org, without scheme, port and path, or `*`".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_its_name_or_its_text() {
        assert!(chat_template("command-r").unwrap().contains("CHATBOT_TOKEN"));
        assert_eq!(chat_template("{{ messages }}").unwrap(), "{{ messages }}");
        let wrong = chat_template("llama9").unwrap_err();
        assert!(wrong.contains("llama3, llama4") && wrong.contains("--chat-template-file"), "{wrong}");
    }

    #[test]
    fn origins_that_no_browser_sends_are_refused() {
        for right in ["*", "localhost", "https://example.org", "http://localhost:3000", "http://[::1]:80", "null"] {
            assert_eq!(origin(right), Ok(right.to_owned()));
        }
        for wrong in ["", "example.org", "https://", "https://example.org/", "https://Example.org", "two words"] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hosts_are_names_and_nothing_else() {
        for right in ["*", "server.example.org", "my_server", "10.0.0.1"] {
            assert_eq!(host_name(right), Ok(right.to_owned()));
        }
        for wrong in ["", "http://server", "server:8080", "server/", "two words", "[::1]"] {
            assert!(host_name(wrong).is_err(), "{wrong}");
        }
    }
}
