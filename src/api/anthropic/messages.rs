//! `/v1/messages` and `/v1/messages/count_tokens`: handlers, and Anthropic's events.

use axum::extract::State;
use axum::response::Response;
use engine::{FinishReason, PromptProgress, Timings};
use serde_json::{Value, json};

use super::error::AnthropicError;
use super::input::chat_input;
use super::types::{ContentBlock, MessageBody, MessageUsage, MessagesRequest, TokenCount};
use crate::blocks::{Blocks, Change, Kind};
use crate::error::ApiError;
use crate::ids;
use crate::json::{Input, Output};
use crate::params::{Params, one_answer};
use session::{End, Step};

use crate::pictures;
use crate::respond::{Wire, respond};
use crate::state::AppState;
use crate::stream::Events;
use crate::wire::{CANCELLED, TimingsBody};
use crate::work::{Caller, Work, WorkKind};

/// `POST /v1/messages`.
pub(crate) async fn messages(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Response, ApiError> {
    let mut body: MessagesRequest = input.read().await?;
    let params = Params::read(&input).await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    one_answer(&params)?;
    let stops = body.stop_sequences.take().unwrap_or_default();
    let (chat, left_out) = chat_input(body, &state.settings().reasoning, served.sight().is_some())?;
    let kind = WorkKind::of(&served, pictures::are_in(&chat));
    let work = move |work: &mut Work| {
        let mut wanted = params.wanted(work.served())?;
        wanted.options.stops.extend(stops);
        let prepared = work.prepare(chat, wanted.options)?;
        Ok((
            work.submit(std::slice::from_ref(&prepared), 1)?,
            prepared.request.prompt().len(),
            (wanted.stream, wanted.timings_per_token),
        ))
    };
    let (replies, n_prompt, (stream, with_timings)) = state.work_at(kind, &served, caller, 1, work).await?;
    drop(input);
    respond(&state, replies, Reply::new(served.id.clone(), n_prompt, left_out, with_timings), stream).await
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Output<TokenCount>, ApiError> {
    let body: MessagesRequest = input.read().await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let (chat, _) = chat_input(body, &state.settings().reasoning, served.sight().is_some())?;
    let kind = WorkKind::of(&served, pictures::are_in(&chat));
    let count = move |work: &mut Work| Ok(Output(TokenCount { input_tokens: work.render(chat)?.tokens.len() }));
    state.work_at(kind, &served, caller, 0, count).await
}

/// The message as it grows.
struct Reply {
    message: MessageBody,
    blocks: Blocks,
    started: bool,
    /// Anthropic's messages have none: they are given to those who ask.
    with_timings: bool,
}

impl Reply {
    fn new(model: String, n_prompt: usize, left_out: Vec<String>, with_timings: bool) -> Self {
        let message = MessageBody {
            id: ids::new("msg_"),
            kind: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: MessageUsage::of_prompt(n_prompt, 0),
            warnings: left_out,
            timings: None,
        };
        let prefix = |kind: &Kind| if matches!(kind, Kind::Call(_)) { "toolu_" } else { "block_" };
        Self { message, blocks: Blocks::new(prefix), started: false, with_timings }
    }

    fn start(&mut self, events: &mut Events) {
        if !std::mem::replace(&mut self.started, true) {
            events.event("message_start", &json!({ "type": "message_start", "message": self.message }));
            events.event("ping", &json!({ "type": "ping" }));
        }
    }

    fn tell(&self, changes: Vec<Change>, events: &mut Events) {
        if !events.are_read() {
            return;
        }
        for change in changes {
            match change {
                Change::Open(i) => {
                    let block = &self.blocks.all[i];
                    let empty = ContentBlock::from(&crate::blocks::Block { text: String::new(), ..block.clone() });
                    let data = json!({ "type": "content_block_start", "index": i, "content_block": empty });
                    events.event("content_block_start", &data);
                }
                Change::More(i, text) => {
                    let delta = match self.blocks.all[i].kind {
                        Kind::Text => json!({ "type": "text_delta", "text": text }),
                        Kind::Reasoning => json!({ "type": "thinking_delta", "thinking": text }),
                        Kind::Call(_) => json!({ "type": "input_json_delta", "partial_json": text }),
                    };
                    delta_event(i, delta, events);
                }
                Change::Close(i) => {
                    if self.blocks.all[i].kind == Kind::Reasoning {
                        delta_event(i, json!({ "type": "signature_delta", "signature": "" }), events);
                    }
                    events.event("content_block_stop", &json!({ "type": "content_block_stop", "index": i }));
                }
            }
        }
    }
}

fn delta_event(index: usize, delta: Value, events: &mut Events) {
    let data = json!({ "type": "content_block_delta", "index": index, "delta": delta });
    events.event("content_block_delta", &data);
}

impl Wire for Reply {
    type Body = MessageBody;

    fn id(&self) -> Option<&str> {
        Some(&self.message.id)
    }

    const ALIVE: &'static [u8] = b"event: ping\ndata: {\"type\": \"ping\"}\n\n";

    fn progress(&mut self, _i: usize, progress: PromptProgress, _so_far: &Timings, events: &mut Events) {
        self.message.usage = MessageUsage::of_prompt(progress.total, progress.cached);
        self.start(events);
    }

    fn step(&mut self, _i: usize, step: Step, _so_far: &Timings, events: &mut Events) {
        self.start(events);
        for event in step.events() {
            let changes = self.blocks.take(event);
            self.tell(changes, events);
        }
    }

    fn end(&mut self, _i: usize, end: End, events: &mut Events) {
        self.start(events);
        for event in end.events {
            let changes = self.blocks.take(event);
            self.tell(changes, events);
        }
        let changes = self.blocks.finish(&end.reason);
        self.tell(changes, events);
        let message = &mut self.message;
        message.usage = MessageUsage::of(&end.timings);
        message.timings = self.with_timings.then(|| TimingsBody::from(&end.timings));
        message.stop_reason = Some(match end.reason {
            FinishReason::Length => "max_tokens",
            FinishReason::Context => "model_context_window_exceeded",
            FinishReason::Stop(word) => {
                message.stop_sequence = Some(word);
                "stop_sequence"
            }
            FinishReason::Cancelled => CANCELLED,
            _ if self.blocks.has_calls() => "tool_use",
            _ => "end_turn",
        });
        let delta = json!({ "stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence });
        let mut last = json!({ "type": "message_delta", "delta": delta, "usage": message.usage });
        if let Some(timings) = &message.timings {
            last["timings"] = json!(timings);
        }
        events.event("message_delta", &last);
        events.event("message_stop", &json!({ "type": "message_stop" }));
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.event("error", &AnthropicError::new(error, None));
    }

    fn finish(&mut self, _events: &mut Events) {}

    fn body(mut self) -> MessageBody {
        self.message.content = self.blocks.all.iter().map(ContentBlock::from).collect();
        self.message
    }
}
