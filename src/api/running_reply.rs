//! A reply on its way to a client: the engine's events at a pace that the socket can follow, with time limits and metrics.
//! Knows no wire format. Dropping a reply cancels it.

use std::sync::Arc;
use std::time::Duration;

use engine::{Event, Generation, GenerationId, PromptProgress, Timings};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use session::{Delta, Reply, ReplyPlan};
use tokio::sync::watch;

use crate::error::ApiError;
use crate::metrics::Running;
use crate::pace::Pace;
use crate::registry::Served;
use crate::state::{AppState, Course, reached};

/// A part of a reply, or why there is no more of it.
pub type Part = Result<Delta, ApiError>;

/// A reply that is being generated.
#[derive(Debug)]
pub struct RunningReply {
    generation: Generation,
    served: Arc<Served>,
    /// The key that it was asked for with.
    key: Option<usize>,
    reply: Reply,
    course: watch::Receiver<Course>,
    deadline: Option<(tokio::time::Instant, Duration)>,
    running: Running,
    pace: Pace,
    /// What the prompt's first progress waits for: to tell of the prompt before anything of it is computed.
    first: Option<Event>,
    begun: bool,
    ended: bool,
}

impl RunningReply {
    pub(crate) fn new(
        state: &AppState,
        served: Arc<Served>,
        key: Option<usize>,
        generation: Generation,
        plan: Option<ReplyPlan>,
    ) -> Self {
        Self {
            generation,
            reply: Reply::new(&served, plan),
            course: state.watch_course(),
            deadline: state.request_timeout().map(|limit| (tokio::time::Instant::now() + limit, limit)),
            running: state.metrics().running(&served.id),
            pace: Pace::default(),
            first: None,
            begun: false,
            ended: false,
            served,
            key,
        }
    }

    /// Who generates it.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// The number of the key that it was asked for with.
    pub(crate) fn key(&self) -> Option<usize> {
        self.key
    }

    /// What the engine knows it by.
    pub(crate) fn id(&self) -> GenerationId {
        self.generation.id()
    }

    /// The timings so far.
    pub fn timings(&self) -> &Timings {
        self.reply.timings()
    }

    /// Waits for the next part; `None` after the end.
    pub async fn next(&mut self) -> Option<Part> {
        if let Some(event) = self.first.take() {
            return Some(self.take(event));
        }
        while !self.ended {
            let event = tokio::select! {
                event = self.pace.next(&mut self.generation) => event.map(Ok),
                error = overdue(self.deadline) => Some(Err(error)),
                () = reached(&mut self.course, Course::Cut) => Some(Err(ApiError::shutdown())),
            };
            match event {
                Some(Ok(event)) => {
                    let event = self.begin(event);
                    return Some(self.take(event));
                }
                Some(Err(error)) => return Some(self.fail(error)),
                None => self.ended = true,
            }
        }
        None
    }

    /// The prompt as it was when its computation began, where `event` is the first that tells of it.
    fn begin(&mut self, event: Event) -> Event {
        match event {
            Event::Prompt(progress) if !std::mem::replace(&mut self.begun, true) => {
                self.first = Some(event);
                Event::Prompt(PromptProgress { done: progress.cached, ..progress })
            }
            event => event,
        }
    }

    fn take(&mut self, event: Event) -> Part {
        if let Event::Finished(summary) = &event {
            self.ended = true;
            self.running.finished(summary);
        }
        match self.reply.take(event) {
            Ok(Delta::Step(step)) => {
                if let Some(at) = step.pieces().last().map(|piece| piece.at) {
                    self.pace.tokens(at);
                    self.running.tokens(step.tokens.len(), at, self.reply.timings());
                }
                Ok(Delta::Step(step))
            }
            Ok(delta) => Ok(delta),
            Err(why) => self.fail(ApiError::server(why)),
        }
    }

    fn fail(&mut self, error: ApiError) -> Part {
        self.ended = true;
        self.running.failed();
        Err(error)
    }
}

async fn overdue(deadline: Option<(tokio::time::Instant, Duration)>) -> ApiError {
    match deadline {
        Some((at, limit)) => {
            tokio::time::sleep_until(at).await;
            ApiError::timeout(limit.as_secs())
        }
        None => std::future::pending().await,
    }
}

/// Several replies that run at the same time, each with its number.
pub struct RunningReplies {
    waiting: FuturesUnordered<futures_util::future::BoxFuture<'static, (usize, Option<Part>, RunningReply)>>,
}

impl RunningReplies {
    /// Numbers them from 0.
    pub fn new(replies: Vec<RunningReply>) -> Self {
        let waiting = FuturesUnordered::new();
        for (i, reply) in replies.into_iter().enumerate() {
            waiting.push(next_of(i, reply));
        }
        Self { waiting }
    }

    /// The next part of any of them with its number and the timings of its reply so far; `None` when all are complete.
    pub async fn next(&mut self) -> Option<(usize, Part, Timings)> {
        while let Some((i, delta, reply)) = self.waiting.next().await {
            let Some(delta) = delta else { continue };
            let timings = reply.timings().clone();
            self.waiting.push(next_of(i, reply));
            return Some((i, delta, timings));
        }
        None
    }
}

impl std::fmt::Debug for RunningReplies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningReplies").field("n_left", &self.waiting.len()).finish()
    }
}

fn next_of(
    i: usize,
    mut reply: RunningReply,
) -> futures_util::future::BoxFuture<'static, (usize, Option<Part>, RunningReply)> {
    Box::pin(async move {
        let delta = reply.next().await;
        (i, delta, reply)
    })
}
