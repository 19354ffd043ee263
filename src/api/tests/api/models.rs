//! Several models: which of them are in memory, and what requests for the others get.

use api::{AppState, Loader, ModelEntry, Phase, Registry, Served, Settings};
use engine::EngineConfig;
use serde_json::json;
use session::FileProgress;

use crate::support::{App, served};

/// Every name is the small model, but for `broken`.
struct Small;

impl Loader for Small {
    fn load(&self, id: &str, _progress: FileProgress) -> Result<Served, String> {
        match id {
            "broken" => Err("it is broken".into()),
            id => Ok(Served { id: id.to_owned(), ..served(EngineConfig::default()) }),
        }
    }
}

fn app(max_loaded: usize) -> App {
    let entry = |(i, id): (usize, &str)| ModelEntry { id: id.into(), at_start: i == 0, ..ModelEntry::default() };
    let entries = ["first", "second", "third", "broken"].into_iter().enumerate().map(entry).collect();
    let settings = Settings { metrics: true, slots: true, ..Settings::default() };
    let state = AppState::new(Registry::new(entries, Box::new(Small), Some(max_loaded)), settings);
    App { router: api::router(state.clone()), state }
}

async fn model_that_answers(app: &App, asked: &str) -> String {
    let answer = app.ok("/v1/completions", &json!({ "model": asked, "prompt": "Hi", "max_tokens": 1 })).await;
    answer["model"].as_str().unwrap().to_owned()
}

/// Stands still in the middle of a file.
struct Halting(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl Loader for Halting {
    fn load(&self, id: &str, progress: FileProgress) -> Result<Served, String> {
        progress.tell("/models/m.gguf".as_ref(), 43, 100);
        let _ = self.0.lock().unwrap().recv();
        Small.load(id, progress)
    }
}

#[tokio::test]
async fn whoever_asks_is_told_how_far_a_load_is() {
    let (go_on, halted) = std::sync::mpsc::channel();
    let entries = vec![ModelEntry { id: "first".into(), at_start: true, ..ModelEntry::default() }];
    let registry = Registry::new(entries, Box::new(Halting(halted.into())), None);
    let state = AppState::new(registry, Settings::default());
    let app = App { router: api::router(state.clone()), state };
    let mut events = app.state.registry().events();
    app.state.registry().start();
    let files = json!({ "m.gguf": { "done": 43, "total": 100 } });
    loop {
        let event = events.recv().await.unwrap();
        if event.event == "load_progress" {
            assert_eq!((event.model.as_str(), &event.data), ("first", &files));
            break;
        }
    }
    let words = "the model is still loading (43 %): try again";
    let (status, health) = app.get("/health").await;
    assert_eq!((status.as_u16(), &health["error"]["message"]), (503, &json!(words)));
    let (status, refused) = app.post("/v1/completions", &json!({ "prompt": "Hi" })).await;
    assert_eq!((status.as_u16(), &refused["error"]["message"]), (503, &json!(words)));
    assert_eq!(app.get("/v1/models").await.1["data"][0]["progress"], files);
    go_on.send(()).unwrap();
    assert!(app.state.registry().started().await);
    assert_eq!(app.get("/v1/models").await.1["data"][0].get("progress"), None, "it is there");
}

#[tokio::test]
async fn a_model_that_made_room_is_loaded_again_when_it_is_asked_for() {
    let app = app(1);
    app.state.registry().start();
    // Whoever comes while it loads at the start is sent away; nobody else is.
    while app.state.registry().get(Some("first")).await.is_err() {
        tokio::task::yield_now().await;
    }
    for name in ["second", "first", "second"] {
        assert_eq!(model_that_answers(&app, name).await, name);
        let ready: Vec<_> = app.state.registry().list().into_iter().filter(|m| m.2 == Phase::Ready).collect();
        assert_eq!((ready.len(), ready[0].0.id.as_str()), (1, name));
    }
    let (status, answer) = app.post("/v1/completions", &json!({ "model": "broken", "prompt": "Hi" })).await;
    assert_eq!((status.as_u16(), &answer["error"]["message"]), (500, &json!("it is broken")));
    assert_eq!(model_that_answers(&app, "first").await, "first");
}

#[tokio::test]
async fn models_that_load_at_the_same_time_do_not_go_over_the_limit() {
    let app = app(1);
    tokio::join!(model_that_answers(&app, "second"), model_that_answers(&app, "third"));
    assert_eq!(app.state.registry().loaded().len(), 1);
}

#[tokio::test]
async fn who_only_asks_loads_nothing() {
    let app = app(1);
    for path in ["/props?model=second", "/slots?model=second", "/v1/models/second", "/v1/models", "/metrics", "/health"]
    {
        let (status, answer) = app.get(path).await;
        assert_ne!(status.as_u16(), 404, "{path}: {answer}");
        let at_work: Vec<_> = app.state.registry().list().into_iter().filter(|m| m.2 != Phase::Unloaded).collect();
        assert!(at_work.is_empty(), "{path}: {at_work:?}");
    }
    let (status, answer) = app.get("/props?model=second").await;
    assert_eq!(status.as_u16(), 503, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("not loaded"), "{answer}");
    assert_eq!(app.get("/props?model=nobody").await.0.as_u16(), 404);
}
