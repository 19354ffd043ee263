//! Models that come from a hub and go again: what clients are told, and what they may not do.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use api::{AppState, Loader, ModelEntry, ModelStore, Registry, Served, Settings};
use axum::body::Body;
use axum::http::{Method, Request};
use engine::EngineConfig;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use session::FileProgress;
use tower::ServiceExt;

use crate::support::{App, served};

/// A hub of one user, `u`. Downloads halt in the middle until they are let go on.
#[derive(Clone, Default)]
pub struct Hub(Arc<Shared>);

#[derive(Default)]
pub struct Shared {
    files: Mutex<HashSet<String>>,
    open: Mutex<bool>,
    changed: Condvar,
}

impl Hub {
    pub fn go_on(&self) {
        *self.0.open.lock().unwrap() = true;
        self.0.changed.notify_all();
    }
}

impl ModelStore for Hub {
    fn check(&self, name: &str) -> Result<String, String> {
        if name.starts_with("u/") && !name.contains("..") {
            Ok(name.to_owned())
        } else {
            Err(format!("`{name}` is none"))
        }
    }

    fn download(
        &self,
        id: &str,
        progress: &(dyn Fn(&str, u64, u64) + Sync),
        stop: &Arc<AtomicBool>,
    ) -> Result<String, String> {
        progress("m.gguf", 5, 10);
        let mut open = self.0.open.lock().unwrap();
        while !*open && !stop.load(Ordering::Relaxed) {
            open = self.0.changed.wait_timeout(open, std::time::Duration::from_millis(5)).unwrap().0;
        }
        if stop.load(Ordering::Relaxed) {
            return Err("stopped".into());
        }
        if id.contains("broken") {
            return Err("the hub answers 404".into());
        }
        if id.contains("panic") {
            panic!("part of the test");
        }
        progress("m.gguf", 10, 10);
        let name = if id.contains(':') { id.to_owned() } else { format!("{id}:Q4") };
        self.0.files.lock().unwrap().insert(name.clone());
        Ok(name)
    }

    fn remove(&self, id: &str) -> Result<(), String> {
        if id.contains("locked") {
            return Err("it is locked".into());
        }
        if self.0.files.lock().unwrap().remove(id) { Ok(()) } else { Err("it is not there".into()) }
    }
}

impl Loader for Hub {
    fn load(&self, id: &str, _progress: FileProgress) -> Result<Served, String> {
        if id != "first" && !self.0.files.lock().unwrap().contains(id) {
            return Err(format!("{id} is not there"));
        }
        Ok(Served { id: id.to_owned(), ..served(EngineConfig::default()) })
    }
}

pub fn app(hub: &Hub, settings: Settings, allowed: bool) -> App {
    let entries = vec![ModelEntry { id: "first".into(), ..ModelEntry::default() }];
    let registry = Registry::new(entries, Box::new(hub.clone()), None);
    if allowed {
        registry.allow_downloads(Box::new(hub.clone()));
    }
    let state = AppState::new(registry, settings);
    App { router: api::router(state.clone()), state }
}

impl App {
    async fn delete(&self, path: &str) -> (u16, Value) {
        let request = Request::builder().method(Method::DELETE).uri(path).body(Body::empty()).unwrap();
        let (status, body) = self.send(request).await;
        (status.as_u16(), serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn download(&self, name: &str) -> (u16, Value) {
        let (status, answer) = self.post("/models", &json!({ "model": name })).await;
        (status.as_u16(), answer)
    }

    /// The model as the list has it.
    async fn listed(&self, name: &str) -> Option<Value> {
        let (_, list) = self.get("/models").await;
        list["data"].as_array().unwrap().iter().find(|model| model["id"] == name).cloned()
    }

    async fn wait_for(&self, name: &str, status: Option<&str>) -> Option<Value> {
        loop {
            let listed = self.listed(name).await;
            if listed.as_ref().map(|model| model["status"].as_str().unwrap()) == status {
                return listed;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_model_comes_answers_and_goes() {
    let hub = Hub::default();
    let app = app(&hub, Settings::default(), true);
    let mut events = app.state.registry().events();
    assert_eq!(app.download("u/r").await, (200, json!({ "success": true, "status": "downloading" })));
    let listed = app.wait_for("u/r", Some("downloading")).await.unwrap();
    // It may not have begun.
    let progress = |listed: &Value| listed["progress"]["m.gguf"].clone();
    let mut seen = progress(&listed);
    while seen.is_null() {
        seen = progress(&app.listed("u/r").await.unwrap());
    }
    assert_eq!(seen, json!({ "done": 5, "total": 10 }));
    let (status, answer) = app.post("/v1/completions", &json!({ "model": "u/r", "prompt": "Hi" })).await;
    assert_eq!(status.as_u16(), 503, "{answer}");
    assert_eq!(app.download("u/r").await.0, 409, "it is on its way");
    assert_eq!(app.get("/health").await.0.as_u16(), 200, "nobody else is held up");
    hub.go_on();
    let listed = app.wait_for("u/r:Q4", Some("unloaded")).await.unwrap();
    assert_eq!(listed["aliases"], json!(["u/r"]), "what was asked for is another name for it");
    let answer = app.ok("/v1/completions", &json!({ "model": "u/r", "prompt": "Hi", "max_tokens": 1 })).await;
    assert_eq!(answer["model"], "u/r:Q4");
    assert_eq!(app.download("u/r:Q4").await.0, 409, "it is there");
    let (status, answer) = app.delete("/models?model=u/r:Q4").await;
    assert_eq!((status, &answer["deleted"]), (200, &json!(true)), "{answer}");
    assert!(app.listed("u/r:Q4").await.is_none() && hub.0.files.lock().unwrap().is_empty());
    assert_eq!(app.delete("/v1/models/u/r:Q4").await.0, 404);

    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        let event = serde_json::to_value(event).unwrap();
        told.push(format!(
            "{} {} {}",
            event["event"].as_str().unwrap(),
            event["model"].as_str().unwrap(),
            event["data"]
        ));
    }
    let expected = [
        r#"model_status u/r {"status":"downloading"}"#,
        r#"download_progress u/r {"m.gguf":{"done":5,"total":10}}"#,
        r#"download_progress u/r {"m.gguf":{"done":10,"total":10}}"#,
        r#"model_status u/r:Q4 {"status":"unloaded"}"#,
        "download_finished u/r null",
        "models_reload * null",
        r#"model_status u/r:Q4 {"status":"loading"}"#,
        r#"model_status u/r:Q4 {"status":"loaded"}"#,
        "model_remove u/r:Q4 null",
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_download_is_stopped_and_can_be_begun_again() {
    let hub = Hub::default();
    let app = app(&hub, Settings::default(), true);
    for _ in 0..2 {
        assert_eq!(app.download("u/r").await.0, 200);
        assert_eq!(app.delete("/models/u/r").await.0, 200);
        app.wait_for("u/r", None).await;
    }
    assert_eq!(app.download("u/r").await.0, 200);
    let stopped = app.ok("/models/unload", &json!({ "model": "u/r" })).await;
    assert_eq!(stopped, json!({ "success": true }), "llama.cpp's way");
    app.wait_for("u/r", None).await;
}

#[tokio::test]
async fn a_download_that_fails_is_told_and_harms_nobody() {
    let hub = Hub::default();
    hub.go_on();
    let app = app(&hub, Settings::default(), true);
    for (name, why) in [("u/broken", "the hub answers 404"), ("u/panic", "the download panicked")] {
        assert_eq!(app.download(name).await.0, 200);
        let listed = app.wait_for(name, Some("failed")).await.unwrap();
        assert_eq!(listed["error"], why);
        let (status, answer) = app.post("/v1/completions", &json!({ "model": name, "prompt": "Hi" })).await;
        assert_eq!((status.as_u16(), &answer["error"]["message"]), (500, &json!(why)));
        assert_eq!(app.get("/health").await.0.as_u16(), 200, "no illness of the server");
        assert_eq!(app.download(name).await.0, 200, "it can be tried again");
        app.wait_for(name, Some("failed")).await;
        assert_eq!(app.delete(&format!("/models?model={name}")).await.0, 200);
        assert!(app.listed(name).await.is_none());
    }
}

#[tokio::test]
async fn names_and_numbers_have_limits() {
    let hub = Hub::default();
    let app = app(&hub, Settings::default(), true);
    for name in ["", "../r", "u/../r", "x"] {
        let (status, answer) = app.download(name).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("model")), "{name}");
    }
    for i in 0..4 {
        assert_eq!(app.download(&format!("u/{i}")).await.0, 200);
    }
    let (status, answer) = app.download("u/4").await;
    assert_eq!(status, 503, "{answer}");
    hub.go_on();
    for i in 0..4 {
        app.wait_for(&format!("u/{i}:Q4"), Some("unloaded")).await;
    }
    assert_eq!(app.download("u/4").await.0, 200);
}

#[tokio::test]
async fn configured_models_and_files_in_use_stay() {
    let hub = Hub::default();
    hub.go_on();
    let app = app(&hub, Settings::default(), true);
    let (status, answer) = app.delete("/models?model=first").await;
    assert_eq!(status, 400, "{answer}");
    for unnamed in ["/models", "/models?model=first&model=second"] {
        let (status, answer) = app.delete(unnamed).await;
        assert_eq!((status, &answer["error"]["type"]), (400, &json!("invalid_request_error")), "{answer}");
    }
    assert_eq!(app.delete("/models?model=nobody").await.0, 404);
    app.download("u/locked").await;
    app.wait_for("u/locked:Q4", Some("unloaded")).await;
    let (status, answer) = app.delete("/models?model=u/locked").await;
    assert_eq!((status, &answer["error"]["message"]), (409, &json!("it is locked")));
    assert!(app.listed("u/locked:Q4").await.is_some(), "it is there as before");
    assert_eq!(
        app.ok("/v1/completions", &json!({ "model": "u/locked", "prompt": "Hi", "max_tokens": 1 })).await["model"],
        "u/locked:Q4"
    );
}

#[tokio::test]
async fn nothing_is_downloaded_that_the_operator_did_not_allow() {
    let app = app(&Hub::default(), Settings::default(), false);
    let (status, answer) = app.download("u/r").await;
    assert_eq!(status, 501, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("--allow-downloads"), "{answer}");
    assert_eq!(app.delete("/models?model=first").await.0, 501);
    let keys = Settings { api_keys: vec!["key".into()], ..Settings::default() };
    let app = self::app(&Hub::default(), keys, true);
    assert_eq!(app.download("u/r").await.0, 401);
    assert_eq!(app.delete("/models?model=first").await.0, 401);
    assert_eq!(app.get("/models/sse").await.0.as_u16(), 401);
}

#[tokio::test]
async fn events_are_streamed_until_the_server_ends() {
    let hub = Hub::default();
    hub.go_on();
    let app = app(&hub, Settings::default(), true);
    let request = Request::get("/models/sse").body(Body::empty()).unwrap();
    let response = app.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    app.download("u/r").await;
    app.wait_for("u/r:Q4", Some("unloaded")).await;
    let mut body = response.into_body();
    let mut text = String::new();
    while !text.contains("models_reload") {
        let frame = body.frame().await.expect("more is to come").unwrap();
        text += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
    }
    assert!(
        text.starts_with(
            "data: {\"model\":\"u/r\",\"event\":\"model_status\",\"data\":{\"status\":\"downloading\"}}\n\n"
        ),
        "{text}"
    );
    assert!(text.contains("{\"model\":\"u/r\",\"event\":\"download_finished\"}\n\n"), "{text}");
    app.state.set_course(api::Course::Draining);
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
}
