//! A reply as it comes: the engine's events in; characters, reasoning, tool calls and timings out.
//! Owns decoding, the reply parser and the timings of replies that are cut off. Knows no wire format and no terminal.

use std::time::Instant;

use engine::{Event, FinishReason, Piece, PromptProgress, Timings};
use text::{Decoder, TokenId};

use crate::dialect::{ReplyEvent, ReplyParser};
use crate::open::LoadedModel;
use crate::prepare::ReplyPlan;

/// What comes of one event of the engine.
#[derive(Clone, Debug)]
pub enum Delta {
    /// The prompt is this far.
    Progress(PromptProgress),
    /// The tokens of an engine step.
    Step(Step),
    /// The reply is complete.
    End(Box<End>),
}

/// The tokens of an engine step, each with what it released.
#[derive(Clone, Debug)]
pub struct Step {
    /// In their order.
    pub tokens: Vec<Token>,
}

/// A token of a reply.
#[derive(Clone, Debug)]
pub struct Token {
    /// As it came.
    pub piece: Piece,
    /// What is certain since.
    pub events: Vec<ReplyEvent>,
}

/// Text of one token within a joined event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The text.
    pub text: String,
    /// The draft depth of its token; 0 without a draft.
    pub depth: usize,
}

/// The end of a reply.
#[derive(Clone, Debug)]
pub struct End {
    /// Why it ended.
    pub reason: FinishReason,
    /// What was held back until then.
    pub events: Vec<ReplyEvent>,
    /// Where the time went.
    pub timings: Timings,
    /// Tokens of reasoning, of those generated.
    pub reasoning_tokens: usize,
    /// The slot that served it.
    pub slot: usize,
    /// Of a request that asked for it.
    pub embedding: Option<Vec<f32>>,
}

impl Step {
    /// The tokens as they came.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.tokens.iter().map(|token| &token.piece)
    }

    /// The text that it released, without reasoning and tool calls.
    pub fn text(&self) -> String {
        let events = self.tokens.iter().flat_map(|token| &token.events);
        events.filter_map(|event| if let ReplyEvent::Text(text) = event { Some(text.as_str()) } else { None }).collect()
    }

    /// All events, neighbours of one kind joined.
    pub fn events(self) -> Vec<ReplyEvent> {
        let mut events: Vec<ReplyEvent> = Vec::new();
        for event in self.tokens.into_iter().flat_map(|token| token.events) {
            match (events.last_mut().and_then(|last| text_mut(last, &event)), text(&event)) {
                (Some(last), Some(more)) => last.push_str(more),
                _ => events.push(event),
            }
        }
        events
    }

    /// For each of [`Step::events`], the texts it is joined from, with their draft depths.
    pub fn spans(&self) -> Vec<Vec<Span>> {
        let mut spans: Vec<Vec<Span>> = Vec::new();
        let mut last: Option<ReplyEvent> = None;
        for token in &self.tokens {
            for event in &token.events {
                if last.as_mut().and_then(|last| text_mut(last, event)).is_none() {
                    spans.push(Vec::new());
                    last = Some(event.clone());
                }
                if let (Some(spans), Some(text)) = (spans.last_mut(), text(event)) {
                    spans.push(Span { text: text.to_owned(), depth: token.piece.draft.depth });
                }
            }
        }
        spans
    }
}

fn text(event: &ReplyEvent) -> Option<&str> {
    match event {
        ReplyEvent::Reasoning(text) | ReplyEvent::Text(text) | ReplyEvent::ToolCallArguments { delta: text, .. } => {
            Some(text)
        }
        ReplyEvent::ToolCallStart { .. } | ReplyEvent::ToolCallEnd { .. } => None,
    }
}

/// The text of `event`, if more of the same kind can be joined to it.
fn text_mut<'e>(event: &'e mut ReplyEvent, more: &ReplyEvent) -> Option<&'e mut String> {
    use ReplyEvent::{Reasoning, Text, ToolCallArguments};
    match (event, more) {
        (Reasoning(text), Reasoning(_)) | (Text(text), Text(_)) => Some(text),
        (ToolCallArguments { index, delta }, ToolCallArguments { index: same, .. }) if index == same => Some(delta),
        _ => None,
    }
}

/// Takes the events of one reply.
#[derive(Debug)]
pub struct Reply {
    decoder: Decoder,
    parser: Option<ReplyParser>,
    after_call: Option<&'static str>,
    reasoning: ReasoningTokens,
    clock: Clock,
}

impl Reply {
    /// A reply of `model` that is read by `plan`; without one everything is text.
    pub fn new(model: &LoadedModel, plan: Option<ReplyPlan>) -> Self {
        let open = plan.as_ref().is_some_and(|plan| plan.options.starts_in_reasoning);
        Self {
            decoder: Decoder::new(),
            reasoning: ReasoningTokens { open, n: 0, tags: model.dialect.reasoning_tokens() },
            after_call: plan.as_ref().and_then(|plan| plan.after_call),
            parser: plan.map(|plan| model.dialect.parser(plan.options)),
            clock: Clock::new(),
        }
    }

    /// The timings so far.
    pub fn timings(&self) -> &Timings {
        &self.clock.timings
    }

    /// What comes of `event`.
    ///
    /// # Errors
    /// Why the engine could not go on, in its words.
    pub fn take(&mut self, event: Event) -> Result<Delta, String> {
        match event {
            Event::Prompt(progress) => {
                self.clock.prompt(progress);
                Ok(Delta::Progress(progress))
            }
            Event::Tokens(pieces) => {
                self.clock.tokens(&pieces);
                Ok(Delta::Step(Step { tokens: pieces.into_iter().map(|piece| self.token(piece)).collect() }))
            }
            Event::Finished(summary) => {
                let events = self.rest(&summary.rest);
                let reason = match summary.reason {
                    // Nobody but the form of the reply asked for this end.
                    FinishReason::Stop(word) if self.after_call == Some(word.as_str()) => FinishReason::Complete,
                    reason => reason,
                };
                Ok(Delta::End(Box::new(End {
                    reason,
                    events,
                    timings: summary.timings,
                    reasoning_tokens: self.reasoning.n,
                    slot: summary.slot,
                    embedding: summary.embedding,
                })))
            }
            Event::Failed(why) => Err(why),
        }
    }

    /// What was held back, when the reply is cut off here or ends with `rest`.
    pub fn rest(&mut self, rest: &[u8]) -> Vec<ReplyEvent> {
        let rest = self.decoder.push(rest) + &self.decoder.finish();
        let mut events = self.parse(rest);
        if let Some(mut parser) = self.parser.take() {
            events.extend(parser.finish());
        }
        events
    }

    fn token(&mut self, piece: Piece) -> Token {
        self.reasoning.see(piece.token);
        let text = self.decoder.push(&piece.bytes);
        Token { events: self.parse(text), piece }
    }

    fn parse(&mut self, text: String) -> Vec<ReplyEvent> {
        match &mut self.parser {
            _ if text.is_empty() => Vec::new(),
            Some(parser) => parser.push(&text),
            None => vec![ReplyEvent::Text(text)],
        }
    }
}

/// Counts the tokens of reasoning.
#[derive(Debug)]
struct ReasoningTokens {
    open: bool,
    n: usize,
    tags: Option<(TokenId, TokenId)>,
}

impl ReasoningTokens {
    fn see(&mut self, token: TokenId) {
        self.n += usize::from(self.open);
        match self.tags {
            Some((_, end)) if token == end => self.open = false,
            Some((start, _)) if token == start => self.open = true,
            _ => {}
        }
    }
}

/// The timings of a reply so far, by what can be seen here: the engine gives its own only at the end.
#[derive(Debug)]
struct Clock {
    timings: Timings,
    start: Instant,
    first: Option<Instant>,
}

impl Clock {
    fn new() -> Self {
        Self { timings: Timings::default(), start: Instant::now(), first: None }
    }

    fn prompt(&mut self, progress: PromptProgress) {
        self.timings.prompt_tokens = progress.done;
        self.timings.cached_tokens = progress.cached;
        if progress.done > progress.cached {
            self.timings.prompt_ms = millis(self.start.elapsed());
        }
    }

    fn tokens(&mut self, pieces: &[Piece]) {
        let Some(at) = pieces.last().map(|piece| piece.at) else { return };
        let t = &mut self.timings;
        match self.first {
            Some(first) => {
                t.steps += 1;
                t.generated_ms = millis(at - first);
            }
            None => {
                self.first = Some(at);
                t.prompt_ms = millis(at - self.start);
            }
        }
        t.count_draft_of(pieces);
        t.generated_tokens += pieces.len();
    }
}

fn millis(d: std::time::Duration) -> f64 {
    d.as_secs_f64() * 1e3
}
