//! Models in memory: never more of them than allowed, while answers run too, and who makes room for whom.

use std::time::Duration;

use api::Phase;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::rig::{app, brief, long, until};
use crate::support::App;

const LONG: Duration = Duration::from_secs(300);

fn is_complete(events: &[Value]) -> bool {
    events.last() == Some(&json!("[DONE]")) && events.iter().all(|event| event["error"].is_null())
}

async fn refused(app: &App, model: &str) -> Value {
    let request = Request::post("/v1/completions").header("content-type", "application/json");
    let request = request.body(Body::from(brief(model).to_string())).unwrap();
    let response = app.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
    serde_json::from_slice::<Value>(&bytes).unwrap()["error"].clone()
}

#[tokio::test]
async fn a_model_keeps_its_place_until_its_answers_have_ended() {
    let (app, log) = app(&["first", "second"], Some(1), LONG);
    log.hold("first");
    let running = app.open("/v1/completions", &long("first")).await;
    let [second, again] = ["second", "first"].map(|name| {
        let router = app.router.clone();
        let state = app.state.clone();
        tokio::spawn(async move { App { router, state }.ok("/v1/completions", &brief(name)).await["model"].clone() })
    });
    until(&app, "second", Phase::Loading).await;
    let (_, models) = app.get("/v1/models").await;
    assert_eq!(models["data"][0]["status"], "loaded", "it answers still");
    log.release();
    assert!(is_complete(&running.events().await), "the answer that ran was not cut");
    assert_eq!((second.await.unwrap(), again.await.unwrap()), (json!("second"), json!("first")));
    assert_eq!(log.n_most(), 1, "two engines had their memory at the same time");
}

#[tokio::test]
async fn without_room_in_time_a_request_is_refused_and_the_model_that_answers_goes_on() {
    let (app, log) = app(&["first", "second"], Some(1), Duration::from_millis(20));
    log.hold("first");
    let running = app.open("/v1/completions", &long("first")).await;
    let error = refused(&app, "second").await;
    assert_eq!(error["code"], "no_room", "{error}");
    assert!(error["message"].as_str().unwrap().contains("second"), "{error}");
    log.release();
    // Nobody waits any more: others join the model that is there.
    assert_eq!(app.ok("/v1/completions", &brief("first")).await["model"], "first");
    assert!(is_complete(&running.events().await));
    assert_eq!(log.loads(), ["first"]);
    assert_eq!(app.ok("/v1/completions", &brief("second")).await["model"], "second", "it is tried again");
    assert_eq!((log.loads().len(), log.n_most()), (2, 1));
}

#[tokio::test]
async fn an_idle_model_makes_room_before_one_that_answers() {
    let (app, log) = app(&["first", "second", "third"], Some(2), LONG);
    log.hold("first");
    let running = app.open("/v1/completions", &long("first")).await;
    app.ok("/v1/completions", &brief("second")).await;
    // The first one is unused for longer, but in use.
    assert_eq!(app.ok("/v1/completions", &brief("third")).await["model"], "third");
    let ready: Vec<_> = app.state.registry().loaded().iter().map(|served| served.id.clone()).collect();
    assert_eq!(ready, ["first", "third"]);
    log.release();
    assert!(is_complete(&running.events().await));
    assert_eq!((log.loads().len(), log.n_most()), (3, 2));
}

#[tokio::test]
async fn a_model_that_was_unloaded_is_not_in_memory_twice() {
    let (app, log) = app(&["first", "second"], None, Duration::from_millis(20));
    log.hold("first");
    let running = app.open("/v1/completions", &long("first")).await;
    assert_eq!(app.ok("/models/unload", &json!({ "model": "first" })).await["success"], true);
    assert_eq!(app.get("/v1/models").await.1["data"][0]["status"], "unloading");
    let error = refused(&app, "first").await;
    assert!(error["message"].as_str().unwrap().contains("answers have not ended"), "{error}");
    log.release();
    assert!(is_complete(&running.events().await), "the answer that ran was not cut");
    until(&app, "first", Phase::Unloaded).await;
    app.ok("/v1/completions", &brief("first")).await;
    assert_eq!((log.loads().len(), log.n_most()), (2, 1));
}
