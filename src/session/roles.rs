//! Roles as a template takes them: agents send system and developer messages anywhere in a conversation, and many templates
//! refuse them behind the first message. They stay where they stand, in another message's form, so that the prompt of the next turn
//! begins as this one's does.

use serde_json::{Value, json};
use text::template::{Chat, ChatTemplate};

use crate::messages::{joined, text_of};

/// The messages with every role in a place that the template takes: developer messages are system messages where it does not know
/// developers, several system messages at the beginning are one, and later ones that the template would refuse or leave out are the user's, marked, or the end of the
/// tool's result before them.
pub(crate) fn placed(mut messages: Vec<Value>, template: Option<&ChatTemplate>, knows_developers: bool) -> Vec<Value> {
    for message in &mut messages {
        if !knows_developers && role(message) == "developer" {
            message["role"] = json!("system");
        }
    }
    let n_first = messages.iter().take_while(|message| role(message) == "system").count();
    if n_first > 1 {
        let texts: Vec<String> = messages.drain(..n_first).map(|message| text_of(message.get("content"))).collect();
        messages.insert(0, json!({ "role": "system", "content": texts.join("\n\n") }));
    }
    let later = |messages: &[Value]| messages.iter().skip(1).any(|message| role(message) == "system");
    match template {
        Some(template) if later(&messages) && !takes(template, &["user", "assistant", "system", "user"]) => {
            as_the_users(messages, takes(template, &["user", "user"]))
        }
        _ => messages,
    }
}

/// Later system messages in the form of others; `twice`: two messages of the user may follow each other.
fn as_the_users(messages: Vec<Value>, twice: bool) -> Vec<Value> {
    let mut placed: Vec<Value> = Vec::with_capacity(messages.len());
    for (i, message) in messages.into_iter().enumerate() {
        let late = i > 0 && role(&message) == "system";
        let message = match late {
            true => json!({ "role": "user", "content": marked(&message) }),
            false => message,
        };
        match placed.last_mut() {
            // As a message of the user it would end the loop of tool calls, whose thinking templates then drop.
            Some(last) if late && role(last) == "tool" => join(last, &message),
            Some(last) if !twice && role(last) == "user" && role(&message) == "user" => join(last, &message),
            _ => placed.push(message),
        }
    }
    placed
}

fn marked(message: &Value) -> String {
    format!("<system>\n{}\n</system>", text_of(message.get("content")))
}

fn join(to: &mut Value, more: &Value) {
    to["content"] = joined(to.get("content"), more.get("content"));
}

/// Whether the template renders messages of these roles, with the text of each.
fn takes(template: &ChatTemplate, roles: &[&str]) -> bool {
    let text = |i: usize| format!("text of message {i}");
    let message = |(i, role): (usize, &&str)| json!({ "role": role, "content": text(i) });
    let chat = Chat { messages: roles.iter().enumerate().map(message).collect(), ..Chat::default() };
    template.render(&chat).is_ok_and(|prompt| (0..roles.len()).all(|i| prompt.text.contains(&text(i))))
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENIENT: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    const FIRST_ONLY: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                              {{ raise_exception('too late') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first or not loop.first and \
                          loop.previtem.role == m.role %}{{ raise_exception('no') }}{% endif %}\
                          [{{ m.role }}]{{ m.content }}{% endfor %}";

    fn placed_by(template: &str, messages: &[(&str, &str)]) -> Vec<(String, String)> {
        let messages = messages.iter().map(|(role, text)| json!({ "role": role, "content": text })).collect();
        let template = ChatTemplate::new(template).unwrap();
        let both = |m: &Value| (role(m).to_owned(), text_of(m.get("content")));
        placed(messages, Some(&template), false).iter().map(both).collect()
    }

    fn shown(placed: &[(String, String)]) -> Vec<(&str, &str)> {
        placed.iter().map(|(role, text)| (role.as_str(), text.as_str())).collect()
    }

    const TALK: &[(&str, &str)] =
        &[("developer", "a"), ("system", "b"), ("user", "c"), ("developer", "d"), ("assistant", "e"), ("user", "f")];

    #[test]
    fn a_template_that_takes_system_messages_anywhere_gets_them() {
        let placed = placed_by(LENIENT, TALK);
        let expected = [("system", "a\n\nb"), ("user", "c"), ("system", "d"), ("assistant", "e"), ("user", "f")];
        assert_eq!(shown(&placed), expected);
    }

    #[test]
    fn later_system_messages_are_the_users_where_the_template_refuses_them() {
        let placed = placed_by(FIRST_ONLY, TALK);
        let late = "<system>\nd\n</system>";
        assert_eq!(shown(&placed)[1..3], [("user", "c"), ("user", late)]);
        let joined = format!("c\n\n{late}");
        assert_eq!(shown(&placed_by(STRICT, TALK))[1..3], [("user", joined.as_str()), ("assistant", "e")]);
    }

    #[test]
    fn a_system_message_after_a_tools_result_stays_with_it() {
        let talk = [("user", "a"), ("assistant", ""), ("tool", "b"), ("system", "c")];
        let placed = placed_by(FIRST_ONLY, &talk);
        assert_eq!(shown(&placed)[2..], [("tool", "b\n\n<system>\nc\n</system>")]);
    }
}
