//! A compiled template: variables and messages in, text out.
//! Says in words of its own what the template engine reports.

use std::collections::BTreeMap;

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};

use super::budget::{MAX_TEXT, TooMuchText};
use super::env::{MAX_STEPS, Raised, environment};
use super::guard::guarded;
use super::messages::value_of;
use super::{Chat, TemplateError};

/// A chat template, compiled once and shared by threads.
pub struct ChatTemplate {
    env: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

/// The variables of a template, by name.
pub(super) type Context<'c> = BTreeMap<&'c str, Value>;

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// `SourceTooLong` over 256 KiB; `Syntax` when it is no template.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::SourceTooLong { bytes: source.len(), max: MAX_SOURCE });
        }
        let guarded = guarded(source).map_err(|e| syntax(&e))?;
        let mut env = environment();
        env.add_template_owned(NAME, guarded).map_err(|e| syntax(&e))?;
        Ok(Self { env, bos_token: None, eos_token: None })
    }

    /// Sets the template's variables `bos_token` and `eos_token`; None leaves one undefined.
    #[must_use]
    pub fn with_special_tokens(mut self, bos: Option<String>, eos: Option<String>) -> Self {
        self.bos_token = bos;
        self.eos_token = eos;
        self
    }

    /// What all renderings of a conversation have in common, whichever messages they show.
    pub(super) fn context<'c>(&self, chat: &'c Chat) -> Context<'c> {
        let mut context: Context<'c> = chat.kwargs.iter().map(|(key, value)| (key.as_str(), value_of(value))).collect();
        for (key, token) in [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)] {
            if let Some(token) = token {
                context.insert(key, Value::from(token.as_str()));
            }
        }
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
        let template = self.env.get_template(NAME).expect("`new` compiled it under this name");
        template.render(Value::from_pairs(context)).map_err(|e| failure(&e))
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
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
const MAX_SOURCE: usize = 256 * 1024;
