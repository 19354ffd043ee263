//! From answers to a response: the one reader of answers, for every family of endpoints, whole or in a stream.
//! Owns the order in which a wire format is told what happens. Knows no wire format.

use axum::response::{IntoResponse, Response};
use engine::{PromptProgress, Timings};
use futures_util::FutureExt;
use serde::Serialize;
use session::{Delta, End, Step};

use crate::answer::{Answer, Answers};
use crate::error::ApiError;
use crate::json::Output;
use crate::state::AppState;
use crate::stream::{self, Events};

/// A wire format while it writes one response: it is told of the answers' parts by their number, writes events of them,
/// and keeps what its whole body needs.
pub(crate) trait Wire: Send + Sized + 'static {
    /// The response that is no stream.
    type Body: Serialize + Send;

    /// Keeps a silent stream alive.
    const ALIVE: &'static [u8] = b": keep-alive\n\n";

    /// Before anything else.
    fn begin(&mut self, _events: &mut Events) {}

    /// So far is the prompt of answer `i`.
    fn progress(&mut self, _i: usize, _progress: PromptProgress, _events: &mut Events) {}

    /// More of answer `i`, whose figures are `so_far`.
    fn step(&mut self, i: usize, step: Step, so_far: &Timings, events: &mut Events);

    /// The end of answer `i`.
    fn end(&mut self, i: usize, end: End, events: &mut Events);

    /// There is no more of any answer. A response that is no stream is the error itself.
    fn failed(&mut self, error: &ApiError, events: &mut Events);

    /// All answers are complete.
    fn finish(&mut self, events: &mut Events);

    /// The whole.
    fn body(self) -> Self::Body;
}

/// Answers as `wire` writes them.
///
/// # Errors
/// Those of the answers, where they are given as a whole.
pub(crate) async fn respond<W: Wire>(
    state: &AppState,
    answers: Vec<Answer>,
    mut wire: W,
    stream: bool,
) -> Result<Response, ApiError> {
    let mut answers = Answers::new(answers);
    if stream {
        return Ok(stream::response(state, W::ALIVE, |sse| async move {
            let mut events = Events::new();
            wire.begin(&mut events);
            sse.send(&mut events).await?;
            loop {
                let told = batch(&mut wire, &mut answers, &mut events).await;
                match &told {
                    Ok(true) => {}
                    Ok(false) => wire.finish(&mut events),
                    Err(error) => wire.failed(error, &mut events),
                }
                sse.send(&mut events).await?;
                if !matches!(told, Ok(true)) {
                    return Ok(());
                }
            }
        }));
    }
    let mut events = Events::unread();
    while next(&mut wire, &mut answers, &mut events).await? {}
    wire.finish(&mut events);
    Ok(Output(wire.body()).into_response())
}

/// Waits for a part, and tells `wire` of it and of those that are there already; false after the last.
async fn batch<W: Wire>(wire: &mut W, answers: &mut Answers, events: &mut Events) -> Result<bool, ApiError> {
    let mut more = next(wire, answers, events).await?;
    while more && let Some(told) = next(wire, answers, events).now_or_never() {
        more = told?;
    }
    Ok(more)
}

/// Tells `wire` of one part; false after the last.
async fn next<W: Wire>(wire: &mut W, answers: &mut Answers, events: &mut Events) -> Result<bool, ApiError> {
    let Some((i, delta, so_far)) = answers.next().await else { return Ok(false) };
    match delta? {
        Delta::Progress(progress) => wire.progress(i, progress, events),
        Delta::Step(step) => wire.step(i, step, &so_far, events),
        Delta::End(end) => wire.end(i, *end, events),
    }
    Ok(true)
}
