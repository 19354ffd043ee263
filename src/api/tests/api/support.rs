//! A router over the small model, and requests to it.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use api::{AppState, Registry, Served, Settings};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use engine::{EngineConfig, Proposer};
use http_body_util::BodyExt;
use model::{LoadOptions, Model};
use serde_json::{Value, json};
use session::ModelOptions;
use speculate::{Depth, DraftVocabSize, NextN, NextNConfig};
use tower::ServiceExt;

fn model() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let open = || {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-q4_k_m.gguf");
        Model::open(&path, &LoadOptions::default()).expect("the model is part of the repository")
    };
    Arc::clone(MODEL.get_or_init(open))
}

/// Draft tokens of an engine step in these tests.
pub const DEPTH: usize = 3;

/// The small model with an engine of its own, greedy where a request does not say, which drafts with the model's head.
pub fn served(config: EngineConfig) -> Served {
    let of_head = NextNConfig { depth: Depth::Fixed(DEPTH), vocab: DraftVocabSize::Full, both_heads: false };
    let head = NextN::new(&model(), &small(config.clone()), of_head).expect("room for its KV cache");
    served_with(config, Some(Box::new(head.expect("the model has a head"))))
}

fn small(config: EngineConfig) -> EngineConfig {
    EngineConfig { n_ctx: config.n_ctx.or(Some(1024)), threads: Some(1), ..config }
}

/// As [`served`], with another source of drafts, or none.
pub fn served_with(config: EngineConfig, proposer: Option<Box<dyn Proposer>>) -> Served {
    let mut options = ModelOptions::default();
    options.drafts.draft_p_min = 0.25;
    options.sampling =
        serde_json::from_value(json!({"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0})).expect("fields");
    let model = session::start_engine_with(model(), small(config), &options, proposer).expect("it is small");
    Served { id: "pocket".into(), model }
}

/// A server without a socket.
pub struct App {
    pub state: AppState,
    pub router: Router,
}

impl App {
    pub fn new() -> Self {
        Self::with(Settings { metrics: true, slots: true, ..Settings::default() })
    }

    pub fn with(settings: Settings) -> Self {
        Self::over(EngineConfig { n_sequences: 2, ..EngineConfig::default() }, settings)
    }

    pub fn over(config: EngineConfig, settings: Settings) -> Self {
        Self::serving(served(config), settings)
    }

    pub fn serving(served: Served, settings: Settings) -> Self {
        let state = AppState::new(Registry::of(served), settings);
        Self { router: api::router(state.clone()), state }
    }

    /// A server without speculation.
    pub fn plain(config: EngineConfig) -> Self {
        Self::serving(served_with(config, None), Settings::default())
    }

    pub async fn send(&self, request: Request<Body>) -> (StatusCode, Vec<u8>) {
        let response = self.router.clone().oneshot(request).await.expect("a router does not fail");
        let status = response.status();
        (status, response.into_body().collect().await.expect("a body").to_bytes().to_vec())
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let (status, body) = self.send(request).await;
        (status, serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body))))
    }

    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let (status, body) = self.raw(path, body.to_string()).await;
        (status, serde_json::from_slice(&body).expect("an answer in JSON"))
    }

    /// The answer to a good request.
    pub async fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }

    pub async fn raw(&self, path: &str, body: impl Into<Body>) -> (StatusCode, Vec<u8>) {
        let request = Request::post(path).header("content-type", "application/json").body(body.into()).unwrap();
        self.send(request).await
    }

    /// The named events of a stream; each says its name in its data too.
    pub async fn named(&self, path: &str, body: &Value) -> Vec<(String, Value)> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let (status, bytes) = self.raw(path, body.to_string()).await;
        let text = String::from_utf8(bytes).expect("events are UTF-8");
        assert_eq!(status, StatusCode::OK, "{text}");
        let events = named_events(&text);
        assert!(!events.is_empty() && events.iter().all(|(name, data)| data["type"] == **name), "{text}");
        events
    }

    /// The events of a stream, `[DONE]` as a text.
    pub async fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let (status, bytes) = self.raw(path, body.to_string()).await;
        let text = String::from_utf8(bytes).expect("events are UTF-8");
        assert_eq!(status, StatusCode::OK, "{text}");
        events(&text)
    }
}

/// A stream that is read as far as a test wants.
pub struct Open {
    pub status: StatusCode,
    body: Body,
    text: String,
}

impl App {
    /// Asks for a stream and reads its first part.
    pub async fn open(&self, path: &str, body: &Value) -> Open {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let mut open = self.stream_of(request).await;
        assert_eq!(open.status, StatusCode::OK);
        assert!(open.more().await, "a stream begins with an event");
        open
    }

    /// A response of which nothing is read yet.
    pub async fn stream_of(&self, request: Request<Body>) -> Open {
        let response = self.router.clone().oneshot(request).await.expect("a router does not fail");
        Open { status: response.status(), body: response.into_body(), text: String::new() }
    }
}

impl Open {
    /// Reads the next part; false after the last.
    pub async fn more(&mut self) -> bool {
        let Some(frame) = self.body.frame().await else { return false };
        let bytes = frame.expect("a part").into_data().expect("data");
        self.text.push_str(std::str::from_utf8(&bytes).expect("events are UTF-8"));
        true
    }

    /// What was read.
    pub fn said(&self) -> &str {
        &self.text
    }

    /// The events that were read.
    pub fn so_far(&self) -> Vec<Value> {
        events(&self.text)
    }

    /// All text, from the first.
    pub async fn whole(mut self) -> String {
        while self.more().await {}
        self.text
    }

    /// All events, from the first.
    pub async fn events(mut self) -> Vec<Value> {
        while self.more().await {}
        events(&self.text)
    }
}

/// The data of server-sent events.
pub fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| json!(data))).collect()
}

/// Names and data of server-sent events.
pub fn named_events(text: &str) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for event in text.split("\n\n") {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        if let (Some(name), Some(data)) = (field("event: "), field("data: ")) {
            found.push((name.to_owned(), serde_json::from_str(data).expect("data in JSON")));
        }
    }
    found
}

/// A question for the small model, which it answers briefly.
pub fn question(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 60, "chat_template_kwargs": { "enable_thinking": false } })
}
