//! From replies to a response: the one reader of replies, for every family of endpoints, whole or in a stream.
//! Owns the order in which a wire format is told what happens. Knows no wire format.

use axum::response::{IntoResponse, Response};
use engine::{PromptProgress, Timings};
use futures_util::FutureExt;
use serde::Serialize;
use session::{Delta, End, Step};

use crate::error::ApiError;
use crate::json::Output;
use crate::running_reply::{RunningReplies, RunningReply};
use crate::state::AppState;
use crate::stream::{self, Events, Framing};

/// A wire format while it writes one response: it is told of the replies' parts by their number, writes events of them,
/// and keeps what its whole body needs.
pub(crate) trait Wire: Send + Sized + 'static {
    /// The response that is no stream.
    type Body: Serialize + Send;

    /// How a stream's events are told apart.
    const FRAMING: Framing = Framing::Events;

    /// Keeps a silent stream alive.
    const ALIVE: &'static [u8] = b": keep-alive\n\n";

    /// The response's id, where clients are told one.
    fn id(&self) -> Option<&str> {
        None
    }

    /// Before anything else.
    fn begin(&mut self, _events: &mut Events) {}

    /// So far is the prompt of reply `i`, whose timings are `so_far`; the first time nothing of it is computed.
    fn progress(&mut self, _i: usize, _progress: PromptProgress, _so_far: &Timings, _events: &mut Events) {}

    /// More of reply `i`, whose timings are `so_far`.
    fn step(&mut self, i: usize, step: Step, so_far: &Timings, events: &mut Events);

    /// The end of reply `i`.
    fn end(&mut self, i: usize, end: End, events: &mut Events);

    /// There is no more of any reply. A response that is no stream is the error itself.
    fn failed(&mut self, error: &ApiError, events: &mut Events);

    /// All replies are complete.
    fn finish(&mut self, events: &mut Events);

    /// The whole.
    fn body(self) -> Self::Body;
}

/// Replies as `wire` writes them.
///
/// # Errors
/// Those of the replies, where they are given as a whole.
pub(crate) async fn respond<W: Wire>(
    state: &AppState,
    replies: Vec<RunningReply>,
    mut wire: W,
    stream: bool,
) -> Result<Response, ApiError> {
    let listed = wire.id().zip(replies.first()).map(|(id, first)| {
        let generations = replies.iter().map(RunningReply::id).collect();
        state.in_flight().list(id, first.served(), generations, first.key())
    });
    let mut replies = RunningReplies::new(replies);
    if stream {
        return Ok(stream::response(state, W::FRAMING, W::ALIVE, |sse| async move {
            let mut events = Events::new(W::FRAMING);
            wire.begin(&mut events);
            sse.send(&mut events).await?;
            loop {
                let told = batch(&mut wire, &mut replies, &mut events).await;
                match &told {
                    Ok(true) => {}
                    Ok(false) => wire.finish(&mut events),
                    Err(error) => wire.failed(error, &mut events),
                }
                sse.send(&mut events).await?;
                if !matches!(told, Ok(true)) {
                    if let Some(listed) = listed {
                        listed.ended(&wire.body());
                    }
                    return Ok(());
                }
            }
        }));
    }
    let mut events = Events::unread();
    while next(&mut wire, &mut replies, &mut events).await? {}
    wire.finish(&mut events);
    let body = wire.body();
    if let Some(listed) = listed {
        listed.ended(&body);
    }
    Ok(Output(body).into_response())
}

/// Waits for a part, and tells `wire` of it and of those that are there already; false after the last.
async fn batch<W: Wire>(wire: &mut W, replies: &mut RunningReplies, events: &mut Events) -> Result<bool, ApiError> {
    let mut more = next(wire, replies, events).await?;
    while more && let Some(told) = next(wire, replies, events).now_or_never() {
        more = told?;
    }
    Ok(more)
}

/// Tells `wire` of one part; false after the last.
async fn next<W: Wire>(wire: &mut W, replies: &mut RunningReplies, events: &mut Events) -> Result<bool, ApiError> {
    let Some((i, delta, so_far)) = replies.next().await else { return Ok(false) };
    match delta? {
        Delta::Progress(progress) => wire.progress(i, progress, &so_far, events),
        Delta::Step(step) => wire.step(i, step, &so_far, events),
        Delta::End(end) => wire.end(i, *end, events),
    }
    Ok(true)
}
