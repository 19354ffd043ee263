//! Engines whose thread ends by itself: what is told of them, and what becomes of requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use api::Phase;
use axum::http::StatusCode;
use serde_json::json;

use crate::rig::{app, brief, long};

const LONG: Duration = Duration::from_secs(300);

#[tokio::test]
async fn an_engine_that_panicked_is_told_and_its_model_loaded_by_the_next_request() {
    let (app, log) = app(&["first", "second"], None, LONG);
    app.ok("/v1/completions", &brief("first")).await;
    assert_eq!(app.get("/health").await.0, StatusCode::OK);
    for round in 1..3 {
        log.hold("first");
        let answer = app.open("/v1/completions", &long("first")).await;
        let messages = json!([{ "role": "user", "content": "Tell a story" }]);
        let cut = app.open("/v1/chat/completions", &json!({ "model": "first", "messages": messages })).await;
        log.blown.store(true, Ordering::SeqCst);
        log.release();
        for stream in [answer, cut] {
            let events = stream.events().await;
            let errors = events.iter().filter_map(|event| event["error"]["message"].as_str());
            assert_eq!(errors.collect::<Vec<_>>(), ["the engine has stopped"], "round {round}");
        }
        let (status, health) = app.get("/health").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{health}");
        assert!(health["error"]["message"].as_str().unwrap().contains("first"), "{health}");
        let (_, models) = app.get("/v1/models").await;
        let told: Vec<_> = models["data"].as_array().unwrap().iter().map(|m| m["status"].clone()).collect();
        assert_eq!(told, ["failed", "unloaded"], "round {round}");
        // Telling of it loads nothing.
        assert_eq!(log.loads().len(), round);

        log.blown.store(false, Ordering::SeqCst);
        assert_eq!(app.ok("/v1/completions", &brief("first")).await["model"], "first");
        assert_eq!((log.loads().len(), log.n_most()), (round + 1, 1));
        assert_eq!(app.get("/health").await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_request_that_is_answered_as_a_whole_ends_with_an_error_too() {
    let (app, log) = app(&["first"], None, LONG);
    app.ok("/v1/completions", &brief("first")).await;
    log.blown.store(true, Ordering::SeqCst);
    let (status, answer) = app.post("/v1/completions", &long("first")).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer["error"]["message"], "the engine has stopped");
    assert_eq!(app.state.registry().list()[0].2, Phase::Ended);
    // Loaded again at the wish of an operator too.
    log.blown.store(false, Ordering::SeqCst);
    assert_eq!(app.ok("/models/load", &json!({ "model": "first" })).await["success"], true);
    app.ok("/v1/completions", &brief("first")).await;
    assert_eq!(log.loads().len(), 2);
}
