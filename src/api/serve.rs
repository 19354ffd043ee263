//! The accept loop: connections with caps, time limits and optional TLS, and a way out that lets replies finish.
//! Owns connections. Knows no endpoint.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::error::ApiError;
use crate::places::{Places, Share};
use crate::socket::Socket;
use crate::state::{AppState, Course, reached};

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("{address}: {error}{}", if error.kind() == io::ErrorKind::AddrInUse { "; --port takes another one" } else { "" })]
    Bind {
        /// The address asked for.
        address: String,
        /// What the system says.
        error: io::Error,
    },
    /// Certificate or key.
    #[error("TLS: {0}")]
    Tls(String),
}

/// Certificate and key of a server.
#[derive(Clone)]
pub struct Tls {
    #[cfg(feature = "tls")]
    acceptor: tokio_rustls::TlsAcceptor,
}

impl Tls {
    /// Reads PEM files.
    ///
    /// # Errors
    /// Files that cannot be read or do not belong together.
    #[cfg(feature = "tls")]
    pub fn from_files(certificate: &std::path::Path, key: &std::path::Path) -> Result<Self, ServeError> {
        use tokio_rustls::rustls::ServerConfig;
        use tokio_rustls::rustls::crypto::ring;
        use tokio_rustls::rustls::pki_types::pem::PemObject;
        use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let wrong = |path: &std::path::Path, error: &dyn std::fmt::Display| {
            ServeError::Tls(format!("{}: {error}", path.display()))
        };
        let chain: Result<Vec<_>, _> = match CertificateDer::pem_file_iter(certificate) {
            Ok(found) => found.collect(),
            Err(error) => return Err(wrong(certificate, &error)),
        };
        let chain = chain.map_err(|error| wrong(certificate, &error))?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
            .map_err(|error| wrong(certificate, &error))?;
        Ok(Self { acceptor: Arc::new(config).into() })
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<TcpListener>,
    state: AppState,
    tls: Option<Tls>,
}

impl Server {
    /// Listens on `host` (a name or an address) and `port`; port 0 takes a free one.
    ///
    /// # Errors
    /// An address that is taken or is not of this machine.
    pub async fn bind(host: &str, port: u16, state: AppState, tls: Option<Tls>) -> Result<Self, ServeError> {
        Self::bind_all(&[host], port, state, tls).await
    }

    /// As [`Server::bind`], on several of them. With port 0 all have the one that the first got.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub async fn bind_all(
        hosts: &[impl AsRef<str>],
        mut port: u16,
        state: AppState,
        tls: Option<Tls>,
    ) -> Result<Self, ServeError> {
        let mut listeners: Vec<TcpListener> = Vec::with_capacity(hosts.len());
        for host in hosts.iter().map(AsRef::as_ref) {
            let wrong = |error| ServeError::Bind { address: format!("{host}:{port}"), error };
            let listener = TcpListener::bind((host, port)).await.map_err(wrong)?;
            // As many as the system allows may wait to be taken: one more would be tried again by its system after a second.
            socket2::SockRef::from(&listener).listen(BACKLOG).map_err(wrong)?;
            port = listener.local_addr().map_err(wrong)?.port();
            listeners.push(listener);
        }
        Ok(Self { listeners, state, tls })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system has no answer.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local_addrs()?.first().copied().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// All that it listens on.
    ///
    /// # Errors
    /// The system has no answer.
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Serves `router` until `stop` is ready. Then takes no connections any more, lets replies finish for
    /// `shutdown_timeout`, cuts those that have not with an error, and returns.
    pub async fn run(self, router: Router, stop: impl Future<Output = ()>, shutdown_timeout: Duration) {
        let Self { listeners, state, tls } = self;
        let limits = &state.settings().limits;
        let max = limits.max_connections.clamp(1, MAX_CONNECTIONS);
        let places = Places::new(max, limits.max_connections_per_address.max(1));
        let door = Arc::new(Door { places, router, state, tls, refusals: Semaphore::new(MAX_REFUSALS) });
        {
            let mut accepting: FuturesUnordered<_> = listeners.iter().map(|listener| accept(listener, &door)).collect();
            let all = async { while accepting.next().await.is_some() {} };
            tokio::select! {
                () = all => {}
                () = stop => {}
            }
        }
        drop(listeners);
        let state = &door.state;
        tracing::info!(n_running = state.metrics().n_running(), "shutting down");
        state.set_course(Course::Draining);
        if tokio::time::timeout(shutdown_timeout, door.places.all_free()).await.is_err() {
            tracing::warn!(n_running = state.metrics().n_running(), "cutting answers that are not complete");
            state.set_course(Course::Cut);
            // Long enough to write an error event; whoever reads nothing is left behind.
            if tokio::time::timeout(LAST_WORDS, door.places.all_free()).await.is_err() {
                tracing::debug!("connections are left open");
            }
        }
    }
}

/// Takes connections for ever, and waits for none of them.
async fn accept(listener: &TcpListener, door: &Arc<Door>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let share = door.places.share(peer.ip());
                tokio::spawn(Arc::clone(door).enter(stream, peer.ip(), share));
            }
            Err(error) => {
                // Out of file handles, most likely: some come back when connections end.
                tracing::warn!(%error, "a connection was not taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What every connection needs.
struct Door {
    places: Arc<Places>,
    router: Router,
    state: AppState,
    tls: Option<Tls>,
    /// Connections that are told that there is no place for them, at a time.
    refusals: Semaphore,
}

impl Door {
    /// A connection from its beginning to its end.
    async fn enter(self: Arc<Self>, stream: TcpStream, peer: IpAddr, share: Option<Share>) {
        let limits = &self.state.settings().limits;
        if share.is_none() {
            let error = ApiError::too_many_connections(limits.max_connections_per_address);
            return self.refuse(stream, peer, &error).await;
        }
        // Idle connections, which are the first to end, end within one such time; what came before this one ends in the other.
        let Some(_place) = self.places.take(2 * limits.header_timeout).await else {
            return self.refuse(stream, peer, &ApiError::no_place()).await;
        };
        self.serve(Socket::new(stream, limits.write_timeout), peer).await;
    }

    async fn serve(&self, socket: Socket, peer: IpAddr) {
        let (router, state) = (self.router.clone(), &self.state);
        match &self.tls {
            #[cfg(feature = "tls")]
            Some(tls) => {
                let limit = state.settings().limits.header_timeout;
                match tokio::time::timeout(limit, tls.acceptor.accept(socket)).await {
                    Ok(Ok(stream)) => http(stream, peer, router, state).await,
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS"),
                    Err(_) => tracing::debug!(%peer, "TLS took too long"),
                }
            }
            _ => http(socket, peer, router, state).await,
        }
    }

    /// Tells why there is no place, unless that would take TLS first, or too many are being told.
    async fn refuse(&self, mut stream: TcpStream, peer: IpAddr, error: &ApiError) {
        tracing::debug!(%peer, %error, "a connection was refused");
        self.state.metrics().connections_refused.inc();
        let (None, Ok(_one)) = (&self.tls, self.refusals.try_acquire()) else { return };
        let telling = async {
            stream.write_all(&http11(error)).await?;
            stream.shutdown().await?;
            // A request that was sent already is read, or closing would reset the connection before the response is read.
            let mut rest = [0; 4096];
            let mut n_left = REFUSED_REQUEST;
            while n_left > 0 {
                match stream.read(&mut rest).await? {
                    0 => break,
                    n => n_left = n_left.saturating_sub(n),
                }
            }
            io::Result::Ok(())
        };
        let _ = tokio::time::timeout(REFUSAL, telling).await;
    }
}

/// An error as the bytes of a whole response, for a connection that is not served.
fn http11(error: &ApiError) -> Vec<u8> {
    // Our own type has a JSON form.
    let body = serde_json::to_string(&error.body()).unwrap_or_default();
    let retry = error.retry_after.map(|seconds| format!("retry-after: {seconds}\r\n")).unwrap_or_default();
    format!(
        "HTTP/1.1 {}\r\ncontent-type: application/json\r\nconnection: close\r\n{retry}content-length: {}\r\n\r\n{body}",
        error.status,
        body.len()
    )
    .into_bytes()
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: IpAddr,
    router: Router,
    state: &AppState,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(Peer(peer)));
        let router = router.clone();
        async move {
            // A client that sends many requests ahead has one answered at a turn, as all others.
            tokio::task::yield_now().await;
            router.oneshot(request).await
        }
    });
    let limits = &state.settings().limits;
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Clients that compare names letter by letter know them written like this.
        .title_case_headers(true)
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.max_header.max(MIN_BUFFER))
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut course = state.watch_course();
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = reached(&mut course, Course::Draining) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended");
    }
}

/// What the semaphore can count to in one go.
const MAX_CONNECTIONS: usize = 1 << 20;

/// hyper's smallest.
const MIN_BUFFER: usize = 8192;

const BACKLOG: i32 = 65_535;

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Refusals that are told at a time; more are closed without a word.
const MAX_REFUSALS: usize = 64;

/// Time to tell one, and the bytes of its request that are read for it.
const REFUSAL: Duration = Duration::from_secs(1);
const REFUSED_REQUEST: usize = 64 << 10;
const LAST_WORDS: Duration = Duration::from_secs(2);
