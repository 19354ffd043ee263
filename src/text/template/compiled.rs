//! A compiled template: variables and messages in, text out.
//! Says in words of its own what the template engine reports.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};
use serde_json::json;

use super::budget::{MAX_TEXT, TooMuchText};
use super::env::{MAX_STEPS, Raised, environment};
use super::guard::guarded;
use super::messages::{Arguments, Contents, Forms, prepared, value_of};
use super::{Chat, TemplateError};

/// A chat template, compiled once and shared by threads.
pub struct ChatTemplate {
    env: Environment<'static>,
    special_tokens: Vec<(String, String)>,
    /// How the template and the one for tools read arguments and contents, once it is known.
    arguments: [OnceLock<Arguments>; 2],
    contents: [OnceLock<Contents>; 2],
    results: [OnceLock<Contents>; 2],
}

/// The variables of a template, by name.
pub(super) type Context<'c> = BTreeMap<&'c str, Value>;

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// `SourceTooLong` over 256 KiB; `Syntax` when it is no template.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let (arguments, contents, results) = Default::default();
        let mut this = Self { env: environment(), special_tokens: Vec::new(), arguments, contents, results };
        this.add(NAME, source)?;
        Ok(this)
    }

    /// Takes `source` for conversations with tools, as files do that have a template of the name `tool_use`.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`].
    pub fn with_tool_use(mut self, source: &str) -> Result<Self, TemplateError> {
        self.add(TOOL_USE, source)?;
        Ok(self)
    }

    /// Sets variables that hold the text of special tokens, by name: `bos_token`, `eos_token`, `pad_token`, .. A variable of a
    /// conversation wins over one of these.
    #[must_use]
    pub fn with_special_tokens(mut self, tokens: impl IntoIterator<Item = (String, String)>) -> Self {
        self.special_tokens = tokens.into_iter().collect();
        self
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<(), TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::SourceTooLong { bytes: source.len(), max: MAX_SOURCE });
        }
        let guarded = guarded(source).map_err(|e| syntax(&e))?;
        self.env.add_template_owned(name, guarded).map_err(|e| syntax(&e))
    }

    /// What all renderings of a conversation have in common, whichever messages they show.
    pub(super) fn context<'c>(&'c self, chat: &'c Chat) -> Context<'c> {
        // Templates may ask whether there are any, and find none.
        let mut context = Context::from([("documents", Value::from(()))]);
        context.extend(self.special_tokens.iter().map(|(name, text)| (name.as_str(), Value::from(text.as_str()))));
        context.extend(chat.kwargs.iter().map(|(key, value)| (key.as_str(), value_of(value))));
        let tools = match chat.tools.is_empty() {
            true => Value::from(()),
            false => chat.tools.iter().map(value_of).collect(),
        };
        context.insert("tools", tools);
        if let Some(on) = chat.enable_thinking {
            context.insert("enable_thinking", Value::from(on));
        }
        context
    }

    /// How the template reads the arguments of tool calls: it is shown a call both ways.
    pub(super) fn arguments(&self, context: &Context<'_>) -> Arguments {
        let shown =
            |arguments| self.shown(context, &call_and_result(json!("0")), Forms { arguments, ..Forms::default() });
        *self.arguments[usize::from(has_tools(context))].get_or_init(|| match shown(Arguments::Objects) {
            // Python prints an object so; no model reads calls in this form.
            Some(text) if text.contains("{'k': 'v'}") => Arguments::Text,
            None if shown(Arguments::Text).is_some() => Arguments::Text,
            _ => Arguments::Objects,
        })
    }

    /// How the template reads contents that are lists of parts: it is shown some.
    pub(super) fn contents(&self, context: &Context<'_>) -> Contents {
        let form = |with_system: bool| {
            let messages = &turns_of_parts()[usize::from(!with_system)..];
            let shown = |contents| self.shown(context, messages, Forms { contents, ..Forms::default() });
            match shown(Contents::AsGiven) {
                Some(text) if text.contains("p0") && !text.contains("'p0'") && !text.contains("'p1'") => {
                    Some(Contents::AsGiven)
                }
                _ => shown(Contents::Joined).filter(|text| text.contains("p0")).map(|_| Contents::Joined),
            }
        };
        *self.contents[usize::from(has_tools(context))]
            .get_or_init(|| form(true).or_else(|| form(false)).unwrap_or(Contents::AsGiven))
    }

    /// How the template reads results of tools that are lists of parts: some print them as JSON.
    pub(super) fn results(&self, context: &Context<'_>) -> Contents {
        let forms = Forms { arguments: self.arguments(context), ..Forms::default() };
        let messages = call_and_result(json!([{"type": "text", "text": "p0"}]));
        *self.results[usize::from(has_tools(context))].get_or_init(|| match self.shown(context, &messages, forms) {
            Some(text) if text.contains("'p0'") => Contents::Joined,
            Some(_) => Contents::AsGiven,
            None => Contents::Joined,
        })
    }

    /// A conversation that shows how a template reads it, rendered.
    fn shown(&self, context: &Context<'_>, messages: &[serde_json::Value], forms: Forms) -> Option<String> {
        self.render_values(context, &prepared(messages, forms).ok()?, false).ok()
    }

    /// Renders these messages.
    pub(super) fn render_values(
        &self,
        context: &Context<'_>,
        messages: &[Value],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let mut context = context.clone();
        context.insert("messages", Value::from(messages.to_vec()));
        context.insert("add_generation_prompt", Value::from(add_generation_prompt));
        let named = has_tools(&context).then(|| self.env.get_template(TOOL_USE).ok()).flatten();
        let template = named.unwrap_or_else(|| self.env.get_template(NAME).expect("`new` compiled it under this name"));
        template.render(Value::from_pairs(context)).map_err(|e| failure(&e))
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

fn has_tools(context: &Context<'_>) -> bool {
    context.get("tools").is_some_and(|tools| !tools.is_none())
}

/// A conversation that templates with calls render.
fn call_and_result(result: serde_json::Value) -> [serde_json::Value; 3] {
    let call = json!({"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"k": "v"}}});
    [
        json!({"role": "user", "content": "0"}),
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "call00000", "name": "f", "content": result}),
    ]
}

/// A conversation with parts of text, a system message first.
fn turns_of_parts() -> [serde_json::Value; 4] {
    let parts = |role: &str, text: &str| json!({"role": role, "content": [{"type": "text", "text": text}]});
    [parts("system", "p1"), parts("user", "p0"), parts("assistant", "p1"), parts("user", "p1")]
}

fn syntax(error: &minijinja::Error) -> TemplateError {
    TemplateError::Syntax { line: error.line().unwrap_or(0), detail: detail(error) }
}

fn failure(error: &minijinja::Error) -> TemplateError {
    let mut line = error.line().unwrap_or(0);
    let mut kind = error.kind();
    let mut words = detail(error);
    let mut source = std::error::Error::source(error);
    // The innermost error knows best; the outer ones only say through what it came.
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return TemplateError::Raised { line, message: message.clone() };
        }
        if inner.is::<TooMuchText>() {
            return TemplateError::TooMuchText { line, max: MAX_TEXT };
        }
        if let Some(inner) = inner.downcast_ref::<minijinja::Error>() {
            line = inner.line().unwrap_or(line);
            kind = inner.kind();
            words = detail(inner);
        }
        source = inner.source();
    }
    match kind {
        ErrorKind::OutOfFuel => TemplateError::TooManySteps { line, max: MAX_STEPS },
        _ => TemplateError::Render { line, detail: words },
    }
}

fn detail(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

const NAME: &str = "chat";
const TOOL_USE: &str = "tool_use";
const MAX_SOURCE: usize = 256 * 1024;
