//! From a conversation or a text to a request for the engine, with what its reply may hold.
//! Owns the steps between: template, tokens, message borders, continuing a message. Works on threads that may block.
//!
//! Grammars (`response_format`, `tool_choice: required` ...) join here: what `constraint` has read of them goes from
//! [`ChatInput`] into the engine's options.

use engine::{GenerateRequest, RequestOptions, Scope};
use serde_json::{Map, Value, json};
use text::reply::{ReplyOptions, ToolSchema};
use text::template::{Chat, ChatTemplate, Prompt};
use text::{Special, TokenId, Vocab};

use crate::constraint::{self, Form};
use crate::error::ApiError;
use crate::registry::Served;
use crate::settings::ReasoningDefaults;
use crate::work::Work;

/// A conversation to be answered, whatever wire format it came in.
#[derive(Clone, Debug, Default)]
pub struct ChatInput {
    /// Messages in OpenAI's shape.
    pub messages: Vec<Value>,
    /// Tools in OpenAI's shape.
    pub tools: Vec<Value>,
    /// Which of them may be called.
    pub tool_choice: ToolChoice,
    /// At most one call, not several.
    pub one_call: bool,
    /// What the answer must be made of.
    pub form: Option<Form>,
    /// Thinking.
    pub reasoning: Reasoning,
    /// More variables for the template.
    pub kwargs: Map<String, Value>,
    /// A last message of the assistant is continued; otherwise it is closed and a new one begun.
    pub continue_last: bool,
}

/// Which tools a reply may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// None: the template does not see them.
    None,
    /// Any, or none.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// What a request says about thinking.
#[derive(Clone, Debug, Default)]
pub struct Reasoning {
    /// Think, or do not; `None` is up to the template.
    pub enable: Option<bool>,
    /// Most tokens of thinking.
    pub budget: Option<usize>,
    /// Leave thinking in the text.
    pub in_content: bool,
}

impl Reasoning {
    /// The server's defaults.
    pub fn with_defaults(defaults: &ReasoningDefaults) -> Self {
        Self { enable: defaults.enable, budget: defaults.budget, in_content: defaults.in_content }
    }

    /// OpenAI's efforts; `none` does not think, and the lower ones have budgets. `field` is named in errors.
    ///
    /// # Errors
    /// 400 for another word.
    pub fn effort(&mut self, field: &str, effort: &str) -> Result<(), ApiError> {
        let (enable, budget) = match effort {
            "none" => (false, None),
            "minimal" => (true, Some(256)),
            "low" => (true, Some(1024)),
            "medium" => (true, Some(8192)),
            "high" | "xhigh" | "max" => (true, None),
            _ => {
                let known = "none, minimal, low, medium, high, xhigh or max";
                let found = crate::error::shortened(effort);
                return Err(ApiError::field(field, format!("{field}: {known} expected, `{found}` found")));
            }
        };
        self.enable = Some(enable);
        self.budget = budget.or(self.budget);
        Ok(())
    }
}

/// A request that the engine takes, and how its reply is to be read.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// For the engine.
    pub request: GenerateRequest,
    /// For the reply parser; `None`: everything is text.
    pub reply: Option<ReplyOptions>,
}

impl Prepared {
    /// The request for choice `i`: with a fixed seed each choice has one of its own. It takes up state of `scope`.
    ///
    /// # Errors
    /// None but those that the first choice had.
    pub(crate) fn of_choice(&self, i: usize, scope: Scope) -> Result<Self, ApiError> {
        let mut options = RequestOptions { scope, ..self.request.options().clone() };
        options.sampling.seed = options.sampling.seed.map(|seed| seed.wrapping_add(i as u64));
        let request = GenerateRequest::new(self.request.prompt().to_vec(), options, self.request.limits())?;
        Ok(Self { request, reply: self.reply.clone() })
    }
}

/// A rendered prompt.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// The prompt's text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// Where later prompts may part from it.
    pub borders: Vec<usize>,
    /// The reply begins as thinking.
    pub starts_in_reasoning: bool,
}

/// The engine's request for a prompt that stands as it is.
///
/// # Errors
/// 400 for what the engine refuses.
pub fn text(served: &Served, prompt: Vec<TokenId>, options: &RequestOptions) -> Result<Prepared, ApiError> {
    Ok(Prepared { request: GenerateRequest::new(prompt, options.clone(), served.engine.limits())?, reply: None })
}

/// Renders a conversation and makes the engine's request of it.
///
/// # Errors
/// 400 for what the template or the engine refuses.
pub fn chat(work: &Work, input: &ChatInput, options: RequestOptions) -> Result<Prepared, ApiError> {
    let served = work.served();
    let rendered = render(work, input)?;
    let vocab = served.model.vocab();
    let grammar = constraint::of_chat(served, input, &rendered)?;
    work.go_on()?;
    let mut options = RequestOptions { borders: rendered.borders, grammar, ..options };
    let tools = !input.tools.is_empty() && input.tool_choice != ToolChoice::None;
    if input.one_call && tools {
        // The parser closes the call that is open.
        options.stops.push(AFTER_CALL.to_owned());
    }
    if input.reasoning.enable != Some(false) {
        options.thinking = input.reasoning.budget.and_then(|n| thinking(vocab, n, rendered.starts_in_reasoning));
    }
    let request = GenerateRequest::new(rendered.tokens, options, served.engine.limits())?;
    let reply = ReplyOptions {
        starts_in_reasoning: rendered.starts_in_reasoning,
        reasoning: !input.reasoning.in_content,
        tools,
        tool_schemas: input.tools.iter().filter_map(ToolSchema::from_tool).collect(),
    };
    Ok(Prepared { request, reply: Some(reply) })
}

/// Renders a conversation, for as long as it is wanted.
///
/// # Errors
/// 400 for what the template refuses.
pub fn render(work: &Work, input: &ChatInput) -> Result<Rendered, ApiError> {
    let served = work.served();
    let Some(template) = &served.template else {
        let message = "the model file has no chat template: use /v1/completions with a prompt of your own";
        return Err(ApiError::invalid(message));
    };
    let messages = messages(&input.messages)?;
    if let Some(i) = input.tools.iter().position(|tool| ToolSchema::from_tool(tool).is_none()) {
        let message =
            format!("tools[{i}]: {{\"type\": \"function\", \"function\": {{\"name\": ...}}}} expected, with a name");
        return Err(ApiError::field("tools", message));
    }
    let tools = if input.tool_choice == ToolChoice::None { Vec::new() } else { input.tools.clone() };
    let mut chat = Chat {
        messages,
        tools,
        add_generation_prompt: true,
        enable_thinking: input.reasoning.enable,
        kwargs: input.kwargs.clone(),
    };
    let last = chat.messages.last().filter(|_| input.continue_last && continues(&chat.messages)).cloned();
    let mut prompt = match &last {
        Some(last) => {
            chat.messages.pop();
            continued(work, template, chat, last)?
        }
        None => rendered(work, template, &chat)?,
    };
    work.go_on()?;
    prompt.borders = worth_keeping(&prompt);
    Ok(encode(served.model.vocab(), prompt))
}

fn rendered(work: &Work, template: &ChatTemplate, chat: &Chat) -> Result<Prompt, ApiError> {
    let prompt = template.render_while(chat, &|| work.is_wanted());
    prompt.map_err(|error| ApiError::field("messages", error.to_string()))
}

/// Messages that a template can take: parts are text, `developer` is the system's newer name, and the system speaks once
/// at the beginning.
fn messages(given: &[Value]) -> Result<Vec<Value>, ApiError> {
    if given.is_empty() {
        return Err(ApiError::field("messages", "messages: at least one message is expected"));
    }
    let mut messages = given.to_vec();
    for (i, message) in messages.iter_mut().enumerate() {
        if message.get("role").and_then(Value::as_str) == Some("developer") {
            message["role"] = json!("system");
        }
        if message.get("content").is_some_and(|c| !(c.is_null() || c.is_string() || c.is_array())) {
            let message = format!("messages[{i}].content: a text, null or a list of parts expected");
            return Err(ApiError::field("messages", message));
        }
        for part in message.get("content").and_then(Value::as_array).into_iter().flatten() {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
            if kind != "text" || !part.get("text").is_some_and(Value::is_string) {
                let kind = crate::error::shortened(kind);
                let message = format!(
                    "messages[{i}].content: parts of type `text` expected, `{kind}` found: this server takes text only"
                );
                return Err(ApiError::field("messages", message));
            }
        }
    }
    let is_system = |message: &&Value| message.get("role").and_then(Value::as_str) == Some("system");
    let n_system = messages.iter().take_while(is_system).count();
    if n_system > 1 {
        let texts: Vec<String> = messages.drain(..n_system).map(|message| text_of(message.get("content"))).collect();
        messages.insert(0, json!({ "role": "system", "content": texts.join("\n\n") }));
    }
    Ok(messages)
}

/// The last message is an unfinished one of the assistant.
fn continues(messages: &[Value]) -> bool {
    let Some(last) = messages.last() else { return false };
    let calls = last.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    messages.len() > 1 && !calls && last.get("role").and_then(Value::as_str) == Some("assistant")
}

/// The prompt before the last message, then as much of that message as there is.
fn continued(work: &Work, template: &ChatTemplate, mut chat: Chat, last: &Value) -> Result<Prompt, ApiError> {
    let content = text_of(last.get("content"));
    let reasoning = text_of(last.get("reasoning_content").or(last.get("reasoning")));
    if reasoning.is_empty() && !content.is_empty() && chat.enable_thinking.is_none() {
        // What is there was said without thinking, as far as we know.
        chat.enable_thinking = Some(false);
    }
    let mut prompt = rendered(work, template, &chat)?;
    if prompt.starts_in_reasoning {
        prompt.text += &reasoning;
        if !content.is_empty() {
            prompt.text += "\n</think>\n\n";
            prompt.starts_in_reasoning = false;
        }
    }
    prompt.text += &content;
    Ok(prompt)
}

/// The text of a message's content, whole or in parts.
fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => String::new(),
    }
}

/// Of all borders the first, the last two that hold whatever comes, and the last that holds within a loop of tool calls:
/// the engine keeps a checkpoint at its first and at three more.
fn worth_keeping(prompt: &Prompt) -> Vec<usize> {
    let (lasting, looping) = prompt.borders.split_at(prompt.n_lasting.min(prompt.borders.len()));
    let mut lasting = lasting.to_vec();
    // The beginning of the reply's opening is repeated too: a few tokens less to compute in every turn.
    if looping.is_empty() && lasting.len() > 1 && prompt.repeated < prompt.text.len() {
        lasting.pop();
        lasting.push(prompt.repeated);
    }
    let n_last = 3 - usize::from(!looping.is_empty());
    let first = lasting.first().into_iter().chain(lasting.iter().skip(1).rev().take(n_last).rev());
    first.chain(looping.last()).copied().collect()
}

fn encode(vocab: &Vocab, prompt: Prompt) -> Rendered {
    let (tokens, borders) = vocab.encode_with_cuts(&prompt.text, &prompt.borders);
    if borders.is_empty() && !prompt.borders.is_empty() {
        tracing::debug!("the prompt's parts and the whole differ in tokens: no message borders");
    }
    Rendered { text: prompt.text, tokens, borders, starts_in_reasoning: prompt.starts_in_reasoning }
}

/// A limit on thinking, where the vocabulary has a token that ends it.
fn thinking(vocab: &Vocab, max_tokens: usize, open: bool) -> Option<engine::Thinking> {
    let (start, end) = (vocab.id("<think>")?, vocab.id("</think>")?);
    let forced = vocab.encode("\n</think>\n\n", Special::Parse);
    Some(engine::Thinking { max_tokens, open, start, end, forced })
}

/// Ends a call. An answer of one call at most stops here.
pub(crate) const AFTER_CALL: &str = "</tool_call>";

/// Runs work that may take long where it holds up nobody.
///
/// # Errors
/// Those of the work; 500 when it panicked.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(%error, "work on a request ended");
            Err(ApiError::server("the request could not be worked on: see the server's log"))
        }
    }
}
