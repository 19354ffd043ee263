//! One answer on its way: engine events in, characters, reasoning and tool calls out, with time limits and figures.
//! Owns decoding and the reply parser. Knows no wire format. Dropping an answer cancels it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Event, FinishReason, Generation, Piece, PromptProgress, Timings};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use text::reply::{ReplyEvent, ReplyOptions, ReplyParser};
use text::{Decoder, TokenId};
use tokio::sync::watch;

use crate::error::ApiError;
use crate::metrics::Running;
use crate::pace::Pace;
use crate::registry::Served;
use crate::state::{AppState, Course, reached};

/// A part of an answer.
#[derive(Clone, Debug)]
pub enum Delta {
    /// So many of the prompt's tokens are computed.
    Progress(PromptProgress),
    /// What one cycle brought.
    Step(Step),
    /// The answer is complete. The last delta.
    End(End),
    /// There is no more of it. The last delta.
    Failed(ApiError),
}

/// What one cycle of the engine brought.
#[derive(Clone, Debug)]
pub struct Step {
    /// The tokens, in their order.
    pub tokens: Vec<Token>,
}

/// A token and what it made certain of the reply.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token.
    pub piece: Piece,
    /// None while a tag or a character is incomplete; after that all that was held back.
    pub events: Vec<ReplyEvent>,
}

/// A part of an event's text and the depth at which its token was drafted; 0: it was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The text.
    pub text: String,
    /// The depth.
    pub depth: usize,
}

impl Step {
    /// Its tokens as the engine gave them.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.tokens.iter().map(|token| &token.piece)
    }

    /// What is certain of the reply by now; neighbours of one kind are joined.
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

    /// For each of [`Step::events`] the parts of its text.
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

/// The text of an event.
fn text(event: &ReplyEvent) -> Option<&str> {
    match event {
        ReplyEvent::Reasoning(text) | ReplyEvent::Text(text) | ReplyEvent::ToolCallArguments { delta: text, .. } => {
            Some(text)
        }
        ReplyEvent::ToolCallStart { .. } | ReplyEvent::ToolCallEnd { .. } => None,
    }
}

/// Where the text of `more` goes on, if the two are of one kind.
fn text_mut<'e>(event: &'e mut ReplyEvent, more: &ReplyEvent) -> Option<&'e mut String> {
    use ReplyEvent::{Reasoning, Text, ToolCallArguments};
    match (event, more) {
        (Reasoning(text), Reasoning(_)) | (Text(text), Text(_)) => Some(text),
        (ToolCallArguments { index, delta }, ToolCallArguments { index: same, .. }) if index == same => Some(delta),
        _ => None,
    }
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub struct End {
    /// Why.
    pub reason: FinishReason,
    /// The rest of the reply.
    pub events: Vec<ReplyEvent>,
    /// The engine's figures.
    pub timings: Timings,
    /// Generated tokens that were thinking.
    pub reasoning_tokens: usize,
    /// The slot that served it.
    pub slot: usize,
    /// Of a request that asked for it.
    pub embedding: Option<Vec<f32>>,
}

/// An answer that is being generated.
#[derive(Debug)]
pub struct Answer {
    generation: Generation,
    /// Keeps the model loaded.
    served: Arc<Served>,
    decoder: Decoder,
    parser: Option<ReplyParser>,
    thinks: Thinks,
    course: watch::Receiver<Course>,
    deadline: Option<(tokio::time::Instant, Duration)>,
    running: Running,
    clock: Clock,
    pace: Pace,
    ended: bool,
}

impl Answer {
    pub(crate) fn new(
        state: &AppState,
        served: Arc<Served>,
        generation: Generation,
        reply: Option<ReplyOptions>,
    ) -> Self {
        let open = reply.as_ref().is_some_and(|o| o.starts_in_reasoning);
        let vocab = served.model.vocab();
        let thinks = Thinks { now: open, n: 0, start: vocab.id("<think>"), end: vocab.id("</think>") };
        Self {
            generation,
            decoder: Decoder::new(),
            parser: reply.map(ReplyParser::new),
            thinks,
            course: state.watch_course(),
            deadline: state.request_timeout().map(|limit| (tokio::time::Instant::now() + limit, limit)),
            running: state.metrics().running(),
            clock: Clock::new(),
            pace: Pace::default(),
            ended: false,
            served,
        }
    }

    /// The model that answers.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// The figures so far.
    pub fn timings(&self) -> &Timings {
        &self.clock.timings
    }

    /// The next part; `None` after the last. Parts that come in quick succession may wait for each other ([`Pace`]).
    pub async fn next(&mut self) -> Option<Delta> {
        while !self.ended {
            let event = tokio::select! {
                event = self.pace.next(&mut self.generation) => event.map(Ok),
                error = overdue(self.deadline) => Some(Err(error)),
                () = reached(&mut self.course, Course::Cut) => Some(Err(ApiError::shutdown())),
            };
            let event = match event {
                Some(Err(error)) => return Some(self.fail(error)),
                Some(Ok(event)) => Some(event),
                None => None,
            };
            match event {
                Some(Event::Prompt(progress)) => {
                    self.clock.prompt(progress);
                    return Some(Delta::Progress(progress));
                }
                Some(Event::Tokens(pieces)) => return Some(Delta::Step(self.step(pieces))),
                Some(Event::Finished(summary)) => {
                    self.ended = true;
                    let rest = self.decoder.push(&summary.rest) + &self.decoder.finish();
                    let mut events = self.parse(rest);
                    if let Some(parser) = &mut self.parser {
                        events.extend(parser.finish());
                    }
                    self.running.finished(&summary);
                    let reasoning_tokens = self.thinks.n;
                    return Some(Delta::End(End {
                        reason: summary.reason,
                        events,
                        timings: summary.timings,
                        reasoning_tokens,
                        slot: summary.slot,
                        embedding: summary.embedding,
                    }));
                }
                Some(Event::Failed(why)) => return Some(self.fail(ApiError::server(why))),
                None => self.ended = true,
            }
        }
        None
    }

    fn step(&mut self, pieces: Vec<Piece>) -> Step {
        if let Some(at) = pieces.last().map(|piece| piece.at) {
            self.pace.tokens(at);
            self.clock.tokens(&pieces, at);
            self.running.tokens(pieces.len(), at, &self.clock.timings);
        }
        let token = |piece: Piece| {
            self.thinks.see(piece.token);
            let text = self.decoder.push(&piece.bytes);
            Token { events: self.parse(text), piece }
        };
        Step { tokens: pieces.into_iter().map(token).collect() }
    }

    fn parse(&mut self, text: String) -> Vec<ReplyEvent> {
        match &mut self.parser {
            _ if text.is_empty() => Vec::new(),
            Some(parser) => parser.push(&text),
            None => vec![ReplyEvent::Text(text)],
        }
    }

    fn fail(&mut self, error: ApiError) -> Delta {
        self.ended = true;
        self.running.failed();
        Delta::Failed(error)
    }
}

/// Never, without a deadline.
async fn overdue(deadline: Option<(tokio::time::Instant, Duration)>) -> ApiError {
    match deadline {
        Some((at, limit)) => {
            tokio::time::sleep_until(at).await;
            ApiError::timeout(limit.as_secs())
        }
        None => std::future::pending().await,
    }
}

/// Several answers that run at the same time, each with its number.
pub struct Answers {
    waiting: FuturesUnordered<futures_util::future::BoxFuture<'static, (usize, Option<Delta>, Answer)>>,
}

impl Answers {
    /// Numbers them from 0.
    pub fn new(answers: Vec<Answer>) -> Self {
        let waiting = FuturesUnordered::new();
        for (i, answer) in answers.into_iter().enumerate() {
            waiting.push(next_of(i, answer));
        }
        Self { waiting }
    }

    /// The next part of any of them with its number and the figures of its answer so far; `None` when all are complete.
    pub async fn next(&mut self) -> Option<(usize, Delta, Timings)> {
        while let Some((i, delta, answer)) = self.waiting.next().await {
            let Some(delta) = delta else { continue };
            let timings = answer.timings().clone();
            self.waiting.push(next_of(i, answer));
            return Some((i, delta, timings));
        }
        None
    }
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answers").field("n_left", &self.waiting.len()).finish()
    }
}

fn next_of(i: usize, mut answer: Answer) -> futures_util::future::BoxFuture<'static, (usize, Option<Delta>, Answer)> {
    Box::pin(async move {
        let delta = answer.next().await;
        (i, delta, answer)
    })
}

/// Which tokens are thinking.
#[derive(Debug)]
struct Thinks {
    now: bool,
    n: usize,
    start: Option<TokenId>,
    end: Option<TokenId>,
}

impl Thinks {
    fn see(&mut self, token: TokenId) {
        self.n += usize::from(self.now);
        if Some(token) == self.end {
            self.now = false;
        } else if Some(token) == self.start {
            self.now = true;
        }
    }
}

/// Our own figures while the answer runs: the engine gives its own only at the end.
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
        self.timings.prompt_tokens = progress.total;
        self.timings.cached_tokens = progress.cached;
    }

    /// Tokens of one cycle, which was over `at` this time.
    fn tokens(&mut self, pieces: &[Piece], at: Instant) {
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

fn millis(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}
