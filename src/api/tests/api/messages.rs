//! `/v1/messages` and `/v1/messages/count_tokens`.

use api::Settings;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{App, question};

fn asked(text: &str) -> Value {
    json!({ "model": "any", "max_tokens": 200, "messages": [{ "role": "user", "content": text }] })
}

fn weather() -> Value {
    let city = json!({ "type": "string", "description": "The name of the city", "maxLength": 20 });
    let schema = json!({ "type": "object", "properties": { "city": city }, "required": ["city"] });
    json!([{ "name": "get_weather", "description": "Get the current weather for a city.", "input_schema": schema }])
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.as_str()).collect()
}

/// The message that a client builds up from events, in the way of Anthropic's own.
fn built(events: &[(String, Value)]) -> Value {
    let mut message = events[0].1["message"].clone();
    let mut json_of_call = String::new();
    for (name, data) in events {
        let i = data["index"].as_u64().unwrap_or(0) as usize;
        match name.as_str() {
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().unwrap();
                assert_eq!(blocks.len(), i, "blocks come in turn");
                blocks.push(data["content_block"].clone());
                json_of_call.clear();
            }
            "content_block_delta" => {
                let block = &mut message["content"][i];
                let delta = &data["delta"];
                match delta["type"].as_str().unwrap() {
                    "text_delta" => block["text"] = append(&block["text"], &delta["text"]),
                    "thinking_delta" => block["thinking"] = append(&block["thinking"], &delta["thinking"]),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    "input_json_delta" => json_of_call += delta["partial_json"].as_str().unwrap(),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" if message["content"][i]["type"] == "tool_use" => {
                message["content"][i]["input"] = serde_json::from_str(&json_of_call).unwrap();
            }
            "message_delta" => {
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = data["delta"][field].clone();
                }
                message["usage"] = data["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

fn append(to: &Value, more: &Value) -> Value {
    json!(format!("{}{}", to.as_str().unwrap(), more.as_str().unwrap()))
}

#[tokio::test]
async fn a_stream_builds_up_the_whole_message() {
    let app = App::new();
    for (thinking, kinds) in [
        (json!({ "type": "disabled" }), vec!["text"]),
        (json!({ "type": "enabled", "budget_tokens": 1024 }), vec!["thinking", "text"]),
        (Value::Null, vec!["text"]),
    ] {
        let mut body = asked("What is 20 + 15?");
        body["thinking"] = thinking;
        let whole = app.ok("/v1/messages", &body).await;
        let found: Vec<&str> =
            whole["content"].as_array().unwrap().iter().map(|b| b["type"].as_str().unwrap()).collect();
        assert_eq!(found, kinds, "{whole}");
        assert!(whole["content"].as_array().unwrap().last().unwrap()["text"].as_str().unwrap().contains("35"));
        assert_eq!(
            (&whole["type"], &whole["role"], &whole["stop_reason"]),
            (&json!("message"), &json!("assistant"), &json!("end_turn"))
        );

        let events = app.named("/v1/messages", &body).await;
        let message = built(&events);
        for field in ["content", "stop_reason", "stop_sequence", "role", "model"] {
            assert_eq!(message[field], whole[field], "{field}");
        }
        assert_eq!(message["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
        let all = |usage: &Value| {
            usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
        };
        assert_eq!(all(&message["usage"]), all(&whole["usage"]));
        assert!(message["usage"]["cache_read_input_tokens"].as_u64() > Some(0), "the second time the prompt is known");
        let names = names(&events);
        assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
        assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    }
}

#[tokio::test]
async fn tools_are_called_and_their_results_used() {
    let app = App::new();
    let mut body = asked("What is the weather in Paris?");
    body["tools"] = weather();
    let answer = app.ok("/v1/messages", &body).await;
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let call = answer["content"].as_array().unwrap().last().unwrap();
    assert_eq!((&call["name"], &call["input"]), (&json!("get_weather"), &json!({ "city": "Paris" })));
    let events = app.named("/v1/messages", &body).await;
    let message = built(&events);
    assert_eq!(message["content"].as_array().unwrap().last().unwrap()["input"], call["input"]);
    assert!(events.iter().filter(|(_, data)| data["delta"]["type"] == "input_json_delta").count() > 2);

    let result = json!([{ "type": "text", "text": "sunny, 21 degrees" }]);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": answer["content"] }));
    messages.push(json!({ "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": call["id"], "content": result },
    ] }));
    let answer = app.ok("/v1/messages", &body).await;
    assert!(answer["content"][0]["text"].as_str().unwrap().contains("sunny"), "{answer}");
}

#[tokio::test]
async fn calls_are_forced_and_forbidden() {
    let app = App::new();
    for choice in
        [json!({ "type": "any" }), json!({ "type": "tool", "name": "get_weather", "disable_parallel_tool_use": true })]
    {
        let mut body = asked("Who are you?");
        (body["tools"], body["tool_choice"]) = (weather(), choice);
        let answer = app.ok("/v1/messages", &body).await;
        assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("tool_use"), &Value::Null), "{answer}");
        assert!(answer["content"].as_array().unwrap().last().unwrap()["input"]["city"].is_string(), "{answer}");
    }
    let mut body = asked("What is the weather in Paris?");
    (body["tools"], body["tool_choice"]) = (weather(), json!({ "type": "none" }));
    let answer = app.ok("/v1/messages", &body).await;
    assert_eq!((&answer["stop_reason"], &answer["content"][0]["type"]), (&json!("end_turn"), &json!("text")));
}

#[tokio::test]
async fn answers_end_where_they_should_and_say_why() {
    let app = App::new();
    let whole = app.ok("/v1/messages", &asked("What is 20 + 15?")).await;
    let text = whole["content"][0]["text"].as_str().unwrap();
    let mut body = asked("What is 20 + 15?");
    body["stop_sequences"] = json!([" ="]);
    let stopped = app.ok("/v1/messages", &body).await;
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(" =")));
    assert_eq!(stopped["content"][0]["text"].as_str(), text.split(" =").next());
    let mut body = asked("Tell me a story.");
    body["max_tokens"] = json!(5);
    let cut = app.ok("/v1/messages", &body).await;
    assert_eq!((&cut["stop_reason"], &cut["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(5)));
    // What the assistant has begun is continued.
    let mut body = asked("What is 20 + 15?");
    body["messages"].as_array_mut().unwrap().push(json!({ "role": "assistant", "content": "20 + 15" }));
    let rest = app.ok("/v1/messages", &body).await;
    assert_eq!(format!("20 + 15{}", rest["content"][0]["text"].as_str().unwrap()), text);
    let mut body = asked("My name is Clara and I am 31 years old.");
    let schema = json!({ "type": "object", "properties": { "age": { "type": "integer", "maximum": 150 } }, "required": ["age"], "additionalProperties": false });
    body["output_config"] = json!({ "format": { "type": "json_schema", "schema": schema } });
    let formed = app.ok("/v1/messages", &body).await;
    let value: Value = serde_json::from_str(formed["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(value["age"].is_u64(), "{formed}");
}

#[tokio::test]
async fn counts_are_those_of_the_prompt() {
    let app = App::new();
    let mut body = asked("What is the weather in Paris?");
    body["system"] = json!([{ "type": "text", "text": "You are brief." }, { "type": "text", "text": "Very." }]);
    body["tools"] = weather();
    let counted = app.ok("/v1/messages/count_tokens", &body).await["input_tokens"].as_u64().unwrap();
    let usage = app.ok("/v1/messages", &body).await["usage"].clone();
    assert_eq!(counted, usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap());
    // The same conversation by the other interface.
    let mut chat = question("What is the weather in Paris?");
    let system = json!({ "role": "system", "content": "You are brief.\n\nVery." });
    chat["messages"].as_array_mut().unwrap().insert(0, system);
    let tool = &weather()[0];
    let (name, description, parameters) = (&tool["name"], &tool["description"], &tool["input_schema"]);
    chat["tools"] = json!([{ "type": "function", "function": { "name": name, "description": description, "parameters": parameters } }]);
    assert_eq!(app.ok("/v1/chat/completions", &chat).await["usage"]["prompt_tokens"], counted);
}

#[tokio::test]
async fn what_is_no_text_is_a_note_and_a_tool_of_a_server_is_left_out() {
    let app = App::new();
    let count = async |body: &Value| app.ok("/v1/messages/count_tokens", body).await["input_tokens"].as_u64().unwrap();
    let mut body = asked("Hello");
    let plain = count(&body).await;
    // The header differs in every request, and would keep a cache from matching.
    let header = "x-anthropic-billing-header: cc_version=2.1.1; cc_entrypoint=cli; cch=";
    body["system"] = json!([{ "type": "text", "text": format!("{header}aaaaa;") }]);
    assert_eq!(count(&body).await, plain);
    body["system"] = json!(null);

    body["messages"] = json!([
        { "role": "user", "content": [image_block(), { "type": "document", "source": { "type": "text", "data": "The river is long." } }] },
        { "role": "assistant", "content": [
            { "type": "server_tool_use", "id": "s1", "name": "web_search", "input": {} },
            { "type": "tool_use", "id": "t1", "name": "get_weather", "input": { "city": "Paris" } },
        ] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t1", "content": [
            { "type": "text", "text": "sunny" }, image_block(), { "type": "tool_reference", "tool_name": "x" },
        ] }] },
        { "role": "system", "content": "Be brief." },
    ]);
    body["tools"] = json!([
        weather()[0],
        { "type": "bash_20250124", "name": "bash" },
        { "type": "web_search_20250305", "name": "web_search" },
    ]);
    let answer = app.ok("/v1/messages", &body).await;
    assert_eq!(answer["warnings"].as_array().map(Vec::len), Some(1), "{answer}");
    assert!(answer["warnings"][0].as_str().unwrap().contains("web_search_20250305"), "{answer}");
}

#[tokio::test]
async fn errors_have_the_shape_of_this_interface() {
    let app = App::new();
    let user = |content: Value| json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 5 });
    let with = |field: &str, value: Value| {
        let mut body = asked("Hello");
        body[field] = value;
        body
    };
    for (body, word) in [
        (json!({ "max_tokens": 5 }), "messages"),
        (json!({ "messages": [], "max_tokens": 5 }), "at least one"),
        (user(json!([{ "text": "x" }])), "a block with a type"),
        (user(json!([{ "type": "text" }])), "text: a text"),
        (user(json!([{ "type": "tool_use", "id": "x", "name": "y", "input": {} }])), "tool_use"),
        (user(json!([{ "type": "tool_result" }])), "tool_use_id"),
        (user(json!(7)), "messages[0].content"),
        (json!({ "messages": [{ "role": "wizard", "content": "x" }] }), "wizard"),
        (with("max_tokens", json!(-2)), "max_tokens"),
        (with("top_k", json!("x")), "top_k"),
        (with("n", json!(2)), "1 answer"),
        (with("system", json!([image_block()])), "system"),
        (with("thinking", json!({ "type": "always" })), "always"),
        (with("thinking", json!({ "type": "enabled", "budget_tokens": 0 })), "budget_tokens"),
        (with("tools", json!([{ "description": "d" }])), "tools[0].name"),
        (with("tool_choice", json!({ "type": "some" })), "tool_choice"),
        (with("tool_choice", json!({ "type": "tool" })), "name"),
        (with("output_config", json!({ "format": { "type": "xml" } })), "output_config"),
    ] {
        for path in ["/v1/messages", "/v1/messages/count_tokens"] {
            // Fields that shape no prompt are not counted.
            if path.ends_with("count_tokens") && ["max_tokens", "top_k", "1 answer"].contains(&word) {
                continue;
            }
            let (status, answer) = app.post(path, &body).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body}: {answer}");
            assert_eq!((&answer["type"], &answer["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
            assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{body}: {answer}");
            assert!(answer["request_id"].as_str().unwrap().starts_with("req_"), "{answer}");
        }
    }
    let request = Request::post("/v1/messages").header("content-type", "text/plain").header("origin", "null");
    let request = request.body(Body::from("x")).unwrap();
    let (status, body) = app.send(request).await;
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, &body["type"]), (StatusCode::UNSUPPORTED_MEDIA_TYPE, &json!("error")));
    let (status, body) = app.get("/v1/messages").await;
    assert_eq!((status, &body["type"]), (StatusCode::METHOD_NOT_ALLOWED, &json!("error")));
}

fn image_block() -> Value {
    json!({ "type": "image", "source": {} })
}

#[tokio::test]
async fn keys_and_limits_hold_here_too() {
    let settings = Settings { api_keys: vec!["one".into()], requests_per_minute: Some(1), ..Settings::default() };
    let app = App::with(settings);
    let send = |key: &'static str| {
        let request = Request::post("/v1/messages").header("content-type", "application/json").header("x-api-key", key);
        let request = request.body(Body::from(asked("Hello").to_string())).unwrap();
        let router = app.router.clone();
        async move {
            let response = router.oneshot(request).await.unwrap();
            let id = response.headers()["request-id"].to_str().unwrap().to_owned();
            let (status, wait) = (response.status(), response.headers().contains_key("retry-after"));
            let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert!(status == StatusCode::OK || body["request_id"] == id, "{body}");
            (status, wait, body["error"]["type"].clone())
        }
    };
    assert_eq!(send("two").await, (StatusCode::UNAUTHORIZED, false, json!("authentication_error")));
    assert_eq!(send("one").await, (StatusCode::OK, false, Value::Null));
    assert_eq!(send("one").await, (StatusCode::TOO_MANY_REQUESTS, true, json!("rate_limit_error")));
}
