//! A reply in Ollama's form, whole or as lines of JSON. `/api/chat` and `/api/generate` differ in where the text stands.

use std::time::{Duration, Instant};

use engine::{FinishReason, Timings};
use jiff::Timestamp;
use serde_json::Value;
use session::{End, Step};

use super::error::OllamaError;
use super::types::{Counts, OllamaCall, OllamaFunction, OllamaMessage, OllamaReply};
use crate::blocks::{Block, Blocks, Change, Kind};
use crate::error::ApiError;
use crate::registry::Served;
use crate::respond::Wire;
use crate::stream::{Events, Framing};
use crate::wire::{CANCELLED, Logprob};

/// When a request came, and when its model was there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
    load: Duration,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), load: Duration::ZERO }
    }

    /// The model is there.
    pub(super) fn loaded(&mut self) {
        self.load = self.start.elapsed();
    }

    /// Nanoseconds from the start, and until the model was there.
    pub(super) fn durations(&self) -> (u64, u64) {
        (nanos(self.start.elapsed()), nanos(self.load))
    }

    fn counts(&self, timings: &Timings) -> Counts {
        let (total_duration, load_duration) = self.durations();
        let of_ms = |ms: f64| (ms * 1e6) as u64;
        Counts {
            total_duration,
            load_duration,
            prompt_eval_count: timings.prompt_tokens,
            prompt_eval_duration: of_ms(timings.prompt_ms),
            eval_count: timings.generated_tokens,
            eval_duration: of_ms(timings.generated_ms),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A time as Ollama writes it.
pub(super) fn time_of(seconds: u64, nanoseconds: u32) -> String {
    let time = i64::try_from(seconds).ok().and_then(|s| Timestamp::new(s, nanoseconds as i32).ok());
    time.unwrap_or(Timestamp::MAX).to_string()
}

fn now() -> String {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    time_of(now.as_secs(), now.subsec_nanos())
}

/// Which of the two it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Shape {
    Chat,
    Generate,
}

/// A reply that says nothing: the model is there, or is not.
pub(super) fn silent(shape: Shape, model: &str, reason: &'static str) -> OllamaReply {
    OllamaReply { done: true, done_reason: Some(reason), ..said(shape, model, String::new(), None, Vec::new()) }
}

fn said(shape: Shape, model: &str, text: String, thinking: Option<String>, tool_calls: Vec<OllamaCall>) -> OllamaReply {
    let reply = OllamaReply { model: model.to_owned(), created_at: now(), ..OllamaReply::default() };
    match shape {
        Shape::Chat => {
            let message = OllamaMessage { role: "assistant", content: text, thinking, tool_calls };
            OllamaReply { message: Some(message), ..reply }
        }
        Shape::Generate => OllamaReply { response: Some(text), thinking, ..reply },
    }
}

/// The reply as it grows.
pub(super) struct Reply {
    shape: Shape,
    /// As the request names it.
    model: String,
    served: std::sync::Arc<Served>,
    clock: Clock,
    blocks: Blocks,
    /// Tokens of prompt and reply, where the client is to have them.
    context: Option<Vec<u32>>,
    logprobs: Vec<Logprob>,
    /// The last line, without what was said.
    last: OllamaReply,
}

impl Reply {
    /// `context`: the prompt's tokens, where the client is to have them and the reply's.
    pub(super) fn new(
        shape: Shape,
        model: String,
        served: std::sync::Arc<Served>,
        clock: Clock,
        context: Option<Vec<u32>>,
    ) -> Self {
        let blocks = Blocks::new(|_| "call_");
        let last = silent(shape, &model, CANCELLED);
        Self { shape, model, served, clock, blocks, context, logprobs: Vec::new(), last }
    }

    /// Lines for what is new.
    fn lines(&self, changes: Vec<Change>) -> Vec<OllamaReply> {
        let line = |change| {
            let (text, thinking, calls) = match change {
                Change::More(i, text) => match self.blocks.all[i].kind {
                    Kind::Text => (text, None, Vec::new()),
                    Kind::Reasoning => (String::new(), Some(text), Vec::new()),
                    Kind::Call(_) => return None,
                },
                Change::Close(i) => (String::new(), None, vec![self.call(i)?]),
                Change::Open(_) => return None,
            };
            Some(said(self.shape, &self.model, text, thinking, calls))
        };
        changes.into_iter().filter_map(line).collect()
    }

    /// The call that block `i` is, once it is whole.
    fn call(&self, i: usize) -> Option<OllamaCall> {
        let is_call = |block: &&Block| matches!(block.kind, Kind::Call(_));
        let block = &self.blocks.all[i];
        let Kind::Call(name) = &block.kind else { return None };
        // One that was cut off has no arguments that a tool could take.
        let arguments = serde_json::from_str(&block.text).ok().filter(Value::is_object)?;
        let index = self.blocks.all[..i].iter().filter(is_call).count();
        Some(OllamaCall { id: block.id.clone(), function: OllamaFunction { index, name: name.clone(), arguments } })
    }

    fn texts(&self, kind: &Kind) -> String {
        self.blocks.all.iter().filter(|block| block.kind == *kind).map(|block| block.text.as_str()).collect()
    }
}

impl Wire for Reply {
    type Body = OllamaReply;

    const FRAMING: Framing = Framing::Lines;

    /// White space before the next line's JSON; an empty line would be none.
    const ALIVE: &'static [u8] = b" ";

    fn step(&mut self, _i: usize, step: Step, _so_far: &Timings, events: &mut Events) {
        if let Some(context) = &mut self.context {
            context.extend(step.pieces().map(|piece| piece.token.0));
        }
        let mut logprobs: Vec<Logprob> =
            step.pieces().filter_map(|piece| Logprob::of(piece, self.served.vocab())).collect();
        let changes = step.events().into_iter().flat_map(|event| self.blocks.take(event)).collect();
        if !events.are_read() {
            self.logprobs.append(&mut logprobs);
            return;
        }
        let mut lines = self.lines(changes);
        if lines.is_empty() && !logprobs.is_empty() {
            lines.push(said(self.shape, &self.model, String::new(), None, Vec::new()));
        }
        for mut line in lines {
            line.logprobs = std::mem::take(&mut logprobs);
            events.data(&line);
        }
    }

    fn end(&mut self, _i: usize, end: End, events: &mut Events) {
        let mut changes: Vec<Change> = end.events.into_iter().flat_map(|event| self.blocks.take(event)).collect();
        changes.extend(self.blocks.finish(&end.reason));
        if events.are_read() {
            self.lines(changes).iter().for_each(|line| events.data(line));
        }
        let reason = match end.reason {
            FinishReason::Length | FinishReason::Context => "length",
            FinishReason::Cancelled => CANCELLED,
            FinishReason::EndOfGeneration(_) | FinishReason::Stop(_) | FinishReason::Complete => "stop",
        };
        let counts = Some(self.clock.counts(&end.timings));
        let context = self.context.take();
        self.last = OllamaReply { context, counts, ..silent(self.shape, &self.model, reason) };
        events.data(&self.last);
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.data(&OllamaError::new(error));
    }

    fn finish(&mut self, _events: &mut Events) {}

    fn body(self) -> OllamaReply {
        let thinking = Some(self.texts(&Kind::Reasoning)).filter(|text| !text.is_empty());
        let calls = (0..self.blocks.all.len()).filter_map(|i| self.call(i)).collect();
        let OllamaReply { message, response, thinking, .. } =
            said(self.shape, &self.model, self.texts(&Kind::Text), thinking, calls);
        OllamaReply { message, response, thinking, logprobs: self.logprobs, ..self.last }
    }
}
