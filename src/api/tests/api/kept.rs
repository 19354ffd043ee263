//! Responses that are kept: going on with them, fetching them, and who may.

use api::{KeptResponses, Settings};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

use crate::support::App;

fn asked(input: Value) -> Value {
    json!({ "input": input, "max_output_tokens": 60, "reasoning": { "effort": "none" } })
}

fn text(response: &Value) -> String {
    let items = response["output"].as_array().unwrap().iter();
    let message = items.clone().find(|item| item["type"] == "message").unwrap_or_else(|| panic!("{response}"));
    message["content"][0]["text"].as_str().unwrap().to_owned()
}

async fn delete(app: &App, path: &str) -> (StatusCode, Value) {
    let (status, body) = app.send(Request::delete(path).body(Body::empty()).unwrap()).await;
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn a_response_goes_on_with_the_one_before_as_if_all_had_been_sent() {
    let app = App::new();
    let mut first = asked(json!("What is 20 + 15?"));
    first["instructions"] = json!("You are brief.");
    let first = app.ok("/v1/responses", &first).await;
    assert_eq!((&first["store"], &first["previous_response_id"]), (&json!(true), &Value::Null));
    let mut second = asked(json!([{ "role": "user", "content": "Double it." }]));
    second["previous_response_id"] = first["id"].clone();
    let events = app.named("/v1/responses", &second).await;
    let second = events.last().unwrap().1["response"].clone();
    assert_eq!(second["previous_response_id"], first["id"]);
    let mut third = asked(json!("And now?"));
    third["previous_response_id"] = second["id"].clone();
    let count = app.ok("/v1/responses/input_tokens", &third).await;
    let third = app.ok("/v1/responses", &third).await;

    let said = |response: &Value| json!({ "role": "assistant", "content": text(response) });
    let user = |text: &str| json!({ "role": "user", "content": text });
    // Instructions are those of a request alone.
    let mut whole = vec![user("What is 20 + 15?"), said(&first), user("Double it.")];
    let same = app.ok("/v1/responses", &asked(json!(whole))).await;
    assert_eq!((text(&same), &same["usage"]["input_tokens"]), (text(&second), &second["usage"]["input_tokens"]));
    whole.extend([said(&second), user("And now?")]);
    let same = app.ok("/v1/responses", &asked(json!(whole))).await;
    assert_eq!((text(&same), &same["usage"]["input_tokens"]), (text(&third), &third["usage"]["input_tokens"]));
    assert_eq!(count, json!({ "object": "response.input_tokens", "input_tokens": third["usage"]["input_tokens"] }));
    assert!(third["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > Some(0), "{third}");
}

#[tokio::test]
async fn a_calls_output_goes_on_with_the_call_that_was_kept() {
    let app = App::new();
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    let tools = json!([{ "type": "function", "name": "get_weather", "description": "Get the current weather for a city.",
        "parameters": schema }]);
    let mut body = asked(json!("What is the weather in Paris?"));
    (body["tools"], body["tool_choice"]) = (tools.clone(), json!("required"));
    let called = app.ok("/v1/responses", &body).await;
    let call = called["output"].as_array().unwrap().last().unwrap();
    let output = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "sunny, 21 degrees" });
    let mut body = asked(json!([output]));
    (body["tools"], body["previous_response_id"]) = (tools.clone(), called["id"].clone());
    let told = app.ok("/v1/responses", &body).await;
    assert!(text(&told).contains("sunny"), "{told}");
    // By references to items, as some clients write it, the prompt is the same.
    let mut body = asked(json!([
        { "role": "user", "content": "What is the weather in Paris?" },
        { "type": "item_reference", "id": call["id"] },
        output,
    ]));
    body["tools"] = tools;
    let same = app.ok("/v1/responses", &body).await;
    assert_eq!((text(&same), &same["usage"]["input_tokens"]), (text(&told), &told["usage"]["input_tokens"]));
}

#[tokio::test]
async fn kept_responses_are_fetched_listed_and_removed() {
    let app = App::new();
    let first = app.ok("/v1/responses", &asked(json!("Hello"))).await;
    let mut next = asked(json!([{ "role": "user", "content": "Who are you?", "id": "msg_mine" }]));
    next["previous_response_id"] = first["id"].clone();
    let next = app.ok("/v1/responses", &next).await;
    let path = |response: &Value| format!("/v1/responses/{}", response["id"].as_str().unwrap());
    assert_eq!(app.get(&path(&first)).await, (StatusCode::OK, first.clone()));
    let (status, list) = app.get(&format!("{}/input_items?order=asc", path(&next))).await;
    let items = list["data"].as_array().unwrap();
    assert_eq!((status, items.len(), &list["has_more"]), (StatusCode::OK, 3, &json!(false)), "{list}");
    assert_eq!(items[0]["content"], json!([{ "type": "input_text", "text": "Hello" }]));
    assert_eq!((&items[1], &items[2]["id"]), (&first["output"][0], &json!("msg_mine")));
    let (status, refused) = app.get(&format!("{}/input_items?limit=", path(&next))).await;
    assert_eq!(status, 400);
    assert!(refused["error"]["message"].as_str().is_some_and(|message| message.contains("limit")), "{refused}");
    let (_, page) = app.get(&format!("{}/input_items?limit=1", path(&next))).await;
    assert_eq!((&page["last_id"], &page["has_more"]), (&json!("msg_mine"), &json!(true)));
    let (_, page) = app.get(&format!("{}/input_items?limit=1&after=msg_mine", path(&next))).await;
    assert_eq!(page["data"][0]["id"], first["output"][0]["id"]);
    for query in ["limit=0", "order=up", "after=none"] {
        assert_eq!(
            app.get(&format!("{}/input_items?{query}", path(&next))).await.0,
            StatusCode::BAD_REQUEST,
            "{query}"
        );
    }
    assert_eq!(
        delete(&app, &path(&first)).await,
        (StatusCode::OK, json!({ "id": first["id"], "object": "response", "deleted": true }))
    );
    assert_eq!(delete(&app, &path(&first)).await.0, StatusCode::NOT_FOUND);
    assert_eq!(app.get(&path(&first)).await.0, StatusCode::NOT_FOUND);
    assert_eq!(app.get(&format!("{}/input_items", path(&first))).await.0, StatusCode::NOT_FOUND);
    // What went on with it has all of it.
    let mut last = asked(json!("And now?"));
    last["previous_response_id"] = next["id"].clone();
    app.ok("/v1/responses", &last).await;
    last["previous_response_id"] = first["id"].clone();
    let (status, answer) = app.post("/v1/responses", &last).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("previous_response_not_found")));
}

#[tokio::test]
async fn what_is_not_to_be_stored_is_not_and_nor_is_what_has_no_room() {
    let app = App::new();
    let mut body = asked(json!("Hello"));
    body["store"] = json!(false);
    let response = app.ok("/v1/responses", &body).await;
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    assert_eq!((&response["store"], app.get(&path).await.0), (&json!(false), StatusCode::NOT_FOUND));
    for (max_count, max_bytes, n) in [(0, 1 << 20, 0), (10, 0, 0), (2, 1 << 20, 2), (10, 100, 0)] {
        let kept_responses = KeptResponses { max_count, max_bytes };
        let app = App::with(Settings { kept_responses, ..Settings::default() });
        let mut n_kept = 0;
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(app.ok("/v1/responses", &asked(json!("Hello"))).await["id"].as_str().unwrap().to_owned());
        }
        for id in &ids {
            n_kept += usize::from(app.get(&format!("/v1/responses/{id}")).await.0 == StatusCode::OK);
        }
        assert_eq!(n_kept, n, "{kept_responses:?}");
        let mut body = asked(json!("And?"));
        body["previous_response_id"] = json!(ids[0]);
        let (status, answer) = app.post("/v1/responses", &body).await;
        let hint = answer["error"]["message"].as_str().unwrap().contains("--responses-max");
        assert_eq!((status, hint), (StatusCode::BAD_REQUEST, max_count == 0 || max_bytes == 0), "{answer}");
    }
}

#[tokio::test]
async fn a_response_is_its_keys_own() {
    let app = App::with(Settings { api_keys: vec!["one".into(), "two".into()], ..Settings::default() });
    let send = |method: &str, path: String, key: &str, body: Value| {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.header("x-api-key", key).body(body).unwrap();
        async {
            let (status, body) = app.send(request).await;
            (status, serde_json::from_slice::<Value>(&body).unwrap())
        }
    };
    let all = "/v1/responses";
    let (_, response) = send("POST", all.into(), "one", asked(json!("Hello"))).await;
    let path = format!("{all}/{}", response["id"].as_str().unwrap());
    let mut next = asked(json!("And?"));
    next["previous_response_id"] = response["id"].clone();
    let refers = asked(
        json!([{ "type": "item_reference", "id": response["output"][0]["id"] }, { "role": "user", "content": "x" }]),
    );
    for (key, found) in [("two", false), ("one", true)] {
        assert_eq!(send("GET", path.clone(), key, Value::Null).await.0 == StatusCode::OK, found, "{key}");
        for body in [&next, &refers] {
            assert_eq!(send("POST", all.into(), key, body.clone()).await.0 == StatusCode::OK, found, "{key}: {body}");
        }
        assert_eq!(send("DELETE", path.clone(), key, Value::Null).await.0 == StatusCode::OK, found, "{key}");
    }
}

#[tokio::test]
async fn references_to_a_large_item_do_not_grow_without_bound() {
    let limits = api::HttpLimits { max_body: 4096, ..api::HttpLimits::default() };
    let app = App::with(Settings { limits, ..Settings::default() });
    let large = json!([{ "role": "user", "content": "Hi", "id": "msg_a" }, { "type": "web_search_call", "id": "ws_1", "note": "x".repeat(2000) }]);
    app.ok("/v1/responses", &asked(large)).await;
    let refer = |n: usize| {
        let mut items = vec![json!({ "type": "item_reference", "id": "ws_1" }); n];
        items.push(json!({ "role": "user", "content": "x" }));
        asked(json!(items))
    };
    assert_eq!(app.post("/v1/responses", &refer(1)).await.0, StatusCode::OK);
    assert_eq!(app.post("/v1/responses", &refer(3)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}
