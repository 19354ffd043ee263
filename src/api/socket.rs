//! A client's socket that is given up when nothing can be written to it for too long.
//! Owns that deadline and the kernel's own for peers that are gone. Knows neither TLS nor HTTP, which lie above it.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// A socket whose writes end with an error when the peer takes nothing for `limit`. Reads are left to their own limits.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    limit: Duration,
    /// Runs from the first write that found no room until one that does.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, limit: Duration) -> Self {
        if let Err(error) = prepare(&stream, limit) {
            // The deadline of writes is ours and holds without them.
            tracing::debug!(%error, "socket options");
        }
        Self { stream, limit, stalled: None }
    }

    fn watched<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if stalled.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        // What the peer did not take is not kept for it when the socket is closed.
        let _ = self.stream.set_zero_linger();
        let message = format!("the client took nothing for {} s", limit.as_secs_f32());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

/// Tokens are sent at once. A peer that is gone without a word is found out: by what it leaves unacknowledged where there
/// is something to send, else by probes.
fn prepare(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(limit.max(Duration::from_millis(1))))?;
    #[cfg(not(target_os = "linux"))]
    let _ = limit;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY))
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.watched(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Does nothing for a TCP socket, so it says nothing of the peer either.
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Silence after which the kernel asks whether the peer is there, and how often it asks then.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Both ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (listener.accept().await.unwrap().0, client)
    }

    #[tokio::test]
    async fn a_write_that_makes_no_progress_ends() {
        let (server, _client) = pair().await;
        let mut socket = Socket::new(server, Duration::from_millis(50));
        let error = socket.write_all(&vec![0; 64 << 20]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    #[tokio::test]
    async fn a_reader_that_takes_a_little_at_a_time_gets_all() {
        let (server, mut client) = pair().await;
        let n = 16 << 20;
        let mut socket = Socket::new(server, Duration::from_secs(30));
        let writing = tokio::spawn(async move { socket.write_all(&vec![0; n]).await });
        let (mut buffer, mut n_read) = (vec![0; 8192], 0);
        while n_read < n {
            n_read += client.read(&mut buffer).await.unwrap();
        }
        writing.await.unwrap().unwrap();
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_looks_for_peers_that_are_gone() {
        let (server, _client) = pair().await;
        let socket = Socket::new(server, Duration::from_secs(60));
        let asked = SockRef::from(&socket.stream);
        assert!(asked.keepalive().unwrap());
        assert_eq!(asked.tcp_user_timeout().unwrap(), Some(Duration::from_secs(60)));
        assert_eq!(asked.tcp_keepalive_time().unwrap(), PROBE_AFTER);
    }
}
