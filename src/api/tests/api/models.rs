//! Several models: which of them are in memory, and what requests for the others get.

use api::{AppState, Loader, ModelEntry, Phase, Registry, Served, Settings};
use engine::EngineConfig;
use serde_json::json;

use crate::support::{App, served};

/// Every name is the small model, but for `broken`.
struct Small;

impl Loader for Small {
    fn load(&self, id: &str) -> Result<Served, String> {
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
