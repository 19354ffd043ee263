//! The events of a response, and the response that they build up.

use std::sync::Arc;

use engine::{FinishReason, PromptProgress, Scope, Timings};
use serde_json::{Value, json};

use super::store::Item;
use super::tools::{Origin, ToolMap, custom_input};
use super::types::{
    CALL_ITEM, Incomplete, InputDetails, OutputDetails, OutputItem, Part, ResponseBody, ResponseError, ResponseUsage,
    ResponsesRequest,
};
use crate::blocks::{Block, Blocks, Change, Kind};
use crate::error::ApiError;
use crate::ids;
use crate::params::Wanted;
use crate::registry::Served;
use crate::respond::Wire;
use crate::state::AppState;
use crate::stream::Events;
use crate::wire::{Logprob, Progress, TimingsBody};
use session::dialect::ReplyEvent;
use session::{End, Step};

/// The response as it grows.
pub(super) struct Reply {
    served: Arc<Served>,
    response: ResponseBody,
    tools: ToolMap,
    blocks: Blocks,
    /// Of the text that is open.
    logprobs: Vec<Logprob>,
    /// Those of the next part of it.
    new_logprobs: Vec<Logprob>,
    /// With the next part of the reply.
    timings: Option<TimingsBody>,
    wanted: Wanted,
    n_events: u64,
    keeping: Option<Keeping>,
}

/// Where the response is kept in the end, and after which conversation.
pub(super) struct Keeping {
    pub(super) state: AppState,
    pub(super) scope: Scope,
    pub(super) input: Vec<Arc<Item>>,
}

impl Reply {
    /// `keeping`: how it is kept, if it is.
    pub(super) fn new(
        served: &Arc<Served>,
        body: ResponsesRequest,
        tools: ToolMap,
        wanted: Wanted,
        keeping: Option<Keeping>,
    ) -> Self {
        let effort = body.reasoning.as_ref().and_then(|r| r.effort.clone());
        let response = ResponseBody {
            id: ids::new("resp_"),
            object: "response",
            created_at: ids::now(),
            status: "in_progress",
            background: false,
            error: None,
            incomplete_details: None,
            max_output_tokens: wanted.options.max_tokens,
            model: served.id.clone(),
            output: Vec::new(),
            parallel_tool_calls: body.parallel_tool_calls.unwrap_or(true),
            previous_response_id: body.previous_response_id.clone(),
            reasoning: json!({ "effort": effort, "summary": null }),
            store: keeping.is_some(),
            temperature: wanted.options.sampling.temperature,
            text: body.text_given(),
            tool_choice: body.tool_choice.unwrap_or_else(|| json!("auto")),
            tools: body.tools.unwrap_or_default(),
            top_logprobs: wanted.options.logprobs.unwrap_or(0),
            top_p: wanted.options.sampling.top_p,
            truncation: "disabled",
            usage: None,
            instructions: body.instructions,
            user: body.user,
            metadata: body.metadata.unwrap_or_default(),
            warnings: tools.left_out.clone(),
            timings: None,
        };
        let prefix = |kind: &Kind| match kind {
            Kind::Reasoning => "rs_",
            Kind::Text => "msg_",
            Kind::Call(_) => CALL_ITEM,
        };
        Self {
            served: Arc::clone(served),
            response,
            tools,
            blocks: Blocks::new(prefix),
            logprobs: Vec::new(),
            new_logprobs: Vec::new(),
            timings: None,
            wanted,
            n_events: 0,
            keeping,
        }
    }

    /// Keeps the response as it ended.
    fn keep(&mut self) {
        let Some(Keeping { state, scope, input }) = self.keeping.take() else { return };
        let response = &self.response;
        // Our own types have a JSON form.
        let output: Vec<Value> = response.output.iter().filter_map(|item| serde_json::to_value(item).ok()).collect();
        let body = serde_json::to_string(response).unwrap_or_default();
        if !state.responses().keep(&response.id, scope, body, input, &output) {
            tracing::info!(id = response.id, "there is no room to keep the response");
            self.response.store = false;
        }
    }

    fn event(&mut self, name: &str, mut data: Value, events: &mut Events) {
        data["type"] = name.into();
        data["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        events.event(name, &data);
    }

    /// An event that shows the whole response.
    fn show(&mut self, name: &str, events: &mut Events) {
        if events.are_read() {
            let mut data = json!({ "response": self.response });
            if let Some(timings) = &self.response.timings {
                data["timings"] = json!(timings);
            }
            self.event(name, data, events);
        }
    }

    fn tell(&mut self, changes: Vec<Change>, status: &'static str, events: &mut Events) {
        for change in changes {
            match change {
                Change::Open(i) => self.open(i, events),
                Change::More(i, text) => self.more(i, text, events),
                Change::Close(i) => self.close(i, status, events),
            }
        }
    }

    fn open(&mut self, i: usize, events: &mut Events) {
        if !events.are_read() {
            return;
        }
        let block = self.blocks.all[i].clone();
        let added = json!({ "output_index": i, "item": OutputItem::begun(&block, &self.tools) });
        self.event("response.output_item.added", added, events);
        if let Some(part) = Part::of(&block, Vec::new()) {
            let data = json!({ "item_id": block.id, "output_index": i, "content_index": 0, "part": part });
            self.event("response.content_part.added", data, events);
        }
    }

    fn more(&mut self, i: usize, text: String, events: &mut Events) {
        let logprobs = std::mem::take(&mut self.new_logprobs);
        if events.are_read() {
            let block = &self.blocks.all[i];
            let mut data = json!({ "item_id": block.id, "output_index": i, "delta": text });
            let name = match block.kind {
                Kind::Text => {
                    data["content_index"] = 0.into();
                    data["logprobs"] = json!(logprobs);
                    "response.output_text.delta"
                }
                Kind::Reasoning => {
                    data["content_index"] = 0.into();
                    "response.reasoning_text.delta"
                }
                // Its text lies in the JSON of the arguments, and comes whole.
                Kind::Call(ref name) if self.tools.origin(name) == Origin::Custom => return,
                Kind::Call(_) => "response.function_call_arguments.delta",
            };
            if let Some(timings) = &self.timings {
                data["timings"] = json!(timings);
            }
            self.event(name, data, events);
        }
        self.logprobs.extend(logprobs);
    }

    fn close(&mut self, i: usize, status: &'static str, events: &mut Events) {
        let block = self.blocks.all[i].clone();
        let logprobs = std::mem::take(&mut self.logprobs);
        let item = OutputItem::ended(&block, &self.tools, status, logprobs.clone());
        if events.are_read() {
            let Block { id, kind, text } = &block;
            match kind {
                Kind::Text => {
                    let data = json!({ "item_id": id, "output_index": i, "content_index": 0, "text": text, "logprobs": logprobs });
                    self.event("response.output_text.done", data, events);
                }
                Kind::Reasoning => {
                    let data = json!({ "item_id": id, "output_index": i, "content_index": 0, "text": text });
                    self.event("response.reasoning_text.done", data, events);
                }
                Kind::Call(called) => match self.tools.origin(called) {
                    Origin::Custom => {
                        let input = custom_input(text);
                        let data = json!({ "item_id": id, "output_index": i, "delta": input });
                        self.event("response.custom_tool_call_input.delta", data, events);
                        let data = json!({ "item_id": id, "output_index": i, "input": input });
                        self.event("response.custom_tool_call_input.done", data, events);
                    }
                    Origin::Function { name, .. } => {
                        let data = json!({ "item_id": id, "output_index": i, "name": name, "arguments": text });
                        self.event("response.function_call_arguments.done", data, events);
                    }
                },
            }
            if let Some(part) = Part::of(&block, logprobs) {
                let data = json!({ "item_id": id, "output_index": i, "content_index": 0, "part": part });
                self.event("response.content_part.done", data, events);
            }
            self.event("response.output_item.done", json!({ "output_index": i, "item": item }), events);
        }
        self.response.output.push(item);
    }
}

impl Wire for Reply {
    type Body = ResponseBody;

    fn id(&self) -> Option<&str> {
        Some(&self.response.id)
    }

    fn begin(&mut self, events: &mut Events) {
        self.show("response.created", events);
        self.show("response.in_progress", events);
    }

    fn progress(&mut self, _i: usize, progress: PromptProgress, so_far: &Timings, events: &mut Events) {
        if self.wanted.return_progress && events.are_read() {
            let mut data = json!({ "response": self.response, "prompt_progress": Progress::from(progress) });
            if let Some(timings) = self.wanted.timings_so_far(so_far) {
                data["timings"] = json!(timings);
            }
            self.event("response.in_progress", data, events);
        }
    }

    fn step(&mut self, _i: usize, step: Step, so_far: &Timings, events: &mut Events) {
        self.timings = self.wanted.timings_so_far(so_far);
        // Those of a text's own tokens; thinking, tags and calls have theirs for themselves.
        let is_text = |event: &ReplyEvent| matches!(event, ReplyEvent::Text(_));
        for token in step.tokens.iter().filter(|token| token.events.iter().any(is_text)) {
            self.new_logprobs.extend(Logprob::of(&token.piece, self.served.vocab()));
        }
        for event in step.events() {
            let changes = self.blocks.take(event);
            self.tell(changes, "completed", events);
        }
    }

    fn end(&mut self, _i: usize, end: End, events: &mut Events) {
        let cut = matches!(end.reason, FinishReason::Length | FinishReason::Context);
        let cancelled = end.reason == FinishReason::Cancelled;
        // Items know no other word for what is cut off.
        let status = if cut || cancelled { "incomplete" } else { "completed" };
        for event in end.events {
            let changes = self.blocks.take(event);
            self.tell(changes, status, events);
        }
        let changes = self.blocks.finish(&end.reason);
        self.tell(changes, status, events);
        let t = &end.timings;
        let response = &mut self.response;
        response.status = if cancelled { "cancelled" } else { status };
        response.incomplete_details = cut.then_some(Incomplete { reason: "max_output_tokens" });
        response.usage = Some(ResponseUsage {
            input_tokens: t.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: t.cached_tokens },
            output_tokens: t.generated_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: end.reasoning_tokens },
            total_tokens: t.prompt_tokens + t.generated_tokens,
        });
        response.timings = Some(self.wanted.timings_of(t));
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        self.response.status = "failed";
        let code = error.code.unwrap_or(error.kind).to_owned();
        self.response.error = Some(ResponseError { code, message: error.message.clone() });
        self.show("response.failed", events);
    }

    fn finish(&mut self, events: &mut Events) {
        self.keep();
        let name = match self.response.status {
            // The stream's events have no word of their own for the second.
            "incomplete" | "cancelled" => "response.incomplete",
            _ => "response.completed",
        };
        self.show(name, events);
    }

    fn body(self) -> ResponseBody {
        self.response
    }
}
