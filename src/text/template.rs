//! Chat templates: a conversation in, the prompt's text and its message boundaries out.
//! Owns the compiled Jinja template. Knows nothing of tokens, and of no template in particular.

mod boundaries;
mod clock;
mod env;
mod guard;
mod json;
mod messages;
mod ops;

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};
use serde_json::Map;

use boundaries::Rendered;
use messages::{Context, prepared};

/// A chat template, compiled once and shared by threads.
pub struct ChatTemplate {
    env: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

/// What is rendered: messages in the shape of OpenAI's chat completions, and the options of the template.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// Objects with `role`, `content` (a string, null or a list of parts), `reasoning_content` (or `reasoning`), and `tool_calls`
    /// whose `function.arguments` are an object or a string of JSON.
    pub messages: Vec<serde_json::Value>,
    /// Tool descriptions, handed to the template as they are; none: the template sees `tools` as none.
    pub tools: Vec<serde_json::Value>,
    /// Ends the prompt with the opening of the assistant's reply.
    pub add_generation_prompt: bool,
    /// None leaves the template's variable undefined.
    pub enable_thinking: Option<bool>,
    /// More variables for the template; the fields above win over entries of the same name.
    pub kwargs: Map<String, serde_json::Value>,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The whole prompt.
    pub text: String,
    /// Byte offsets in `text`, ascending, at character borders, without 0. Up to each of them the next turn's prompt repeats `text`
    /// byte for byte, if the client sends the same messages back: a state saved there can be used again.
    pub boundaries: Vec<usize>,
    /// So many of the first `boundaries` hold whatever comes next. The others hold only while the next turn goes on with tool calls and
    /// results: a new user message makes templates drop the thinking of the turn before it.
    pub n_lasting: usize,
    /// So many bytes of `text` the next turn repeats when it brings an answer without its thinking and a new question: at least the
    /// last lasting boundary, and the part of the reply's opening that does not depend on thinking.
    pub repeated: usize,
    /// Where the messages end in `text` and the opening of the reply begins, if that could be told.
    pub reply_at: Option<usize>,
}

/// Why a template does not compile or does not render.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is longer than `max`.
    #[error("chat template: {bytes} bytes, at most {max} are taken; use another template file")]
    SourceTooLong {
        /// Length of the source.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The source is not a template.
    #[error("chat template, line {line}: {detail}")]
    Syntax {
        /// Line in the template, from 1.
        line: usize,
        /// What is wrong there.
        detail: String,
    },
    /// The template itself refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {message} (template line {line})")]
    Raised {
        /// Line in the template, from 1.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// An operation in the template does not work on this conversation.
    #[error("chat template, line {line}: {detail}; check the messages, or use another template")]
    Render {
        /// Line in the template, from 1; 0 when unknown.
        line: usize,
        /// What went wrong there.
        detail: String,
    },
    /// Nobody wants the result any more.
    #[error("the rendering was given up")]
    GivenUp,
    /// The template took too many steps.
    #[error("chat template: stopped after {max} steps (line {line}); use another template or a shorter conversation")]
    TooManySteps {
        /// Line in the template, from 1.
        line: usize,
        /// The limit.
        max: u64,
    },
    /// The template made more text than is allowed.
    #[error(
        "chat template, line {line}: more than {max} bytes of text were made; use another template or a shorter conversation"
    )]
    TooMuchText {
        /// Line in the template, from 1.
        line: usize,
        /// The limit.
        max: usize,
    },
    /// A message cannot be given to the template.
    #[error("messages[{index}]: {detail}")]
    Message {
        /// Which message, from 0.
        index: usize,
        /// What is wrong with it.
        detail: String,
    },
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// `SourceTooLong` over 256 KiB; `Syntax` when it is no template.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::SourceTooLong { bytes: source.len(), max: MAX_SOURCE });
        }
        let guarded = guard::guarded(source).map_err(|e| syntax(&e))?;
        let mut env = env::environment();
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

    /// Renders `chat` and finds its message boundaries by rendering parts of it again: five renderings for most conversations, a dozen
    /// where the template makes boundaries hard to find.
    ///
    /// This can take long on a long conversation: call it on a thread that may block.
    ///
    /// # Errors
    /// `Raised` when the template refuses the conversation; `Message` when a message is not an object or its tool call arguments are
    /// not JSON; `Render`, `TooManySteps` and `TooMuchText` when the template does not get through.
    pub fn render(&self, chat: &Chat) -> Result<Prompt, TemplateError> {
        self.render_while(chat, &|| true)
    }

    /// As [`ChatTemplate::render`], for as long as `wanted` says so: it is asked before each rendering.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and `GivenUp`.
    pub fn render_while(&self, chat: &Chat, wanted: &(dyn Fn() -> bool + Sync)) -> Result<Prompt, TemplateError> {
        let messages = prepared(&chat.messages)?;
        // A thread of its own: a hostile template can make values so deep that dropping them needs this stack.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("chat template".to_owned());
            let render = || Rendered::new(self, chat, messages, wanted)?.prompt();
            let stopped = |detail: String| TemplateError::Render { line: 0, detail };
            thread
                .stack_size(STACK)
                .spawn_scoped(scope, render)
                .map_err(|e| stopped(format!("no thread to render in: {e}")))?
                .join()
                .unwrap_or_else(|_| Err(stopped("the template engine panicked".to_owned())))
        })
    }

    fn render_values(
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
        if let Some(env::Raised(message)) = inner.downcast_ref() {
            return TemplateError::Raised { line, message: message.clone() };
        }
        if inner.is::<env::TooMuchText>() {
            return TemplateError::TooMuchText { line, max: env::MAX_TEXT };
        }
        if let Some(inner) = inner.downcast_ref::<minijinja::Error>() {
            line = inner.line().unwrap_or(line);
            kind = inner.kind();
            words = detail(inner);
        }
        source = inner.source();
    }
    match kind {
        ErrorKind::OutOfFuel => TemplateError::TooManySteps { line, max: env::MAX_STEPS },
        _ => TemplateError::Render { line, detail: words },
    }
}

fn detail(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Only what is used of it takes memory.
const STACK: usize = 256 << 20;
const NAME: &str = "chat";
const MAX_SOURCE: usize = 256 * 1024;
