//! What comes before the engine: how much of it there may be, how long it may take, and what happens when nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use api::{ApiError, Caller, HttpLimits, Served, Server, Settings};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use engine::EngineConfig;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tower::ServiceExt;

use crate::support::{App, question};

const LONG: Duration = Duration::from_secs(300);

fn app(max_queue: usize, preparations: usize, prepare_timeout: Duration) -> App {
    let limits = HttpLimits { preparations: Some(preparations), prepare_timeout, ..HttpLimits::default() };
    App::over(EngineConfig { max_queue, ..EngineConfig::default() }, Settings { limits, ..Settings::default() })
}

async fn served(app: &App) -> Arc<Served> {
    app.state.registry().get(None).await.expect("it is loaded")
}

/// Work that goes on until it is told to end.
struct Piece {
    end: mpsc::Sender<()>,
    begun: tokio::sync::oneshot::Receiver<()>,
    task: tokio::task::JoinHandle<Result<(), ApiError>>,
}

async fn piece(app: &App, n_answers: usize) -> Piece {
    let (end, told) = mpsc::channel();
    let (tell, begun) = tokio::sync::oneshot::channel();
    let (state, served) = (app.state.clone(), served(app).await);
    let task = tokio::spawn(async move {
        let work = move |_: &mut api::Work| {
            tell.send(()).expect("the test waits");
            // An error is an end too: the test is over.
            let _ = told.recv();
            Ok(())
        };
        state.work(&served, Caller::default(), n_answers, work).await
    });
    Piece { end, begun, task }
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(LONG, wait).await.is_ok(), "{what}");
}

#[tokio::test]
async fn what_is_prepared_counts_in_the_queue() {
    let app = app(3, 8, LONG);
    let held = piece(&app, 2).await;
    held.begun.await.expect("it begins");
    let other = piece(&app, 0).await;
    other.begun.await.expect("there is a place left");
    for (path, body) in [
        ("/tokenize", json!({ "content": "x" })),
        ("/v1/chat/completions", question("Hello")),
        ("/v1/completions", json!({ "prompt": ["a", "b"], "max_tokens": 1 })),
    ] {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = app.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert!(response.headers().contains_key("retry-after"), "{path}");
    }
    drop((held.end, other.end));
    held.task.await.unwrap().expect("it ends well");
    other.task.await.unwrap().expect("it ends well");
    assert_eq!(served(&app).await.engine().n_waiting(), 0, "places come back");
    app.ok("/v1/completions", &json!({ "prompt": ["a", "b"], "max_tokens": 1 })).await;
}

#[tokio::test]
async fn work_that_nobody_waits_for_does_not_begin() {
    let app = app(8, 1, LONG);
    let first = piece(&app, 1).await;
    first.begun.await.expect("it begins");
    let second = piece(&app, 1).await;
    let served = served(&app).await;
    until("the second waits for its turn", || served.engine().n_waiting() == 2).await;
    second.task.abort();
    until("its place came back", || served.engine().n_waiting() == 1).await;
    drop(first.end);
    first.task.await.unwrap().expect("it ends well");
    assert!(second.begun.await.is_err(), "it began although nobody waited");
    app.ok("/tokenize", &json!({ "content": "x" })).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_the_line() {
    let app = app(8, 1, LONG);
    let server = Server::bind("127.0.0.1", 0, app.state.clone(), None).await.unwrap();
    let address = server.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let ended = tokio::spawn(server.run(app.router.clone(), async { drop(stopped.await) }, Duration::ZERO));
    let held = piece(&app, 1).await;
    held.begun.await.expect("it begins");
    let served = served(&app).await;
    let body = question("Hello").to_string();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length:";
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    until("the request waits for its turn", || served.engine().n_waiting() == 2).await;
    drop(client);
    until("its place came back", || served.engine().n_waiting() == 1).await;
    drop((held.end, stop));
    held.task.await.unwrap().expect("it ends well");
    ended.await.unwrap();
}

#[tokio::test]
async fn work_ends_soon_after_its_client_has_gone() {
    let app = app(8, 1, LONG);
    let (tell, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let ended = Arc::new(AtomicBool::new(false));
    let (state, served, done) = (app.state.clone(), served(&app).await, Arc::clone(&ended));
    let engine = served.engine().clone();
    let task = tokio::spawn(async move {
        let work = move |work: &mut api::Work| {
            tell.send(()).expect("the test waits");
            while work.go_on().is_ok() {
                std::thread::yield_now();
            }
            done.store(true, Ordering::SeqCst);
            work.go_on()
        };
        state.work(&served, Caller::default(), 4, work).await
    });
    begun.recv().await.expect("it begins");
    assert_eq!(engine.n_waiting(), 4);
    task.abort();
    until("the work hears of it", || ended.load(Ordering::SeqCst)).await;
    until("its places came back", || engine.n_waiting() == 0).await;
    // The only place to work is free again.
    app.ok("/tokenize", &json!({ "content": "x" })).await;
}

#[tokio::test]
async fn work_has_its_time() {
    let app = app(8, 1, Duration::from_millis(20));
    let held = piece(&app, 1).await;
    held.begun.await.expect("it begins");
    // The first is too slow, the second has no turn: the first goes on working for nobody.
    let (status, answer) = app.post("/v1/chat/completions", &question("Hello")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    let error = held.task.await.unwrap().expect_err("it took too long");
    assert_eq!((error.status, error.code), (StatusCode::GATEWAY_TIMEOUT, Some("timeout")), "{error}");
    assert_eq!(served(&app).await.engine().n_waiting(), 1, "it has its place until it has really ended");
    drop(held.end);
    let served = served(&app).await;
    until("its place came back", || served.engine().n_waiting() == 0).await;
}

#[tokio::test]
async fn the_number_of_prompts_is_looked_at_before_any_of_them_is_tokenised() {
    // No place to work is ever free: whoever needs one is told so.
    let app = app(64, 1, Duration::from_millis(20));
    let held = piece(&app, 0).await;
    held.begun.await.expect("it begins");
    for path in ["/completion", "/v1/completions"] {
        let (status, answer) = app.post(path, &json!({ "prompt": vec!["x"; 65], "max_tokens": 1 })).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!("prompt")),
            "{path}: {answer}"
        );
    }
    drop(held.end);
}
