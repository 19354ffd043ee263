//! `/v1/chat/completions`: from the request's fields to a reply, whole or in a stream.

use axum::extract::State;
use axum::response::Response;
use engine::{PromptProgress, Timings};
use serde_json::Value;
use session::dialect::ReplyEvent;

use super::chat_types::{
    ChatRequest, ChatResponse, Choice, Chunk, ChunkChoice, ChunkDelta, DraftPart, Drafts, Function, FunctionDelta,
    Logprobs, Message, ToolCall, ToolCallDelta,
};
use super::parts::Frame;
use crate::error::ApiError;
use crate::form;
use crate::ids;
use crate::json::{Input, Output};
use crate::params::{Params, range};
use crate::pictures;
use session::{Conversation, Form, Reasoning};
use session::{End, Step};

use crate::respond::{Wire, respond};
use crate::state::AppState;
use crate::stream::Events;
use crate::wire::{InputTokens, finish_reason};
use crate::work::{Caller, Work, WorkKind};

/// `POST /v1/chat/completions/input_tokens`.
pub(crate) async fn input_tokens(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Output<InputTokens>, ApiError> {
    let body: ChatRequest = input.read().await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let chat = chat_input(None, body, &state.settings().reasoning)?;
    let kind = WorkKind::of(&served, pictures::are_in(&chat));
    let count = move |work: &mut Work| Ok(Output(InputTokens::of(&work.render(chat)?)));
    state.work_at(kind, &served, caller, 0, count).await
}

/// `POST /v1/chat/completions`.
pub(crate) async fn chat(State(state): State<AppState>, caller: Caller, input: Input) -> Result<Response, ApiError> {
    let body: ChatRequest = input.read().await?;
    let params = Params::read(&input).await?;
    let form = form::form_of(&input).await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let logprobs = logprobs(&body)?;
    let return_drafts = body.return_drafts.unwrap_or(false);
    let chat = chat_input(form, body, &state.settings().reasoning)?;
    let n = params.n_replies()?;
    let kind = WorkKind::of(&served, pictures::are_in(&chat));
    let work = move |work: &mut Work| {
        let mut wanted = params.wanted(work.served())?;
        wanted.options.logprobs = logprobs.or(wanted.options.logprobs);
        let prepared = work.prepare(chat, wanted.options.clone())?;
        let shown = work.shown(&wanted, std::slice::from_ref(&prepared));
        Ok((work.submit(&[prepared], n)?, wanted, shown))
    };
    let (replies, wanted, shown) = state.work_at(kind, &served, caller, n, work).await?;
    drop(input);
    let stream = wanted.stream;
    let frame = Frame::new(&state, served, wanted, "chatcmpl-", "chat.completion.chunk").telling(&shown);
    respond(&state, replies, Reply::new(frame, return_drafts), stream).await
}

fn logprobs(body: &ChatRequest) -> Result<Option<usize>, ApiError> {
    let top = body.top_logprobs.map(|n| range("top_logprobs", n, 0, engine::MAX_LOGPROBS as i64)).transpose()?;
    match (body.logprobs, top) {
        (Some(true), top) => Ok(Some(top.unwrap_or(0) as usize)),
        (_, Some(n)) if n > 0 => Err(ApiError::field("top_logprobs", "top_logprobs needs `logprobs: true`")),
        _ => Ok(None),
    }
}

/// The conversation and all that shapes its prompt.
pub(crate) fn chat_input(
    form: Option<Form>,
    body: ChatRequest,
    defaults: &Reasoning,
) -> Result<Conversation, ApiError> {
    if body.chat_template.is_some_and(|template| !template.is_null()) {
        return Err(ApiError::field("chat_template", "chat_template: templates are not taken from requests"));
    }
    let mut kwargs = body.chat_template_kwargs.unwrap_or_default();
    match (body.add_generation_prompt, body.continue_final_message) {
        (Some(true), Some(true)) => {
            let message = "add_generation_prompt and continue_final_message exclude each other: set one of them";
            return Err(ApiError::field("add_generation_prompt", message));
        }
        (Some(opens), _) => drop(kwargs.insert("add_generation_prompt".to_owned(), Value::Bool(opens))),
        (None, _) => {}
    }
    let mut reasoning = defaults.clone();
    if let Some(effort) = &body.reasoning_effort {
        form::effort(&mut reasoning, "reasoning_effort", effort)?;
    }
    reasoning.enable = body.enable_thinking.or(reasoning.enable);
    if let Some(keep) = body.preserve_thinking {
        kwargs.entry(session::PRESERVE_THINKING).or_insert(Value::Bool(keep));
    }
    match kwargs.remove("enable_thinking") {
        None | Some(Value::Null) => {}
        Some(Value::Bool(on)) => reasoning.enable = Some(on),
        Some(_) => {
            let message = "chat_template_kwargs.enable_thinking: true or false expected";
            return Err(ApiError::field("chat_template_kwargs", message));
        }
    }
    if let Some(n) = body.thinking_budget_tokens.or(body.thinking_token_budget) {
        let n = range("thinking_budget_tokens", n, -1, i64::MAX)?;
        reasoning.with_budget(usize::try_from(n).ok());
    }
    match body.reasoning_format.as_deref() {
        None => {}
        Some("none") => reasoning.in_content = true,
        Some("auto" | "deepseek" | "deepseek-legacy") => reasoning.in_content = false,
        Some(_) => {
            return Err(ApiError::field("reasoning_format", "reasoning_format: none, auto or deepseek expected"));
        }
    }
    let tools = body.tools.unwrap_or_default();
    let calls = form::tool_choice(body.tool_choice.as_ref(), |_, name| name.to_owned())?;
    Ok(Conversation {
        messages: body.messages,
        tools,
        tool_choice: calls.choice,
        allowed_tools: calls.allowed,
        one_call: body.parallel_tool_calls == Some(false),
        form,
        reasoning,
        kwargs,
        reads_calls: false,
        continue_last: body.continue_final_message.unwrap_or(true),
        ..Conversation::default()
    })
}

/// The replies as they grow.
struct Reply {
    frame: Frame,
    return_drafts: bool,
    choices: Vec<Choice>,
}

impl Reply {
    fn new(frame: Frame, return_drafts: bool) -> Self {
        let choice =
            |index| Choice { index, message: Message { role: "assistant", ..Message::default() }, ..Choice::default() };
        Self { choices: (0..frame.wanted.n).map(choice).collect(), frame, return_drafts }
    }
}

impl Wire for Reply {
    type Body = ChatResponse;

    fn id(&self) -> Option<&str> {
        Some(self.frame.id())
    }

    fn begin(&mut self, events: &mut Events) {
        for index in 0..self.choices.len() {
            let delta = ChunkDelta { role: Some("assistant"), content: Some(None), ..ChunkDelta::default() };
            events.data(&self.frame.part(vec![ChunkChoice { index, delta, ..ChunkChoice::default() }]));
        }
    }

    fn progress(&mut self, index: usize, progress: PromptProgress, so_far: &Timings, events: &mut Events) {
        self.frame.progress(ChunkChoice { index, ..ChunkChoice::default() }, progress, so_far, events);
    }

    fn step(&mut self, index: usize, step: Step, so_far: &Timings, events: &mut Events) {
        self.frame.take(index, &step);
        let mut logprobs = Logprobs::of(&step, self.frame.served.vocab());
        if let (false, Some(more)) = (events.are_read(), &mut logprobs) {
            let all = self.choices[index].logprobs.get_or_insert_default();
            all.content.append(&mut more.content);
        }
        let shows_drafts = self.return_drafts && events.are_read();
        let spans = if shows_drafts { step.spans() } else { Vec::new() };
        let mut drafts = shows_drafts.then(|| Drafts::of(&step, so_far));
        let message = &mut self.choices[index].message;
        let with_spans = |(i, event): (usize, ReplyEvent)| {
            let spans = spans.get(i).cloned().unwrap_or_default();
            message.take(event).map(|delta| (delta, spans))
        };
        let mut deltas: Vec<_> = step.events().into_iter().enumerate().filter_map(with_spans).collect();
        if deltas.is_empty() && (logprobs.is_some() || shows_drafts) {
            deltas.push(Default::default());
        }
        for (delta, spans) in deltas {
            if let Some(drafts) = &mut drafts {
                drafts.parts = spans.into_iter().map(DraftPart::from).collect();
            }
            let choice = ChunkChoice { index, delta, logprobs: logprobs.take(), finish_reason: None };
            events.data(&Chunk { part: self.frame.more(choice, so_far), drafts: drafts.clone() });
        }
    }

    fn end(&mut self, index: usize, mut end: End, events: &mut Events) {
        for event in std::mem::take(&mut end.events) {
            if let Some(delta) = self.choices[index].message.take(event) {
                events.data(&self.frame.part(vec![ChunkChoice { index, delta, ..ChunkChoice::default() }]));
            }
        }
        let choice = &mut self.choices[index];
        choice.message.complete();
        choice.finish_reason = finish_reason(&end.reason, !choice.message.tool_calls.is_empty());
        let last = ChunkChoice { index, finish_reason: Some(choice.finish_reason), ..ChunkChoice::default() };
        self.frame.end(index, &end, last, events);
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        Frame::failed(error, events);
    }

    fn finish(&mut self, events: &mut Events) {
        self.frame.finish::<ChunkChoice>(events);
    }

    fn body(self) -> ChatResponse {
        self.frame.whole("chat.completion", self.choices)
    }
}

impl Message {
    /// Takes more of the reply, and gives what is new for a stream.
    fn take(&mut self, event: ReplyEvent) -> Option<ChunkDelta> {
        let mut delta = ChunkDelta::default();
        match event {
            ReplyEvent::Reasoning(text) => {
                self.reasoning_content.get_or_insert_default().push_str(&text);
                delta.reasoning_content = Some(text);
            }
            ReplyEvent::Text(text) => {
                self.content.get_or_insert_default().push_str(&text);
                delta.content = Some(Some(text));
            }
            ReplyEvent::ToolCallStart { index, name } => {
                let id = ids::new("call_");
                let function = Function { name: name.clone(), arguments: String::new() };
                self.tool_calls.push(ToolCall { id: id.clone(), kind: "function", function });
                let function = FunctionDelta { name: Some(name), arguments: String::new() };
                delta.tool_calls = Some(vec![ToolCallDelta { index, id: Some(id), kind: Some("function"), function }]);
            }
            ReplyEvent::ToolCallArguments { index, delta: arguments } => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.function.arguments += &arguments;
                }
                let function = FunctionDelta { name: None, arguments };
                delta.tool_calls = Some(vec![ToolCallDelta { index, id: None, kind: None, function }]);
            }
            ReplyEvent::ToolCallEnd { .. } => return None,
        }
        Some(delta)
    }

    /// A message without calls has a text, if an empty one.
    fn complete(&mut self) {
        if self.tool_calls.is_empty() {
            self.content.get_or_insert_default();
        }
    }
}
