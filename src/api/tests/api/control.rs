//! Responses under way that are cancelled or told to stop thinking, by their ids.

use std::sync::Arc;

use api::{CacheScope, Settings};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use engine::EngineConfig;
use serde_json::{Value, json};

use crate::support::{App, Open, question};

fn long() -> Value {
    json!({ "messages": [{ "role": "user", "content": "Tell me a story." }], "max_tokens": 900, "ignore_eos": true,
        "temperature": 0, "chat_template_kwargs": { "enable_thinking": false } })
}

async fn cancel(app: &App, id: &Value) -> (StatusCode, Value) {
    app.post("/v1/chat/completions/control", &json!({ "id": id, "action": "cancel" })).await
}

/// Reads a stream until text has come; gives the id of its parts.
async fn begun(stream: &mut Open) -> Value {
    while !stream.said().contains("content\":\"") || stream.so_far().len() < 4 {
        assert!(stream.more().await, "{}", stream.said());
    }
    stream.so_far()[0]["id"].clone()
}

async fn until_idle(app: &App) {
    loop {
        let (_, slots) = app.get("/slots").await;
        if slots.as_array().unwrap().iter().all(|slot| slot["is_processing"] == false) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn said(events: &[Value]) -> String {
    events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect()
}

#[tokio::test]
async fn a_cancelled_chat_ends_in_order_with_what_there_is() {
    let app = App::new();
    let whole = app.ok("/v1/chat/completions", &long()).await;
    let whole = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let mut stream = app.open("/v1/chat/completions", &long()).await;
    let mut other = app.open("/v1/chat/completions", &long()).await;
    let (id, id_of_other) = (begun(&mut stream).await, begun(&mut other).await);
    assert_eq!(cancel(&app, &id).await, (StatusCode::OK, json!({ "success": true })));
    let events = stream.events().await;
    assert_eq!(events.last(), Some(&json!("[DONE]")));
    let last = &events[events.len() - 2];
    assert_eq!((&last["choices"][0]["finish_reason"], last["timings"].is_object()), (&json!("abort"), true), "{last}");
    let text = said(&events);
    assert!(!text.is_empty() && text.len() < whole.len() && whole.starts_with(&text), "{text}");
    // It has ended, and the other one has not.
    let (status, answer) = cancel(&app, &id).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::NOT_FOUND, &json!("not_found")), "{answer}");
    assert_eq!(cancel(&app, &json!("chatcmpl-nobody")).await.0, StatusCode::NOT_FOUND);
    assert_eq!(said(&other.events().await), whole);
    assert_eq!(cancel(&app, &id_of_other).await.0, StatusCode::NOT_FOUND);
    // What was computed is there for the next turn.
    let mut next = long();
    next["messages"].as_array_mut().unwrap().push(json!({ "role": "assistant", "content": text }));
    next["max_tokens"] = json!(1);
    let next = app.ok("/v1/chat/completions", &next).await;
    assert!(next["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(10), "{next}");
    let (_, metrics) = app.get("/metrics").await;
    assert!(metrics.as_str().unwrap().contains("nextn:requests_total{reason=\"cancelled\"} 1"), "{metrics}");
}

#[tokio::test]
async fn every_family_of_endpoints_says_it_in_its_own_words() {
    let app = App::new();
    let completion = json!({ "prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": true, "n": 2 });
    let mut stream = app.open("/v1/completions", &completion).await;
    assert!(stream.more().await);
    cancel(&app, &stream.so_far()[0]["id"].clone()).await;
    let reasons: Vec<Value> = stream
        .events()
        .await
        .iter()
        .map(|e| e["choices"][0]["finish_reason"].clone())
        .filter(|r| !r.is_null())
        .collect();
    assert_eq!(reasons, ["abort", "abort"], "both of its replies");

    let mut stream = app.open("/v1/messages", &long()).await;
    while !stream.said().contains("content_block_delta") {
        assert!(stream.more().await);
    }
    cancel(&app, &stream.so_far()[0]["message"]["id"].clone()).await;
    let events = stream.events().await;
    let delta = events.iter().find(|e| e["type"] == "message_delta").expect("an end");
    assert_eq!(delta["delta"]["stop_reason"], "abort");
    assert_eq!(events.last().unwrap()["type"], "message_stop");
}

#[tokio::test]
async fn a_response_is_cancelled_in_openais_way() {
    let app = App::new();
    let body = json!({ "input": "Tell me a story.", "max_output_tokens": 900, "ignore_eos": true, "reasoning": { "effort": "none" } });
    let mut stream = app.open("/v1/responses", &body).await;
    while !stream.said().contains("output_text.delta") {
        assert!(stream.more().await);
    }
    let id = stream.so_far()[0]["response"]["id"].as_str().unwrap().to_owned();
    // The rest of the stream is read while the request waits for what the response has become.
    let request = Request::post(format!("/v1/responses/{id}/cancel")).body(Body::empty()).unwrap();
    let (events, (status, cancelled)) = tokio::join!(stream.events(), app.send(request));
    let cancelled: Value = serde_json::from_slice(&cancelled).unwrap();
    assert_eq!((status, &cancelled["status"], &cancelled["id"]), (StatusCode::OK, &json!("cancelled"), &json!(id)));
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]), (&json!("response.incomplete"), &cancelled));
    assert_eq!(cancelled["output"][0]["status"], "incomplete");
    assert!(!cancelled["output"][0]["content"][0]["text"].as_str().unwrap().is_empty(), "{cancelled}");
    assert!(cancelled["incomplete_details"].is_null() && cancelled["usage"]["output_tokens"].as_u64() > Some(0));
    for (path, status) in [
        (format!("/v1/responses/{id}/cancel"), StatusCode::NOT_FOUND),
        ("/responses/resp_nobody/cancel".into(), StatusCode::NOT_FOUND),
    ] {
        assert_eq!(app.post(&path, &json!({})).await.0, status, "{path}");
    }
}

#[tokio::test]
async fn another_key_cannot_steer_it_wherever_state_is_shared() {
    for cache_scope in [CacheScope::Key, CacheScope::All] {
        let api_keys = vec!["one".into(), "two".into()];
        let app = Arc::new(App::with(Settings { api_keys, cache_scope, ..Settings::default() }));
        let sent = |key: &str, path: &str, body: &Value| {
            let request = Request::post(path).header("content-type", "application/json").header("x-api-key", key);
            let request = request.body(Body::from(body.to_string())).unwrap();
            let app = Arc::clone(&app);
            async move { app.stream_of(request).await }
        };
        let mut body = long();
        body["stream"] = json!(true);
        let mut stream = sent("one", "/v1/chat/completions", &body).await;
        assert_eq!(stream.status, StatusCode::OK);
        let id = begun(&mut stream).await;
        for action in ["cancel", "reasoning_end"] {
            let order = json!({ "id": id, "action": action });
            let theirs = sent("two", "/v1/chat/completions/control", &order).await;
            let expected = if action == "cancel" { StatusCode::NOT_FOUND } else { StatusCode::OK };
            assert_eq!(theirs.status, expected);
            assert!(!theirs.whole().await.contains("\"success\":true"));
        }
        let own = sent("one", "/v1/chat/completions/control", &json!({ "id": id, "action": "cancel" })).await;
        assert_eq!(own.status, StatusCode::OK);
        assert!(stream.whole().await.contains("\"abort\""));
    }
}

#[tokio::test]
async fn thinking_is_ended_and_the_answer_goes_on() {
    let app = App::new();
    let mut body = long();
    (body["chat_template_kwargs"], body["max_tokens"]) = (json!({ "enable_thinking": true }), json!(300));
    let mut stream = app.open("/v1/chat/completions", &body).await;
    while !stream.said().contains("reasoning_content\":\"") {
        assert!(stream.more().await);
    }
    let order = |id: &Value| json!({ "id": id, "action": "reasoning_end" });
    let id = stream.so_far()[0]["id"].clone();
    let ended = app.ok("/v1/chat/completions/control", &order(&id)).await;
    let events = stream.events().await;
    let n_thought = events.iter().filter(|e| e["choices"][0]["delta"]["reasoning_content"].is_string()).count();
    assert_eq!(ended, json!({ "success": true }), "after {n_thought} parts of thinking");
    assert!(!said(&events).is_empty(), "an answer follows");
    for id in [id, json!("chatcmpl-nobody")] {
        let late = app.ok("/v1/chat/completions/control", &order(&id)).await;
        assert_eq!((&late["success"], late["message"].is_string()), (&json!(false), true), "{late}");
    }
    for (body, field) in [
        (json!({ "id": "x", "action": "explode" }), "action"),
        (json!({ "id": "x" }), "action"),
        (json!({ "action": "cancel" }), "id"),
    ] {
        let (status, answer) = app.post("/v1/chat/completions/control", &body).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)), "{answer}");
    }
}

#[tokio::test]
async fn cancelling_under_load_loses_no_slot_and_harms_nobody() {
    let config = EngineConfig { n_sequences: 3, max_queue: 16, ..EngineConfig::default() };
    let app = App::over(config, Settings { metrics: true, slots: true, ..Settings::default() });
    let expected = app.ok("/v1/chat/completions", &question("What is 20 + 15?")).await;
    for _ in 0..6 {
        let mut streams = Vec::new();
        for _ in 0..8 {
            streams.push(app.open("/v1/chat/completions", &long()).await);
        }
        let ids: Vec<Value> = streams.iter().map(|stream| stream.so_far()[0]["id"].clone()).collect();
        // Some run, some wait for a slot.
        let bystander = question("What is 20 + 15?");
        let (statuses, answer) = tokio::join!(
            futures_util::future::join_all(ids.iter().map(|id| cancel(&app, id))),
            app.ok("/v1/chat/completions", &bystander)
        );
        assert!(statuses.iter().all(|(status, _)| *status == StatusCode::OK));
        assert_eq!(answer["choices"][0]["message"]["content"], expected["choices"][0]["message"]["content"]);
        for stream in streams {
            let events = stream.events().await;
            assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "abort");
        }
    }
    until_idle(&app).await;
    let served = app.state.registry().get(None).await.unwrap();
    assert_eq!(served.engine().n_waiting(), 0);
    let (_, metrics) = app.get("/metrics").await;
    assert!(metrics.as_str().unwrap().contains("nextn:requests_total{reason=\"cancelled\"} 48"), "{metrics}");
}
