//! Server-sent events: a task writes, a body reads, and comments keep a silent stream alive.
//! Owns the encoding and the end of a stream whose reader is gone. Knows no endpoint.

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
pub struct Gone;

/// The writing end of a stream.
#[derive(Clone, Debug)]
pub struct Sse {
    parts: mpsc::Sender<Bytes>,
    timeout: Duration,
}

impl Sse {
    /// One event without a name.
    ///
    /// # Errors
    /// [`Gone`]: stop writing.
    pub async fn data(&self, data: &impl Serialize) -> Result<(), Gone> {
        self.send(None, data).await
    }

    /// One event with a name.
    ///
    /// # Errors
    /// [`Gone`]: stop writing.
    pub async fn event(&self, name: &str, data: &impl Serialize) -> Result<(), Gone> {
        self.send(Some(name), data).await
    }

    /// The end in OpenAI's way.
    ///
    /// # Errors
    /// [`Gone`]: stop writing.
    pub async fn done(&self) -> Result<(), Gone> {
        self.bytes(Bytes::from_static(b"data: [DONE]\n\n")).await
    }

    async fn send(&self, name: Option<&str>, data: &impl Serialize) -> Result<(), Gone> {
        self.bytes(encoded(name, data)).await
    }

    async fn bytes(&self, bytes: Bytes) -> Result<(), Gone> {
        match tokio::time::timeout(self.timeout, self.parts.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }
}

/// JSON has no line breaks outside of strings, and none within: one `data` line is enough.
fn encoded(name: Option<&str>, data: &impl Serialize) -> Bytes {
    let mut out = Vec::with_capacity(256);
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    // Our own types have string keys and no failing parts.
    let _ = serde_json::to_writer(&mut out, data);
    out.extend_from_slice(b"\n\n");
    out.into()
}

/// A response whose events `write` makes. When the reader goes, `write` is dropped where it waits.
pub fn response<W>(state: &AppState, write: impl FnOnce(Sse) -> W) -> Response
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
    let events = stream::unfold((receiver, limits.keep_alive), |(mut receiver, keep_alive)| async move {
        let part = match keep_alive {
            Some(after) => match tokio::time::timeout(after, receiver.recv()).await {
                Ok(part) => part,
                Err(_) => Some(Bytes::from_static(b": keep-alive\n\n")),
            },
            None => receiver.recv().await,
        };
        Some((Ok::<_, Infallible>(part?), (receiver, keep_alive)))
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream; charset=utf-8"),
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
        assert_eq!(&encoded(None, &"a\nb")[..], b"data: \"a\\nb\"\n\n");
        assert_eq!(&encoded(Some("x"), &[1, 2])[..], b"event: x\ndata: [1,2]\n\n");
    }
}
