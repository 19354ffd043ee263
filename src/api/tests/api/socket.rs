//! Over a real socket: framing, slow and half-open clients, disconnects, the way out.

use std::future::Future;
use std::time::Duration;

use api::{AppState, HttpLimits, Server, Settings};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

use crate::support::{App, question};

/// A server on a free port; ends when told.
struct Running {
    address: std::net::SocketAddr,
    state: AppState,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<()>,
}

async fn start(settings: Settings, shutdown_timeout: Duration) -> Running {
    let app = App::with(settings);
    let server = Server::bind("127.0.0.1", 0, app.state.clone(), None).await.unwrap();
    let address = server.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let stop_now = async move { drop(stopped.await) };
    let ended = tokio::spawn(server.run(app.router, stop_now, shutdown_timeout));
    Running { address, state: app.state, stop, ended }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A client that has room for little that it does not read, at this address of this machine.
    async fn connect_from(&self, address: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// What the server says to these bytes until it closes, or for a while.
    async fn say(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        read_until(&mut stream, |_| false).await
    }
}

/// Reads until `enough`, the end, or ten seconds.
async fn read_until(stream: &mut TcpStream, enough: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    let reading = async {
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            text.push_str(&String::from_utf8_lossy(&buffer[..n]));
            if enough(&text) {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(10), reading).await;
    text
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// The same on a connection that stays.
const HEALTH_AND_STAY: &[u8] = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A story that does not end by itself.
fn endless() -> String {
    let mut body = question("Tell me a story.");
    body["stream"] = json!(true);
    body["ignore_eos"] = json!(true);
    body["max_tokens"] = json!(900);
    post("/v1/chat/completions", &body.to_string())
}

/// Stories of which all together are far longer than what a socket holds.
fn far_too_much() -> String {
    let body =
        json!({ "prompt": "Once", "stream": true, "ignore_eos": true, "n_predict": 900, "n": 16, "n_probs": 20 });
    post("/completion", &body.to_string())
}

/// Waits until the server serves so many requests.
async fn until_running(state: &AppState, n: usize) -> bool {
    until(|| state.metrics().n_running() == n).await
}

async fn until(done: impl Fn() -> bool) -> bool {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.is_ok()
}

async fn within<F: Future>(seconds: u64, future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(seconds), future).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_framing_is_refused() {
    let server = start(Settings::default(), Duration::ZERO).await;
    let cases = [
        ("a header of 1 MB", format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(1 << 20))),
        ("a negative length", "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n".to_owned()),
        (
            "two lengths",
            "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx".to_owned(),
        ),
        ("no HTTP", "hello\r\n\r\n".to_owned()),
    ];
    for (what, bytes) in cases {
        let mut stream = server.connect().await;
        // The server may close before all is written.
        let _ = stream.write_all(bytes.as_bytes()).await;
        let answer = read_until(&mut stream, |text| text.contains("\r\n\r\n")).await;
        let status = answer.split_whitespace().nth(1).unwrap_or("closed").to_owned();
        assert!(["400", "431", "closed"].contains(&status.as_str()), "{what}: {answer}");
    }
    let both = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\
                transfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    let answer = server
        .say(format!("{both}GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes())
        .await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_requests_hold_up_nobody_and_are_ended() {
    let limits = HttpLimits {
        header_timeout: Duration::from_millis(1500),
        body_timeout: Duration::from_millis(1500),
        ..HttpLimits::default()
    };
    let server = start(Settings { limits, ..Settings::default() }, Duration::ZERO).await;
    let mut open = Vec::new();
    for i in 0..300 {
        let mut stream = server.connect().await;
        let part = if i % 2 == 0 {
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n".to_owned()
        } else {
            post("/v1/chat/completions", &"x".repeat(100))[..150].to_owned()
        };
        stream.write_all(part.as_bytes()).await.unwrap();
        open.push(stream);
    }
    let health = within(20, server.say(HEALTH)).await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    for (i, stream) in open.iter_mut().enumerate() {
        let answer = read_until(stream, |_| false).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{i}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_is_served_no_longer() {
    let server = start(Settings::default(), Duration::ZERO).await;
    let mut stream = server.connect().await;
    stream.write_all(endless().as_bytes()).await.unwrap();
    read_until(&mut stream, |text| text.matches("data: ").count() > 3).await;
    assert_eq!(server.state.metrics().n_running(), 1);
    drop(stream);
    assert!(until_running(&server.state, 0).await);

    // Nor one that waits for a whole answer.
    let mut stream = server.connect().await;
    stream.write_all(endless().replace("\"stream\":true", "\"stream\":null").as_bytes()).await.unwrap();
    assert!(until_running(&server.state, 1).await);
    drop(stream);
    assert!(until_running(&server.state, 0).await);
    let engine = server.state.registry().loaded()[0].engine().clone();
    assert!(until(|| engine.slots().unwrap().iter().all(|slot| slot.work.is_none())).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_way_out_answers_end_with_an_error_and_in_time() {
    let server = start(Settings::default(), Duration::from_millis(200)).await;
    let mut stream = server.connect().await;
    stream.write_all(endless().as_bytes()).await.unwrap();
    read_until(&mut stream, |text| text.matches("data: ").count() > 3).await;
    server.stop.send(()).unwrap();
    let rest = within(10, read_until(&mut stream, |_| false)).await;
    assert!(rest.contains("server_shutdown") && rest.contains("data: [DONE]"), "{rest}");
    within(10, server.ended).await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_way_out_answers_may_finish() {
    let server = start(Settings::default(), Duration::from_secs(60)).await;
    let mut body = question("Hello");
    body["stream"] = json!(true);
    let mut stream = server.connect().await;
    stream.write_all(post("/v1/chat/completions", &body.to_string()).as_bytes()).await.unwrap();
    read_until(&mut stream, |text| text.contains("data: ")).await;
    server.stop.send(()).unwrap();
    let rest = read_until(&mut stream, |_| false).await;
    assert!(rest.contains("\"finish_reason\":\"stop\"") && rest.contains("data: [DONE]"), "{rest}");
    within(10, server.ended).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_serves_many_requests() {
    let server = start(Settings::default(), Duration::ZERO).await;
    let mut stream = server.connect().await;
    for i in 0..200 {
        stream.write_all(HEALTH_AND_STAY).await.unwrap();
        let answer = read_until(&mut stream, |text| text.ends_with('}')).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{i}: {answer}");
    }
}

/// Writes a request over and over and reads no answer, until the server takes no more.
async fn pipeline(stream: &mut TcpStream, request: &[u8]) {
    let many = request.repeat(1000);
    for _ in 0..1000 {
        match tokio::time::timeout(Duration::from_secs(1), stream.write_all(&many)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
    panic!("all of it was taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_take_nothing_lose_their_places() {
    let limits = HttpLimits { max_connections: 4, write_timeout: Duration::from_millis(500), ..HttpLimits::default() };
    let server = start(Settings { limits, ..Settings::default() }, Duration::ZERO).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = server.connect_from("127.0.0.1").await;
        pipeline(&mut stream, b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        open.push(stream);
    }
    let health = server.say(HEALTH).await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_nobody_reads_gives_up_its_place() {
    let limits = HttpLimits { max_connections: 1, write_timeout: Duration::from_millis(500), ..HttpLimits::default() };
    let server = start(Settings { limits, ..Settings::default() }, Duration::ZERO).await;
    let mut stream = server.connect_from("127.0.0.1").await;
    stream.write_all(far_too_much().as_bytes()).await.unwrap();
    assert!(until_running(&server.state, 16).await);
    assert!(until_running(&server.state, 0).await, "nobody reads it, and it goes on");
    let health = server.say(HEALTH).await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_does_not_take_all_places() {
    let limits = HttpLimits { max_connections: 8, max_connections_per_address: 3, ..HttpLimits::default() };
    let server = start(Settings { metrics: true, limits, ..Settings::default() }, Duration::ZERO).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut stream = server.connect_from("127.0.0.1").await;
        stream.write_all(HEALTH_AND_STAY).await.unwrap();
        assert!(read_until(&mut stream, |text| text.ends_with('}')).await.starts_with("HTTP/1.1 200"));
        open.push(stream);
    }
    for _ in 0..20 {
        let mut stream = server.connect_from("127.0.0.1").await;
        let _ = stream.write_all(HEALTH).await;
        let answer = read_until(&mut stream, |_| false).await;
        assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("--max-connections-per-address"), "{answer}");
    }
    let mut other = server.connect_from("127.0.0.2").await;
    other.write_all(HEALTH).await.unwrap();
    let answer = read_until(&mut other, |text| text.ends_with('}')).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(server.state.metrics().connections_refused.get(), 20);
    // What ends makes room.
    open.pop();
    let again = async { while !server.say(HEALTH).await.starts_with("HTTP/1.1 200") {} };
    within(20, again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_place_says_so_in_time() {
    let header_timeout = Duration::from_millis(500);
    let limits = HttpLimits { max_connections: 1, header_timeout, ..HttpLimits::default() };
    let server = start(Settings { limits, ..Settings::default() }, Duration::ZERO).await;
    let mut busy = server.connect().await;
    busy.write_all(far_too_much().as_bytes()).await.unwrap();
    assert!(until_running(&server.state, 16).await);
    let answer = server.say(HEALTH).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.to_ascii_lowercase().contains("retry-after: 1"), "{answer}");
    drop(busy);
    // An idle connection holds its place no longer than its headers may take: the next one waits for it.
    let _idle = server.connect().await;
    let answer = server.say(HEALTH).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
