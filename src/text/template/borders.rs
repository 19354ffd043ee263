//! Message borders: the places where a prompt can be cut so that the next turn repeats what lies before.
//! Finds them by rendering parts of the conversation and likely next turns; never looks for marks of a known template.

use minijinja::value::Value;
use serde_json::json;

use super::messages::value_of;
use super::{Chat, ChatTemplate, Prompt, TemplateError};

/// A conversation with its prompt.
pub(super) struct Rendered<'a> {
    template: &'a ChatTemplate,
    chat: &'a Chat,
    messages: Vec<Value>,
    text: String,
}

impl<'a> Rendered<'a> {
    pub(super) fn new(template: &'a ChatTemplate, chat: &'a Chat, messages: Vec<Value>) -> Result<Self, TemplateError> {
        let text = template.render_values(chat, &messages, chat.add_generation_prompt)?;
        Ok(Self { template, chat, messages, text })
    }

    pub(super) fn prompt(self) -> Prompt {
        let mut borders = Vec::new();
        for n in self.counts() {
            match self.end_of(n) {
                Some(end) => borders.push(end),
                None if n == 1 => borders.extend(self.end_of_opening()),
                None => {}
            }
        }
        if self.role(0) != Some("system") && !self.chat.tools.is_empty() {
            borders.extend(self.end_of(0).or_else(|| self.end_of_opening()));
        }
        borders.retain(|&at| at > 0);
        borders.sort_unstable();
        borders.dedup();

        let lasting = self.repeated_by(&self.user_turn());
        let in_tool_loop = self.repeated_by(&self.tool_turn());
        borders.retain(|&at| at <= lasting.max(in_tool_loop));
        let n_lasting = borders.iter().filter(|&&at| at <= lasting).count();
        let starts_in_reasoning = self.starts_in_reasoning();
        Prompt { text: self.text, borders, n_lasting, repeated: lasting, starts_in_reasoning }
    }

    /// The numbers of first messages whose ends are tried: the opening, the last few, and those around the last user message, which
    /// lies far back in a long loop of tool calls.
    fn counts(&self) -> Vec<usize> {
        let n = self.messages.len();
        let mut counts: Vec<usize> = (n.saturating_sub(LAST_MESSAGES)..=n).collect();
        if let Some(user) = (0..n).rfind(|&i| self.role(i) == Some("user")) {
            counts.extend([user, user + 1]);
        }
        if self.role(0) == Some("system") {
            counts.push(1);
        }
        counts.retain(|&k| k > 0);
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// Where the first `n` messages end in the text, if the text begins with them as they are alone.
    fn end_of(&self, n: usize) -> Option<usize> {
        let part = self.render(&self.messages[..n])?;
        self.text.starts_with(&part).then_some(part.len())
    }

    /// Where the text stops being the same for every first user message: some templates refuse a conversation without one.
    fn end_of_opening(&self) -> Option<usize> {
        let system = usize::from(self.role(0) == Some("system"));
        // Two that differ in their first character: at most one of them can begin as the real message does.
        ["0", "a"]
            .into_iter()
            .map(|content| {
                let mut messages = self.messages[..system].to_vec();
                messages.push(message(json!({"role": "user", "content": content})));
                Some(common_prefix(&self.text, &self.render(&messages)?))
            })
            .min()
            .flatten()
    }

    /// How much of the text the next turn repeats, when it brings these messages.
    fn repeated_by(&self, next: &[Value]) -> usize {
        let messages = [&self.messages, next].concat();
        self.render(&messages).map_or(0, |next| common_prefix(&self.text, &next))
    }

    /// An answer, and a new question.
    fn user_turn(&self) -> Vec<Value> {
        let question = message(json!({"role": "user", "content": "0"}));
        match self.ends_with_assistant() {
            true => vec![question],
            false => vec![message(json!({"role": "assistant", "content": "0", "reasoning_content": "0"})), question],
        }
    }

    /// A tool call, and its result.
    fn tool_turn(&self) -> Vec<Value> {
        let result = message(json!({"role": "tool", "content": "0", "tool_call_id": "0"}));
        let call = json!({"id": "0", "type": "function", "function": {"name": "f", "arguments": {}}});
        match self.ends_with_assistant() {
            true => vec![result],
            false => vec![
                message(json!({"role": "assistant", "content": "", "reasoning_content": "0", "tool_calls": [call]})),
                result,
            ],
        }
    }

    fn starts_in_reasoning(&self) -> bool {
        // Only the opening of the reply counts: a user may write the tag too.
        match self.end_of(self.messages.len()) {
            Some(end) => self.text[end..].rfind(OPEN) > self.text[end..].rfind(CLOSE),
            None => self.text.trim_end().ends_with(OPEN),
        }
    }

    fn ends_with_assistant(&self) -> bool {
        self.messages.len().checked_sub(1).is_some_and(|last| self.role(last) == Some("assistant"))
    }

    fn role(&self, index: usize) -> Option<&str> {
        self.chat.messages.get(index)?.get("role")?.as_str()
    }

    /// Templates may refuse a part of a conversation: then there is no border to be found with it.
    fn render(&self, messages: &[Value]) -> Option<String> {
        self.template.render_values(self.chat, messages, false).ok()
    }
}

fn message(json: serde_json::Value) -> Value {
    value_of(&json)
}

/// Length of the common beginning, at a character border.
fn common_prefix(a: &str, b: &str) -> usize {
    let mut n = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    while !a.is_char_boundary(n) {
        n -= 1;
    }
    n
}

const LAST_MESSAGES: usize = 4;
const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
