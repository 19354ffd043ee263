//! From a conversation or a text to a request for the engine, with what the reply to it may hold.
//! Owns the steps between: template, tokens, checkpoint boundaries, grammar, thinking, continuing a message. Works on threads
//! that may block, and gives up between two steps when nobody wants the request any more.

use std::sync::Arc;

use constrain::{Error, Kind};
use engine::{GenerateRequest, Grammar, RequestError, RequestOptions, Scope};
use model::Model;
use serde_json::{Value, json};
use text::template::{Chat, Prompt, TemplateError};
use text::{Special, TokenId};

use crate::conversation::{Conversation, Form, ToolChoice, text_of};
use crate::dialect::{ReplyOptions, Thinking, Tool, ToolChoice as Choice, ToolSchema, Tools};
use crate::open::LoadedModel;
use crate::roles::placed;
use crate::template::template_of;

/// Whether a request is still wanted.
pub type Wanted<'a> = &'a (dyn Fn() -> bool + Sync);

/// A request that is wanted whatever happens.
pub const ALWAYS: Wanted<'static> = &|| true;

/// A request that the engine can take, and how its reply is read.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// For the engine.
    pub request: GenerateRequest,
    /// How the reply is read; `None` takes everything as text.
    pub reply: Option<ReplyPlan>,
}

/// How a reply is read.
#[derive(Clone, Debug)]
pub struct ReplyPlan {
    /// What it may hold.
    pub options: ReplyOptions,
    /// The stop string that ends it after one tool call, if one does.
    pub after_call: Option<&'static str>,
}

/// Why there is no request.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// There is nothing that renders conversations.
    #[error("the model file has no chat template: continue a text of your own instead of a conversation")]
    NoTemplate,
    /// There are no tokens that mark a gap.
    #[error("this model's vocabulary has no tokens for filling in the middle")]
    NoInfill,
    /// What was given cannot be used.
    #[error("{message}")]
    Given {
        /// Where it was given.
        field: String,
        /// What is wrong, and what is expected.
        message: String,
    },
    /// The form that was asked for cannot be compiled.
    #[error("{field}: {error}")]
    Form {
        /// Who asked for it.
        field: &'static str,
        /// Why not.
        error: Error,
    },
    /// The engine cannot serve it.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Nobody waits for it any more.
    #[error("nobody waits for this request any more")]
    Abandoned,
}

impl PrepareError {
    fn given(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Given { field: field.into(), message: message.into() }
    }
}

/// A rendered conversation.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// The prompt as text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// Token offsets that are worth a checkpoint.
    pub boundaries: Vec<usize>,
    /// The reply begins as reasoning.
    pub starts_in_reasoning: bool,
    /// The prompt ends within what the assistant says or thinks.
    pub continues: bool,
}

impl Prepared {
    /// The same request for the `i`th of several replies, whose seeds follow each other, within `scope`.
    ///
    /// # Errors
    /// As [`GenerateRequest::new`].
    pub fn choice(&self, i: usize, scope: Scope) -> Result<Self, RequestError> {
        let mut options = RequestOptions { scope, ..self.request.options().clone() };
        options.sampling.seed = options.sampling.seed.map(|seed| seed.wrapping_add(i as u64));
        let request = GenerateRequest::new(self.request.prompt().to_vec(), options, self.request.limits())?;
        Ok(Self { request, reply: self.reply.clone() })
    }
}

impl LoadedModel {
    /// A request that continues these tokens, with `form` as the form of the text.
    ///
    /// # Errors
    /// [`PrepareError`].
    pub fn prepare_text(&self, prompt: Vec<TokenId>, options: RequestOptions) -> Result<Prepared, PrepareError> {
        Ok(Prepared { request: GenerateRequest::new(prompt, options, self.engine.limits())?, reply: None })
    }

    /// The grammar of a form; `None` without one. No thinking comes before it.
    ///
    /// # Errors
    /// [`PrepareError::Form`].
    pub fn grammar(&self, form: Option<&Form>) -> Result<Option<Arc<dyn Grammar>>, PrepareError> {
        form.map(|form| self.compiled(form.kind.clone(), Thinking::Done, form.field)).transpose()
    }

    /// The request for a reply to `conversation`.
    ///
    /// # Errors
    /// [`PrepareError`].
    pub fn prepare(
        &self,
        mut conversation: Conversation,
        options: RequestOptions,
        wanted: Wanted<'_>,
    ) -> Result<Prepared, PrepareError> {
        let messages = std::mem::take(&mut conversation.messages);
        let rendered = self.rendered_of(&conversation, messages, wanted)?;
        let grammar = self.grammar_of(&conversation, &rendered)?;
        go_on(wanted)?;
        let mut options = RequestOptions { checkpoint_boundaries: rendered.boundaries, grammar, ..options };
        let tools = !conversation.tools.is_empty() && conversation.tool_choice != ToolChoice::None;
        // The parser closes the call that is open.
        let after_call = self.dialect.after_call().filter(|_| conversation.one_call && tools);
        options.stops.extend(after_call.map(str::to_owned));
        if conversation.reasoning.enable != Some(false) {
            // Without a limit it can still be ended from outside.
            let budget = conversation.reasoning.budget.unwrap_or(usize::MAX);
            options.thinking = self.dialect.thinking_limit(budget, rendered.starts_in_reasoning);
        }
        let request = GenerateRequest::new(rendered.tokens, options, self.engine.limits())?;
        let of_reply = ReplyOptions {
            starts_in_reasoning: rendered.starts_in_reasoning,
            continues: rendered.continues,
            reasoning: !conversation.reasoning.in_content,
            tools: tools || conversation.reads_calls,
            forced: matches!(conversation.tool_choice, ToolChoice::Required | ToolChoice::Named(_)),
            tool_schemas: conversation.tools.iter().filter_map(ToolSchema::from_tool).collect(),
        };
        Ok(Prepared { request, reply: Some(ReplyPlan { options: of_reply, after_call }) })
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// [`PrepareError`].
    pub fn render(&self, mut conversation: Conversation, wanted: Wanted<'_>) -> Result<Rendered, PrepareError> {
        let messages = std::mem::take(&mut conversation.messages);
        self.rendered_of(&conversation, messages, wanted)
    }

    /// `given`: the conversation's messages, which are not held twice: they may be many.
    fn rendered_of(
        &self,
        conversation: &Conversation,
        given: Vec<Value>,
        wanted: Wanted<'_>,
    ) -> Result<Rendered, PrepareError> {
        check(&given)?;
        let messages = placed(given, self.template.as_ref(), self.knows_developers());
        if let Some(i) = conversation.tools.iter().position(|tool| ToolSchema::from_tool(tool).is_none()) {
            let message = format!(
                "tools[{i}]: {{\"type\": \"function\", \"function\": {{\"name\": ...}}}} expected, with a name"
            );
            return Err(PrepareError::given("tools", message));
        }
        let no_tools = conversation.tool_choice == ToolChoice::None;
        let mut chat = Chat {
            messages,
            tools: if no_tools { Vec::new() } else { conversation.tools.clone() },
            add_generation_prompt: true,
            enable_thinking: conversation.reasoning.enable,
            kwargs: conversation.kwargs.clone(),
        };
        let last = chat.messages.last().filter(|_| conversation.continue_last && continues(&chat.messages)).cloned();
        let (prompt, starts_in_reasoning) = match &last {
            Some(last) => {
                chat.messages.pop();
                self.continued(chat, last, wanted)?
            }
            None => {
                chat.add_generation_prompt =
                    conversation.kwargs.get("add_generation_prompt") != Some(&Value::Bool(false));
                let prompt = self.rendered(&chat, wanted)?;
                let starts_in_reasoning = self.dialect.starts_in_reasoning(&prompt);
                (prompt, starts_in_reasoning)
            }
        };
        go_on(wanted)?;
        let continues = last.is_some_and(|last| {
            let reasoning = last.get("reasoning_content").or(last.get("reasoning"));
            !text_of(if starts_in_reasoning { reasoning } else { last.get("content") }).is_empty()
        });
        Ok(Rendered { continues, ..self.encode(prompt, starts_in_reasoning) })
    }

    fn rendered(&self, chat: &Chat, wanted: Wanted<'_>) -> Result<Prompt, PrepareError> {
        let template = self.template.as_ref().ok_or(PrepareError::NoTemplate)?;
        let prompt = template.render_while(chat, wanted);
        prompt.map_err(|error| PrepareError::given("messages", error.to_string()))
    }

    /// The prompt with the opening of the reply and the beginning of the reply itself.
    fn continued(&self, mut chat: Chat, last: &Value, wanted: Wanted<'_>) -> Result<(Prompt, bool), PrepareError> {
        let content = text_of(last.get("content"));
        let reasoning = text_of(last.get("reasoning_content").or(last.get("reasoning")));
        if reasoning.is_empty() && !content.is_empty() && chat.enable_thinking.is_none() {
            // What is there was said without thinking, as far as we know.
            chat.enable_thinking = Some(false);
        }
        let mut prompt = self.rendered(&chat, wanted)?;
        let mut in_reasoning = self.dialect.starts_in_reasoning(&prompt);
        if in_reasoning {
            prompt.text += &reasoning;
            if let Some(end) = self.dialect.reasoning_end().filter(|_| !content.is_empty()) {
                prompt.text += &end;
                in_reasoning = false;
            }
        }
        prompt.text += &content;
        Ok((prompt, in_reasoning))
    }

    /// What the conversation demands of the reply's form, after whatever thinking its prompt leaves possible.
    fn grammar_of(
        &self,
        conversation: &Conversation,
        rendered: &Rendered,
    ) -> Result<Option<Arc<dyn Grammar>>, PrepareError> {
        let thinking = match (conversation.reasoning.enable, rendered.starts_in_reasoning) {
            (_, true) => Thinking::Open,
            (Some(false), false) => Thinking::Done,
            (_, false) => self.dialect.thinking_after(false, &rendered.tokens),
        };
        let choice = match &conversation.tool_choice {
            ToolChoice::None => None,
            ToolChoice::Auto if conversation.tools.is_empty() => None,
            ToolChoice::Auto => Some(Choice::Auto),
            ToolChoice::Required => Some(Choice::Required),
            ToolChoice::Named(name) => Some(Choice::Named(name.clone())),
        };
        match (choice, &conversation.form) {
            (None, None) => Ok(None),
            (None, Some(form)) => self.compiled(form.kind.clone(), thinking, form.field).map(Some),
            (Some(_), Some(Form { field, .. })) => {
                let message = format!("{field}: a form and tools exclude each other: set tool_choice to `none`");
                Err(PrepareError::given(*field, message))
            }
            (Some(choice), None) => self.calls(conversation, choice, thinking),
        }
    }

    fn calls(
        &self,
        conversation: &Conversation,
        choice: Choice,
        thinking: Thinking,
    ) -> Result<Option<Arc<dyn Grammar>>, PrepareError> {
        let free = choice == Choice::Auto;
        let tools = conversation.tools.iter().map(Tool::from_json).collect::<Result<_, _>>();
        let spec = tools.and_then(|tools| {
            let tools = Tools { tools, choice, parallel: !conversation.one_call };
            self.dialect.tool_spec(tools, thinking, self.grammars.limits())
        });
        let grammar = match spec {
            Ok(None) if free => return Ok(None),
            Ok(None) => {
                let message =
                    "tool_choice: this model's template has not the format of calls that can be forced: use `auto`";
                return Err(PrepareError::given("tool_choice", message));
            }
            Ok(Some(spec)) => self.grammars.compile(&spec),
            Err(error) => Err(error),
        };
        match grammar {
            Ok(grammar) => Ok(Some(grammar)),
            // Nothing was demanded: calls of tools that no grammar can have are read as they come. What another try would
            // have is not left out.
            Err(error) if free && error.is_of_the_form() => {
                tracing::debug!(%error, "tool calls are not constrained");
                Ok(None)
            }
            Err(error) => Err(PrepareError::Form { field: "tools", error }),
        }
    }

    fn encode(&self, prompt: Prompt, starts_in_reasoning: bool) -> Rendered {
        let places = self.dialect.boundaries(&prompt);
        let (tokens, boundaries) = self.vocab().encode_with_cuts(&prompt.text, &places);
        if boundaries.is_empty() && !places.is_empty() {
            tracing::debug!("the prompt's parts and the whole differ in tokens: no checkpoint boundaries");
        }
        Rendered { text: prompt.text, tokens, boundaries, starts_in_reasoning, continues: false }
    }

    fn compiled(&self, kind: Kind, thinking: Thinking, field: &'static str) -> Result<Arc<dyn Grammar>, PrepareError> {
        self.grammars.compile(&self.dialect.spec(kind, thinking)).map_err(|error| PrepareError::Form { field, error })
    }
}

/// The prompt of one message without thinking, of a model that has no engine yet; the message itself where the model has no
/// template.
///
/// # Errors
/// What the template has against it.
pub fn prompt_of(model: &Model, message: &str) -> Result<Vec<TokenId>, TemplateError> {
    let Some(template) = template_of(model)? else { return Ok(model.vocab().encode(message, Special::Parse)) };
    let chat = Chat {
        messages: vec![json!({ "role": "user", "content": message })],
        add_generation_prompt: true,
        enable_thinking: Some(false),
        ..Chat::default()
    };
    Ok(model.vocab().encode(&template.render(&chat)?.text, Special::Parse))
}

fn go_on(wanted: Wanted<'_>) -> Result<(), PrepareError> {
    if wanted() { Ok(()) } else { Err(PrepareError::Abandoned) }
}

/// # Errors
/// There is no message, or one whose content is no text.
fn check(messages: &[Value]) -> Result<(), PrepareError> {
    if messages.is_empty() {
        return Err(PrepareError::given("messages", "messages: at least one message is expected"));
    }
    for (i, message) in messages.iter().enumerate() {
        if message.get("content").is_some_and(|c| !(c.is_null() || c.is_string() || c.is_array())) {
            let message = format!("messages[{i}].content: a text, null or a list of parts expected");
            return Err(PrepareError::given("messages", message));
        }
        for part in message.get("content").and_then(Value::as_array).into_iter().flatten() {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
            if kind != "text" || !part.get("text").is_some_and(Value::is_string) {
                let shown: String = kind.chars().take(80).collect();
                let message = format!(
                    "messages[{i}].content: parts of type `text` expected, `{shown}` found: this server takes text only"
                );
                return Err(PrepareError::given("messages", message));
            }
        }
    }
    Ok(())
}

/// The last message is the beginning of the reply.
fn continues(messages: &[Value]) -> bool {
    let Some(last) = messages.last() else { return false };
    let calls = last.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    messages.len() > 1 && !calls && last.get("role").and_then(Value::as_str) == Some("assistant")
}
