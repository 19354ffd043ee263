//! Streams of events: a task writes, a body reads, and something that means nothing keeps a silent stream alive.
//! Owns the encoding, as server-sent events or as lines of JSON, and the end of a stream whose reader is gone. Knows no endpoint.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use serde::Serialize;
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::state::AppState;

/// Parts of a stream that may wait for the connection.
const QUEUE: usize = 64;

/// The reader is gone, or has read nothing for too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone;

/// How the events of a stream are told apart.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Framing {
    /// Server-sent events.
    #[default]
    Events,
    /// One JSON value a line, without names.
    Lines,
}

impl Framing {
    fn media(self) -> &'static str {
        match self {
            Self::Events => "text/event-stream; charset=utf-8",
            Self::Lines => "application/x-ndjson",
        }
    }
}

/// The writing end of a stream.
#[derive(Debug)]
pub(crate) struct Sse {
    parts: mpsc::Sender<Bytes>,
    timeout: Duration,
}

impl Sse {
    /// Writes what was gathered, in one piece.
    ///
    /// # Errors
    /// [`Gone`]: stop writing.
    pub(crate) async fn send(&self, events: &mut Events) -> Result<(), Gone> {
        let bytes = events.bytes.as_mut().map(std::mem::take).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        match tokio::time::timeout(self.timeout, self.parts.send(bytes.into())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }
}

/// Events that go out together.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// `None`: there is no stream, and nothing is written.
    bytes: Option<Vec<u8>>,
    framing: Framing,
}

impl Events {
    /// Of a stream.
    pub(crate) fn new(framing: Framing) -> Self {
        Self { bytes: Some(Vec::new()), framing }
    }

    /// Of a reply that is given as a whole: events are left out.
    pub(crate) fn unread() -> Self {
        Self::default()
    }

    /// There is a stream.
    pub(crate) fn are_read(&self) -> bool {
        self.bytes.is_some()
    }

    /// One event without a name.
    pub(crate) fn data(&mut self, data: &impl Serialize) {
        if let Some(bytes) = &mut self.bytes {
            encode(self.framing, None, data, bytes);
        }
    }

    /// One event with a name, where the framing has names.
    pub(crate) fn event(&mut self, name: &str, data: &impl Serialize) {
        if let Some(bytes) = &mut self.bytes {
            encode(self.framing, Some(name), data, bytes);
        }
    }

    /// The end in OpenAI's way.
    pub(crate) fn done(&mut self) {
        if let Some(bytes) = &mut self.bytes {
            bytes.extend_from_slice(b"data: [DONE]\n\n");
        }
    }
}

/// JSON has no line breaks outside of strings, and none within: one line is enough.
fn encode(framing: Framing, name: Option<&str>, data: &impl Serialize, out: &mut Vec<u8>) {
    if framing == Framing::Lines {
        // Our own types have string keys and no failing parts.
        let _ = serde_json::to_writer(&mut *out, data);
        out.push(b'\n');
        return;
    }
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    // Our own types have string keys and no failing parts.
    let _ = serde_json::to_writer(&mut *out, data);
    out.extend_from_slice(b"\n\n");
}

/// A response whose events `write` makes; `alive` is sent where it is silent for long. When the reader goes, `write` is
/// dropped where it waits.
pub(crate) fn response<W>(
    state: &AppState,
    framing: Framing,
    alive: &'static [u8],
    write: impl FnOnce(Sse) -> W,
) -> Response
where
    W: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let limits = &state.settings().limits;
    let (parts, receiver) = mpsc::channel(QUEUE);
    let closed = parts.clone();
    let writing = write(Sse { parts, timeout: limits.write_timeout });
    let task = async move {
        tokio::select! {
            // Gone or complete: there is nobody to tell.
            _ = writing => {}
            () = closed.closed() => {}
        }
    };
    // Its log lines carry the request's id.
    tokio::spawn(task.in_current_span());
    let events = stream::unfold((receiver, limits.keep_alive), move |(mut receiver, keep_alive)| async move {
        let part = match keep_alive {
            Some(after) => match tokio::time::timeout(after, receiver.recv()).await {
                Ok(part) => part,
                Err(_) => Some(Bytes::from_static(alive)),
            },
            None => receiver.recv().await,
        };
        Some((Ok::<_, Infallible>(part?), (receiver, keep_alive)))
    });
    let headers = [
        (CONTENT_TYPE, framing.media()),
        (CACHE_CONTROL, "no-cache"),
        // Proxies that buffer would hold the events back.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_stay_within_the_json() {
        let written = |framing| {
            let mut events = Events::new(framing);
            events.data(&"a\nb");
            events.event("x", &[1, 2]);
            events.bytes.unwrap()
        };
        assert_eq!(written(Framing::Events), b"data: \"a\\nb\"\n\nevent: x\ndata: [1,2]\n\n");
        assert_eq!(written(Framing::Lines), b"\"a\\nb\"\n[1,2]\n");
    }
}
