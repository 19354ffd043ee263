//! `/v1/chat/completions`: from the request's fields to an answer, whole or in a stream.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use text::reply::ReplyEvent;

use super::chat_types::{
    ChatRequest, ChatResponse, Choice, Chunk, ChunkChoice, ChunkDelta, Function, FunctionDelta, Logprobs, Message,
    ToolCall, ToolCallDelta,
};
use crate::answer::{Answer, Answers, Delta, End, Step};
use crate::constraint;
use crate::error::ApiError;
use crate::ids;
use crate::json::{Input, Output};
use crate::params::{Params, Wanted, range};
use crate::prepare::{self, ChatInput, Reasoning, ToolChoice};
use crate::registry::Served;
use crate::settings::ReasoningDefaults;
use crate::state::AppState;
use crate::stream::{self, Gone, Sse};
use crate::wire::{Logprob, Progress, TimingsBody, Usage, finish_reason};

/// `POST /v1/chat/completions`.
pub(crate) async fn chat(State(state): State<AppState>, input: Input) -> Result<Response, ApiError> {
    let body: ChatRequest = input.read()?;
    let params: Params = input.read()?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let logprobs = logprobs(&body)?;
    let mut wanted = params.wanted(&served)?;
    wanted.options.logprobs = logprobs.or(wanted.options.logprobs);
    if body.parallel_tool_calls == Some(false) && body.tools.is_some() {
        // The parser closes the call that is open.
        wanted.options.stops.push("</tool_call>".to_owned());
    }
    let chat = chat_input(&input.0, body, &state.settings().reasoning)?;
    let answers = submit(&state, &served, chat, &wanted).await?;
    let reply = Reply::new(&state, &served, &wanted);
    if wanted.stream {
        return Ok(stream::response(&state, |sse| stream_all(sse, answers, reply)));
    }
    whole(answers, reply).await.map(|body| Output(body).into_response())
}

/// Prepares the conversation once and asks for every choice, each with a seed of its own.
async fn submit(
    state: &AppState,
    served: &Arc<Served>,
    chat: ChatInput,
    wanted: &Wanted,
) -> Result<Vec<Answer>, ApiError> {
    let first = prepare::chat(served, chat, wanted.options.clone()).await?;
    (0..wanted.n).map(|i| state.submit(served, first.with_choice(i)?)).collect()
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
pub(crate) fn chat_input(raw: &Value, body: ChatRequest, defaults: &ReasoningDefaults) -> Result<ChatInput, ApiError> {
    if body.chat_template.is_some_and(|template| !template.is_null()) {
        return Err(ApiError::field("chat_template", "chat_template: templates are not taken from requests"));
    }
    let mut kwargs = body.chat_template_kwargs.unwrap_or_default();
    let mut reasoning = Reasoning::with_defaults(defaults);
    if let Some(effort) = &body.reasoning_effort {
        reasoning.effort(effort)?;
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
        reasoning.budget = usize::try_from(n).ok();
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
    let mut tool_choice = constraint::tool_choice(body.tool_choice.as_ref())?;
    if tools.is_empty() && tool_choice == ToolChoice::None {
        tool_choice = ToolChoice::Auto;
    }
    let form = constraint::form(raw)?;
    Ok(ChatInput {
        messages: body.messages,
        tools,
        tool_choice,
        one_call: body.parallel_tool_calls == Some(false),
        form,
        reasoning,
        kwargs,
        continue_last: body.continue_final_message.unwrap_or(true),
    })
}

/// What all parts of an answer repeat.
struct Reply {
    id: String,
    created: u64,
    fingerprint: String,
    served: Arc<Served>,
    n: usize,
    include_usage: bool,
    timings_per_token: bool,
    return_progress: bool,
}

impl Reply {
    fn new(state: &AppState, served: &Arc<Served>, wanted: &Wanted) -> Self {
        Self {
            id: ids::new("chatcmpl-"),
            created: ids::now(),
            fingerprint: state.settings().build.clone(),
            served: Arc::clone(served),
            n: wanted.n,
            include_usage: wanted.include_usage,
            timings_per_token: wanted.timings_per_token,
            return_progress: wanted.return_progress,
        }
    }

    fn logprobs(&self, step: &Step) -> Option<Logprobs> {
        let vocab = self.served.model.vocab();
        let content: Vec<Logprob> = step.pieces.iter().filter_map(|piece| Logprob::of(piece, vocab)).collect();
        (!content.is_empty()).then_some(Logprobs { content })
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> Chunk<'_> {
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.served.id,
            system_fingerprint: &self.fingerprint,
            choices,
            usage: None,
            timings: None,
            prompt_progress: None,
        }
    }
}

/// The whole answer at once.
async fn whole(answers: Vec<Answer>, reply: Reply) -> Result<ChatResponse, ApiError> {
    let mut choices: Vec<Choice> = (0..reply.n)
        .map(|index| Choice {
            index,
            message: Message { role: "assistant", ..Message::default() },
            ..Choice::default()
        })
        .collect();
    let mut usage = Usage::default();
    let mut timings = None;
    let mut answers = Answers::new(answers);
    while let Some((i, delta, _)) = answers.next().await {
        let choice = &mut choices[i];
        match delta {
            Delta::Progress(_) => {}
            Delta::Step(step) => {
                if let Some(more) = reply.logprobs(&step) {
                    choice.logprobs.get_or_insert_default().content.extend(more.content);
                }
                choice.message.extend(step.events);
            }
            Delta::End(End { reason, events, timings: times, reasoning_tokens, .. }) => {
                choice.message.extend(events);
                choice.message.complete();
                choice.finish_reason = finish_reason(&reason, !choice.message.tool_calls.is_empty());
                usage.add(&times, reasoning_tokens, usage.prompt_tokens > 0);
                if i == 0 {
                    timings = Some(TimingsBody::from(&times));
                }
            }
            Delta::Failed(error) => return Err(error),
        }
    }
    Ok(ChatResponse {
        id: reply.id,
        object: "chat.completion",
        created: reply.created,
        model: reply.served.id.clone(),
        system_fingerprint: reply.fingerprint,
        choices,
        usage,
        timings,
    })
}

impl Message {
    fn extend(&mut self, events: Vec<ReplyEvent>) {
        for event in events {
            match event {
                ReplyEvent::Reasoning(text) => self.reasoning_content.get_or_insert_default().push_str(&text),
                ReplyEvent::Text(text) => self.content.get_or_insert_default().push_str(&text),
                ReplyEvent::ToolCallStart { name, .. } => {
                    let function = Function { name, arguments: String::new() };
                    self.tool_calls.push(ToolCall { id: ids::new("call_"), kind: "function", function });
                }
                ReplyEvent::ToolCallArguments { delta, .. } => {
                    if let Some(call) = self.tool_calls.last_mut() {
                        call.function.arguments += &delta;
                    }
                }
                ReplyEvent::ToolCallEnd { .. } => {}
            }
        }
    }

    /// A message without calls has a text, if an empty one.
    fn complete(&mut self) {
        if self.tool_calls.is_empty() {
            self.content.get_or_insert_default();
        }
    }
}

/// The answer part by part.
async fn stream_all(sse: Sse, answers: Vec<Answer>, reply: Reply) -> Result<(), Gone> {
    for index in 0..reply.n {
        let delta = ChunkDelta { role: Some("assistant"), content: Some(String::new()), ..ChunkDelta::default() };
        sse.data(&reply.chunk(vec![ChunkChoice { index, delta, ..ChunkChoice::default() }])).await?;
    }
    let mut usage = Usage::default();
    let mut called_tools = vec![false; reply.n];
    let mut answers = Answers::new(answers);
    while let Some((index, delta, so_far)) = answers.next().await {
        match delta {
            Delta::Progress(progress) if reply.return_progress => {
                let choice = ChunkChoice { index, ..ChunkChoice::default() };
                let chunk = Chunk { prompt_progress: Some(Progress::from(progress)), ..reply.chunk(vec![choice]) };
                sse.data(&chunk).await?;
            }
            Delta::Progress(_) => {}
            Delta::Step(step) => {
                let mut logprobs = reply.logprobs(&step);
                let mut deltas: Vec<ChunkDelta> = step.events.into_iter().filter_map(delta_of).collect();
                if deltas.is_empty() && logprobs.is_some() {
                    deltas.push(ChunkDelta::default());
                }
                for delta in deltas {
                    called_tools[index] |= delta.tool_calls.is_some();
                    let choice = ChunkChoice { index, delta, logprobs: logprobs.take(), finish_reason: None };
                    let timings = reply.timings_per_token.then(|| TimingsBody::from(&so_far));
                    sse.data(&Chunk { timings, ..reply.chunk(vec![choice]) }).await?;
                }
            }
            Delta::End(End { reason, events, timings, reasoning_tokens, .. }) => {
                for delta in events.into_iter().filter_map(delta_of) {
                    called_tools[index] |= delta.tool_calls.is_some();
                    sse.data(&reply.chunk(vec![ChunkChoice { index, delta, ..ChunkChoice::default() }])).await?;
                }
                let finish_reason = Some(finish_reason(&reason, called_tools[index]));
                let choice = ChunkChoice { index, finish_reason, ..ChunkChoice::default() };
                usage.add(&timings, reasoning_tokens, usage.prompt_tokens > 0);
                let timings = Some(TimingsBody::from(&timings));
                sse.data(&Chunk { timings, ..reply.chunk(vec![choice]) }).await?;
            }
            Delta::Failed(error) => {
                sse.data(&error.body()).await?;
                return sse.done().await;
            }
        }
    }
    if reply.include_usage {
        sse.data(&Chunk { usage: Some(usage), ..reply.chunk(Vec::new()) }).await?;
    }
    sse.done().await
}

fn delta_of(event: ReplyEvent) -> Option<ChunkDelta> {
    let mut delta = ChunkDelta::default();
    match event {
        ReplyEvent::Reasoning(text) => delta.reasoning_content = Some(text),
        ReplyEvent::Text(text) => delta.content = Some(text),
        ReplyEvent::ToolCallStart { index, name } => {
            let function = FunctionDelta { name: Some(name), arguments: String::new() };
            let id = Some(ids::new("call_"));
            delta.tool_calls = Some(vec![ToolCallDelta { index, id, kind: Some("function"), function }]);
        }
        ReplyEvent::ToolCallArguments { index, delta: arguments } => {
            let function = FunctionDelta { name: None, arguments };
            delta.tool_calls = Some(vec![ToolCallDelta { index, id: None, kind: None, function }]);
        }
        ReplyEvent::ToolCallEnd { .. } => return None,
    }
    Some(delta)
}
