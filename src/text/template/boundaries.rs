//! Message boundaries: the places where a prompt can be cut so that the next turn repeats what lies before.
//! Finds them by rendering parts of the conversation and likely next turns; never looks for marks of a known template.

use minijinja::value::Value;
use serde_json::json;

use super::compiled::Context;
use super::messages::{Arguments, Contents, Forms, has_calls, has_parts, prepared, value_of};
use super::{Chat, ChatTemplate, Prompt, TemplateError};

/// A conversation with its prompt.
pub(super) struct Rendered<'a> {
    template: &'a ChatTemplate,
    chat: &'a Chat,
    context: Context<'a>,
    messages: Vec<Value>,
    /// Says before each rendering whether the result is wanted still.
    wanted: &'a (dyn Fn() -> bool + Sync),
    text: String,
}

impl<'a> Rendered<'a> {
    pub(super) fn new(
        template: &'a ChatTemplate,
        chat: &'a Chat,
        wanted: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Self, TemplateError> {
        let context = template.context(chat);
        let given = &chat.messages;
        let mut forms = Forms::default();
        if given.iter().any(has_calls) {
            forms.arguments = template.arguments(&context);
        }
        if given.iter().any(has_parts) {
            (forms.contents, forms.results) = (template.contents(&context), template.results(&context));
        }
        let messages = prepared(given, forms)?;
        let mut this = Self { template, chat, context, messages, wanted, text: String::new() };
        // Some templates want a content in every message, or a text.
        let missing = given.iter().any(|message| !message.get("content").is_some_and(serde_json::Value::is_string));
        let mut others = [Contents::Nulls, Contents::Texts].into_iter().filter(|_| missing);
        let mut first = None;
        loop {
            let error = match this.whole() {
                Ok(text) => {
                    this.text = text;
                    return Ok(this);
                }
                Err(error @ (TemplateError::Render { .. } | TemplateError::Raised { .. })) => error,
                Err(error) => return Err(error),
            };
            first.get_or_insert(error);
            let Some(contents) = others.next() else { break };
            let forms = Forms { contents, results: contents, ..forms };
            this.messages = prepared(given, forms)?;
        }
        Err(first.expect("the loop left one"))
    }

    fn whole(&self) -> Result<String, TemplateError> {
        self.still_wanted()?;
        self.template.render_values(&self.context, &self.messages, self.chat.add_generation_prompt)
    }

    pub(super) fn prompt(self) -> Result<Prompt, TemplateError> {
        let lasting = self.repeated_by(&self.user_turn())?;
        let end = self.end_of(self.messages.len())?;
        let mut in_tool_loop = None;
        let (mut boundaries, mut n_lasting, mut looping) = (Vec::new(), 0, None);
        for n in self.counts().into_iter().rev() {
            // A loop of tool calls began after the last question: what lies before it comes next.
            if n_lasting == LASTING || looping.is_some_and(|loop_starts| n > loop_starts) {
                continue;
            }
            let found = match n {
                n if n == self.messages.len() => end,
                n => self.end_of(n)?,
            };
            let found = match found {
                // Templates drop the thinking of a reply once a question follows it.
                None if self.role(n) == Some("user") => self.before_question(n)?,
                None if n == 1 => self.before_question(0)?,
                found => found,
            };
            let Some(at) = found else { continue };
            if at <= lasting {
                n_lasting += 1;
            } else {
                let repeated = match in_tool_loop {
                    Some(repeated) => repeated,
                    None => *in_tool_loop.insert(self.repeated_by(&self.tool_turn())?),
                };
                if at > repeated {
                    continue;
                }
                looping = Some(self.last_question().map_or(0, |user| user + 1));
            }
            boundaries.push(at);
        }
        boundaries.extend(self.opening()?.filter(|&at| at <= lasting));
        boundaries.retain(|&at| at > 0);
        boundaries.sort_unstable();
        boundaries.dedup();
        let n_lasting = boundaries.iter().filter(|&&at| at <= lasting).count();
        Ok(Prompt { text: self.text, boundaries, n_lasting, repeated: lasting, reply_at: end })
    }

    /// The numbers of first messages whose ends are tried, ascending: the last few, and those around the last question, which lies
    /// far back in a long loop of tool calls.
    fn counts(&self) -> Vec<usize> {
        let n = self.messages.len();
        let mut counts: Vec<usize> = (n.saturating_sub(LAST_MESSAGES)..=n).collect();
        counts.extend(self.last_question().into_iter().flat_map(|user| [user, user + 1]));
        let opening = usize::from(self.role(0) == Some("system"));
        counts.retain(|&k| k > opening);
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    fn last_question(&self) -> Option<usize> {
        (0..self.messages.len()).rfind(|&i| self.role(i) == Some("user"))
    }

    /// Where the system message ends, or what the template says of tools in its place: many conversations share it.
    fn opening(&self) -> Result<Option<usize>, TemplateError> {
        let n = match self.role(0) {
            Some("system") => 1,
            _ if !self.chat.tools.is_empty() => 0,
            _ => return Ok(None),
        };
        match self.end_of(n)? {
            Some(end) => Ok(Some(end)),
            None => self.before_question(n),
        }
    }

    /// Where the first `n` messages end in the text, if the text begins with them as they are alone.
    fn end_of(&self, n: usize) -> Result<Option<usize>, TemplateError> {
        let part = self.render(&self.messages[..n])?;
        Ok(part.filter(|part| self.text.starts_with(part)).map(|part| part.len()))
    }

    /// Where the text stops being the same for every user message in place of message `n`: some templates refuse a conversation
    /// without one, and some render a reply in another way before one.
    fn before_question(&self, n: usize) -> Result<Option<usize>, TemplateError> {
        let mut end = None;
        // Two that differ in their first character: at most one of them can begin as the real message does.
        for content in ["0", "a"] {
            let mut messages = self.messages[..n].to_vec();
            messages.push(message(json!({"role": "user", "content": content})));
            let Some(part) = self.render(&messages)? else { return Ok(None) };
            let common = common_prefix(&self.text, &part);
            end = Some(end.map_or(common, |end: usize| end.min(common)));
        }
        Ok(end)
    }

    /// How much of the text the next turn repeats, when it brings these messages.
    fn repeated_by(&self, next: &[Value]) -> Result<usize, TemplateError> {
        let messages = [&self.messages, next].concat();
        Ok(self.render(&messages)?.map_or(0, |next| common_prefix(&self.text, &next)))
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
        let result = message(json!({"role": "tool", "content": "0", "tool_call_id": "call00000"}));
        let arguments = match self.template.arguments(&self.context) {
            Arguments::Objects => json!({}),
            Arguments::Text => json!("{}"),
        };
        let call = json!({"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}});
        match self.ends_with_assistant() {
            true => vec![result],
            false => vec![
                message(json!({"role": "assistant", "content": "", "reasoning_content": "0", "tool_calls": [call]})),
                result,
            ],
        }
    }

    fn ends_with_assistant(&self) -> bool {
        self.messages.len().checked_sub(1).is_some_and(|last| self.role(last) == Some("assistant"))
    }

    fn role(&self, index: usize) -> Option<&str> {
        self.chat.messages.get(index)?.get("role")?.as_str()
    }

    /// Templates may refuse a part of a conversation: then there is no boundary to be found with it.
    fn render(&self, messages: &[Value]) -> Result<Option<String>, TemplateError> {
        self.still_wanted()?;
        Ok(self.template.render_values(&self.context, messages, false).ok())
    }

    fn still_wanted(&self) -> Result<(), TemplateError> {
        if (self.wanted)() { Ok(()) } else { Err(TemplateError::GivenUp) }
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

/// Messages at the end of a conversation whose ends are tried.
const LAST_MESSAGES: usize = 4;
/// Lasting boundaries that are looked for beside the opening: the last, and the one that an edit of the last message leaves.
const LASTING: usize = 2;
