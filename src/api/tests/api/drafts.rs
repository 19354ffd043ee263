//! Speculation over HTTP: with the model's head drafting, every kind of request says what it says without.

use api::Settings;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use engine::EngineConfig;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{App, question};

/// Forward passes so narrow that bits depend neither on what shares them nor on where a prompt is cut: any difference is a
/// fault (docs/NUMERICS.md).
fn narrow(n_sequences: usize) -> EngineConfig {
    EngineConfig { n_sequences, n_batch: 16, n_batch_shared: 8, ..EngineConfig::default() }
}

/// A server that drafts, and one that does not.
fn two(n_sequences: usize) -> (App, App) {
    (App::over(narrow(n_sequences), Settings::default()), App::plain(narrow(n_sequences)))
}

/// An answer without what may differ: ids, times and figures.
fn said(answer: &Value) -> Value {
    match answer {
        Value::Object(map) => {
            let drop = ["id", "created", "timings", "usage", "created_at", "completed_at", "item_id", "call_id"];
            let kept = map.iter().filter(|(key, _)| !drop.contains(&key.as_str()));
            kept.map(|(key, value)| (key.clone(), said(value))).collect()
        }
        Value::Array(list) => list.iter().map(said).collect(),
        other => other.clone(),
    }
}

fn n_accepted(answer: &Value) -> u64 {
    answer["timings"]["draft_n_accepted"].as_u64().unwrap_or_else(|| panic!("no timings: {answer}"))
}

fn with(text: &str, fields: Value) -> Value {
    let mut body = question(text);
    body.as_object_mut().expect("a body").extend(fields.as_object().expect("fields").clone());
    body
}

#[tokio::test]
async fn ten_turns_whose_thinking_the_template_strips_stay_the_same_and_are_not_read_again() {
    let (drafting, plain) = two(1);
    let mut messages = vec![json!({ "role": "system", "content": "You are a helpful assistant." })];
    let mut accepted = 0;
    for turn in 0..10 {
        messages.push(json!({ "role": "user", "content": format!("What is {} + {}?", 3 * turn, turn + 8) }));
        let body =
            json!({ "messages": messages, "max_tokens": 40, "chat_template_kwargs": { "enable_thinking": true } });
        let answer = drafting.ok("/v1/chat/completions", &body).await;
        assert_eq!(said(&answer), said(&plain.ok("/v1/chat/completions", &body).await), "turn {turn}");
        let message = answer["choices"][0]["message"].clone();
        assert!(message["reasoning_content"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
        let cached = answer["timings"]["cache_n"].as_u64().expect("a number");
        assert!(turn == 0 || cached > 15 * turn, "turn {turn}: {cached} tokens of the earlier ones");
        accepted += n_accepted(&answer);
        messages.push(message);
    }
    assert!(accepted > 50, "{accepted}");
}

#[tokio::test]
async fn two_conversations_take_turns_on_one_slot() {
    let (drafting, plain) = two(1);
    let mut talks = ["What is 412 - 187?", "Tell me a short story about a robot."].map(|text| vec![text]);
    for turn in ["Double it.", "Who are you?", "What is the capital of France?"] {
        for texts in &mut talks {
            let mut messages = Vec::new();
            for text in texts.iter() {
                messages.push(json!({ "role": "user", "content": text }));
                let body = json!({ "messages": messages, "max_tokens": 24,
                    "chat_template_kwargs": { "enable_thinking": false } });
                let answer = drafting.ok("/v1/chat/completions", &body).await;
                assert_eq!(said(&answer), said(&plain.ok("/v1/chat/completions", &body).await), "{texts:?}");
                messages.push(answer["choices"][0]["message"].clone());
            }
            texts.push(turn);
        }
    }
}

#[tokio::test]
async fn every_kind_of_request_says_what_it_says_without_drafts() {
    let (drafting, plain) = two(4);
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string", "maxLength": 20 },
        "age": { "type": "integer", "minimum": 0, "maximum": 150 } }, "required": ["name", "age"] });
    let tool = json!([{ "type": "function", "function": { "name": "get_weather", "parameters": { "type": "object",
        "properties": { "city": { "type": "string", "maxLength": 20 }, "days": { "type": "integer" } },
        "required": ["city", "days"] } } }]);
    let chat = "/v1/chat/completions";
    let mut accepted = 0;
    for (path, body) in [
        (chat, with("Tell me a joke.", json!({ "n": 4 }))),
        (chat, with("Tell me a joke.", json!({ "n": 4, "temperature": 1.2, "top_p": 0.95, "seed": 5 }))),
        (chat, with("I am Clara, 31 years old.", json!({ "json_schema": schema, "max_tokens": 80 }))),
        (
            chat,
            with("How is the weather in Oslo?", json!({ "tools": tool, "tool_choice": "required", "max_tokens": 90 })),
        ),
        (chat, with("How is the weather in Oslo?", json!({ "tools": tool, "max_tokens": 90 }))),
        (chat, with("Count from 1 to 20.", json!({ "logprobs": true, "top_logprobs": 3 }))),
        (chat, with("Count from 1 to 20.", json!({ "stop": ["12"], "repeat_penalty": 1.1 }))),
        ("/completion", json!({ "prompt": "Once upon a time", "n_predict": 40, "return_tokens": true })),
        ("/completion", json!({ "prompt": "Once upon a time", "n_predict": 40, "mirostat": 2, "seed": 3 })),
        ("/v1/completions", json!({ "prompt": ["Once upon", "The capital of"], "max_tokens": 30, "n": 2 })),
    ] {
        let answer = drafting.ok(path, &body).await;
        let mut expected = plain.ok(path, &body).await;
        // What the server is set to is told there, too.
        for key in ["generation_settings", "id_slot"] {
            if answer.get(key).is_some() {
                expected[key] = answer[key].clone();
            }
        }
        assert_eq!(said(&answer), said(&expected), "{path} {body}");
        accepted += answer.get("timings").map_or(0, |_| n_accepted(&answer));
    }
    assert!(accepted > 50, "{accepted}");
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_drafts_leaves_a_slot_that_answers_as_before() {
    let (drafting, plain) = two(1);
    let story = with("Tell me a short story about a dragon.", json!({ "max_tokens": 400, "ignore_eos": true }));
    let after = with("Tell me a short story about a dragon.", json!({ "max_tokens": 60 }));
    let expected = plain.ok("/v1/chat/completions", &after).await;
    for n_frames in [1, 3, 7] {
        let mut streamed = story.clone();
        streamed["stream"] = json!(true);
        let request = Request::post("/v1/chat/completions").header("content-type", "application/json");
        let request = request.body(Body::from(streamed.to_string())).expect("a request");
        let response = drafting.router.clone().oneshot(request).await.expect("a router does not fail");
        assert_eq!(response.status(), StatusCode::OK);
        let mut body = response.into_body();
        for _ in 0..n_frames {
            body.frame().await.expect("the story goes on").expect("a frame");
        }
        drop(body);
        let answer = drafting.ok("/v1/chat/completions", &after).await;
        assert_eq!(said(&answer), said(&expected), "after {n_frames} frames");
        assert!(n_accepted(&answer) > 0, "{answer}");
    }
}

#[tokio::test]
async fn a_slot_that_was_saved_goes_on_with_the_same_tokens_and_drafts() {
    let directory = tempfile::tempdir().expect("a folder");
    let settings =
        || Settings { slots: true, slot_save_path: Some(directory.path().to_owned()), ..Settings::default() };
    let body = with("Tell me a short story about a dragon.", json!({ "max_tokens": 30 }));
    let app = App::over(narrow(1), settings());
    let first = app.ok("/v1/chat/completions", &body).await;
    app.ok("/slots/0?action=save", &json!({ "filename": "story" })).await;
    let mut messages = body["messages"].as_array().expect("messages").clone();
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({ "role": "user", "content": "What is 20 + 15?" }));
    let next = with("", json!({ "messages": messages }));
    let expected = app.ok("/v1/chat/completions", &next).await;
    let other = App::over(narrow(1), settings());
    other.ok("/slots/0?action=restore", &json!({ "filename": "story" })).await;
    let answer = other.ok("/v1/chat/completions", &next).await;
    assert_eq!(said(&answer), said(&expected));
    let figures =
        |answer: &Value| ["cache_n", "draft_n", "draft_n_accepted"].map(|name| answer["timings"][name].clone());
    assert_eq!(figures(&answer), figures(&expected), "the head knows what it knew");
}
