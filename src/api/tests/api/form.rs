//! Answers in a given form over HTTP: every family's fields, forced tool calls, and what is refused.

use std::time::Duration;

use api::{AppState, Registry, Served, Settings};
use engine::EngineConfig;
use hyper::StatusCode;
use serde_json::{Value, json};
use session::Limits;

use crate::support::{App, question, served};

fn schema() -> Value {
    json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"],
        "additionalProperties": false})
}

/// The question with more fields.
fn with(fields: Value) -> Value {
    let mut body = question("My name is Clara and I am 31 years old.");
    let fields = fields.as_object().expect("fields").clone();
    body.as_object_mut().expect("a body").extend(fields);
    body
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("no text: {answer}"))
}

fn is_person(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    value.as_object().is_some_and(|map| map.len() == 2) && value["name"].is_string() && value["age"].is_u64()
}

#[tokio::test]
async fn a_schema_holds_by_every_name_whole_and_streamed() {
    let app = App::new();
    for fields in [
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": schema()}}}),
        json!({"json_schema": schema(), "temperature": 1.0, "seed": 3}),
        json!({"structured_outputs": {"json": schema()}}),
    ] {
        let answer = app.ok("/v1/chat/completions", &with(fields.clone())).await;
        assert!(is_person(content(&answer)), "{fields}: {answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        let events = app.stream("/v1/chat/completions", &with(fields)).await;
        let deltas = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
        assert_eq!(deltas.collect::<String>(), content(&answer));
    }
    // After thinking, which stays free.
    let mut body = with(json!({"response_format": {"type": "json_object"}, "max_tokens": 300}));
    body["chat_template_kwargs"]["enable_thinking"] = json!(true);
    let answer = app.ok("/v1/chat/completions", &body).await;
    let message = &answer["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
    assert!(serde_json::from_str::<Value>(content(&answer)).is_ok_and(|value| value.is_object()), "{answer}");
}

#[tokio::test]
async fn grammars_choices_and_expressions_hold_on_every_endpoint() {
    let app = App::new();
    let answer =
        app.ok("/v1/chat/completions", &with(json!({"grammar": "root ::= \"It is \" [0-9]{1,3} \".\""}))).await;
    let text = content(&answer);
    assert!(text.starts_with("It is ") && text.ends_with('.') && text.len() < 11, "{text}");
    let answer = app.ok("/v1/chat/completions", &with(json!({"guided_choice": ["red", "green"], "n": 2}))).await;
    for choice in answer["choices"].as_array().expect("two choices") {
        assert!(["red", "green"].contains(&choice["message"]["content"].as_str().expect("a text")), "{answer}");
    }
    let body = json!({"prompt": "Once", "max_tokens": 40, "regex": "[a-z]{3} [0-9]{1,4}x"});
    let answer = app.ok("/v1/completions", &body).await;
    let text = answer["choices"][0]["text"].as_str().expect("a text");
    assert!(text.ends_with('x') && text.as_bytes()[3] == b' ', "{text}");
    let body = json!({"prompt": "Once", "n_predict": 40, "json_schema": schema()});
    assert!(is_person(app.ok("/completion", &body).await["content"].as_str().expect("a text")));
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
            "required": ["city", "days"]}}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
    ])
}

#[tokio::test]
async fn calls_are_made_where_they_must_be() {
    let app = App::new();
    for (choice, name) in [
        (json!("required"), None),
        (json!({"type": "function", "function": {"name": "get_weather"}}), Some("get_weather")),
        (json!({"type": "function", "function": {"name": "now"}}), Some("now")),
    ] {
        let fields = json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 200});
        let answer = app.ok("/v1/chat/completions", &with(fields)).await;
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!((calls.len(), &answer["choices"][0]["finish_reason"]), (1, &json!("tool_calls")), "{answer}");
        let function = &calls[0]["function"];
        assert!(name.is_none_or(|name| function["name"] == name), "{answer}");
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().expect("JSON")).expect("JSON");
        if function["name"] == "get_weather" {
            assert!(arguments["city"].is_string() && arguments["days"].is_i64(), "{arguments}");
        } else {
            assert_eq!(arguments, json!({}));
        }
    }
    // A free choice may still talk.
    let mut reasons = Vec::new();
    for text in ["Who are you?", "Tell me a joke.", "Hello!"] {
        let mut body = question(text);
        body["tools"] = tools();
        reasons.push(app.ok("/v1/chat/completions", &body).await["choices"][0]["finish_reason"].clone());
    }
    assert!(reasons.contains(&json!("stop")), "{reasons:?}");
}

#[tokio::test]
async fn beside_tools_a_form_holds_for_the_text_and_calls_may_still_be_made() {
    let app = App::new();
    let format = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema()}});
    let (mut n_texts, mut n_calls) = (0, 0);
    for text in ["My name is Clara and I am 31 years old.", "What is the weather in Paris?", "Hello!", "Who are you?"] {
        for thinking in [false, true] {
            let mut body = question(text);
            (body["tools"], body["response_format"], body["max_tokens"]) = (tools(), format.clone(), json!(400));
            body["chat_template_kwargs"]["enable_thinking"] = json!(thinking);
            let answer = app.ok("/v1/chat/completions", &body).await;
            let choice = &answer["choices"][0];
            match choice["message"]["tool_calls"].as_array() {
                Some(calls) => {
                    assert_eq!((&choice["finish_reason"], calls.is_empty()), (&json!("tool_calls"), false), "{answer}");
                    assert!(choice["message"]["content"].as_str().unwrap_or_default().is_empty(), "{answer}");
                    n_calls += 1;
                }
                None => {
                    assert!(is_person(content(&answer)), "{text}: {answer}");
                    n_texts += 1;
                }
            }
        }
    }
    // With calls demanded or forbidden there is nothing to choose.
    let mut body =
        with(json!({"tools": tools(), "response_format": format, "tool_choice": "required", "max_tokens": 200}));
    let answer = app.ok("/v1/chat/completions", &body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
    body["tool_choice"] = json!("none");
    assert!(is_person(content(&app.ok("/v1/chat/completions", &body).await)));
    assert!(n_texts > 0 && n_calls > 0, "the model did both: {n_texts} {n_calls}");
}

#[tokio::test]
async fn only_allowed_tools_are_called() {
    let app = App::new();
    for mode in ["required", "auto"] {
        let allowed = json!({"mode": mode, "tools": [{"type": "function", "function": {"name": "now"}}]});
        let choice = json!({"type": "allowed_tools", "allowed_tools": allowed});
        let mut body = question("What is the weather in Paris?");
        (body["tools"], body["tool_choice"], body["max_tokens"]) = (tools(), choice, json!(100));
        let answer = app.ok("/v1/chat/completions", &body).await;
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        assert!(mode == "auto" || !calls.is_empty(), "{answer}");
        assert!(calls.iter().all(|call| call["function"]["name"] == "now"), "{answer}");
    }
}

#[tokio::test]
async fn what_cannot_be_held_to_is_refused_with_its_field_and_reason() {
    let app = App::new();
    let unnamed = json!([{"type": "function", "function": {"parameters": {}}}]);
    for (fields, field, reason) in [
        (json!({"json_schema": {"type": "banana"}}), "json_schema", "banana"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": true}}}}),
            "response_format",
            "uniqueItems",
        ),
        (json!({"grammar": "root ::= other"}), "grammar", "`other`"),
        (json!({"regex": "("}), "regex", "regular expression"),
        (json!({"grammar": "root ::= \"x\"", "guided_regex": "y"}), "grammar", "give one"),
        (
            json!({"tools": tools(), "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "banana"}}}}),
            "response_format",
            "banana",
        ),
        (
            json!({"tools": tools(), "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "then"}}]}}}),
            "tools",
            "then",
        ),
        (json!({"tool_choice": "required"}), "tools", "empty"),
        (
            json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "other"}}}),
            "tools",
            "other",
        ),
        (json!({"tools": unnamed, "tool_choice": "required"}), "tools", "name"),
        (json!({"regex": "a".repeat(70_000)}), "regex", "65536"),
    ] {
        let (status, answer) = app.post("/v1/chat/completions", &with(fields.clone())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{fields}: {answer}");
        assert_eq!(answer["error"]["param"], field, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains(reason)), "{answer}");
    }
    let answer = app.ok("/v1/chat/completions", &question("Who are you?")).await;
    assert!(!content(&answer).is_empty());
}

/// A tool whose grammar takes many seconds: each of these patterns is compared with each, beside all others.
fn slow_tool(n: usize) -> Value {
    let patterns: serde_json::Map<_, _> = (0..400).map(|i| (format!("^{n}x{i}y*$"), json!({}))).collect();
    let slow = json!({"type": "object", "patternProperties": patterns});
    json!([{"type": "function", "function": {"name": "slow", "parameters": {"type": "object",
        "properties": {"x": slow}, "required": ["x"]}}}])
}

#[tokio::test]
async fn a_grammar_that_is_not_had_in_time_fails_its_request_and_none_goes_on_without() {
    let short = Duration::from_millis(300);
    let limits = Limits { build: short, wait: short, max_patterns: usize::MAX, ..Limits::default() };
    let served = served(EngineConfig::default());
    let served = Served { model: served.model.with_limits(limits), ..served };
    let state = AppState::new(Registry::of(served), Settings::default());
    let app = App { router: api::router(state.clone()), state };
    for (i, choice) in ["auto", "required", "auto"].into_iter().enumerate() {
        let fields = json!({"tools": slow_tool(i), "tool_choice": choice});
        let (status, answer) = app.post("/v1/chat/completions", &with(fields)).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("tools")), "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("took longer")), "{answer}");
    }
    // The three still go on: there is no thread for more.
    for fields in [json!({"tools": tools()}), json!({"json_schema": schema()})] {
        let (status, answer) = app.post("/v1/chat/completions", &with(fields)).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("try again")), "{answer}");
    }
    let answer = app.ok("/v1/chat/completions", &question("Who are you?")).await;
    assert!(!content(&answer).is_empty(), "what needs no grammar is answered");
}
