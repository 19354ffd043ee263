//! `/v1/responses`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::App;

fn asked(text: &str) -> Value {
    json!({ "model": "any", "input": text, "max_output_tokens": 200, "reasoning": { "effort": "none" } })
}

fn weather() -> Value {
    let city = json!({ "type": "string", "description": "The name of the city" });
    let schema = json!({ "type": "object", "properties": { "city": city }, "required": ["city"] });
    json!([{ "type": "function", "name": "get_weather", "description": "Get the current weather for a city.",
        "parameters": schema, "strict": null }])
}

fn text(response: &Value) -> &str {
    let message = response["output"].as_array().unwrap().iter().find(|item| item["type"] == "message");
    message.unwrap_or_else(|| panic!("{response}"))["content"][0]["text"].as_str().unwrap()
}

/// The items of a response without their names, which differ each time.
fn nameless(response: &Value) -> Vec<Value> {
    let mut items = response["output"].as_array().unwrap().clone();
    for item in &mut items {
        for name in ["id", "call_id"] {
            item.as_object_mut().unwrap().remove(name);
        }
    }
    items
}

/// Checks that the deltas of a stream add up to what `done` and the response at the end say, in order.
fn checked(events: &[(String, Value)]) -> Value {
    for (i, (name, data)) in events.iter().enumerate() {
        assert_eq!(data["sequence_number"], i, "{name}");
    }
    let last = &events.last().unwrap().1["response"];
    assert_eq!((events[0].0.as_str(), events[1].0.as_str()), ("response.created", "response.in_progress"));
    assert_eq!(events[0].1["response"]["status"], "in_progress");
    for (i, item) in last["output"].as_array().unwrap().iter().enumerate() {
        let of_item: Vec<_> = events.iter().filter(|(_, data)| data["output_index"] == i).collect();
        let (first, end) = (of_item.first().unwrap(), of_item.last().unwrap());
        assert_eq!((first.0.as_str(), end.0.as_str()), ("response.output_item.added", "response.output_item.done"));
        assert_eq!((&end.1["item"], &first.1["item"]["id"]), (item, &item["id"]));
        let deltas: String = of_item.iter().filter_map(|(_, data)| data["delta"].as_str()).collect();
        let whole =
            item["content"][0]["text"].as_str().or(item["arguments"].as_str()).or(item["input"].as_str()).unwrap();
        assert_eq!(deltas, whole);
        let kind = match item["type"].as_str().unwrap() {
            "message" => "response.output_text.done",
            "reasoning" => "response.reasoning_text.done",
            "custom_tool_call" => "response.custom_tool_call_input.done",
            _ => "response.function_call_arguments.done",
        };
        let done = of_item.iter().find(|(name, _)| name == kind).unwrap_or_else(|| panic!("{kind}"));
        assert!(["text", "arguments", "input"].iter().any(|name| done.1[name] == whole), "{}", done.1);
        assert!(of_item.iter().all(|(_, data)| data["item_id"].is_null() || data["item_id"] == item["id"]));
    }
    last.clone()
}

#[tokio::test]
async fn a_stream_tells_the_progress_of_its_prompt_and_timings_where_asked_for() {
    let app = App::new();
    let mut body = asked("What is 20 + 15?");
    let telemetry = |events: &[(String, Value)], field: &str| -> Vec<String> {
        events.iter().filter(|(_, data)| !data[field].is_null()).map(|(name, _)| name.clone()).collect()
    };
    let plain = app.named("/v1/responses", &body).await;
    assert!(telemetry(&plain, "prompt_progress").is_empty());
    assert_eq!(telemetry(&plain, "timings"), ["response.completed"]);
    body["return_progress"] = json!(true);
    body["timings_per_token"] = json!(true);
    let events = app.named("/v1/responses", &body).await;
    checked(&events);
    let progress = telemetry(&events, "prompt_progress");
    assert!(progress.len() > 1 && progress.iter().all(|name| name == "response.in_progress"), "{progress:?}");
    let timed = telemetry(&events, "timings");
    assert!(timed.iter().any(|name| name == "response.output_text.delta"), "{timed:?}");
}

#[tokio::test]
async fn a_stream_builds_up_the_whole_response() {
    let app = App::new();
    for (effort, kinds) in [("none", vec!["message"]), ("low", vec!["reasoning", "message"])] {
        let mut body = asked("What is 20 + 15?");
        body["reasoning"]["effort"] = json!(effort);
        body["metadata"] = json!({ "a": "b" });
        let whole = app.ok("/v1/responses", &body).await;
        let output = whole["output"].as_array().unwrap();
        assert_eq!(output.iter().map(|item| item["type"].as_str().unwrap()).collect::<Vec<_>>(), kinds);
        assert!(text(&whole).contains("35"), "{whole}");
        assert_eq!(
            (&whole["status"], &whole["store"], &whole["metadata"]["a"]),
            (&json!("completed"), &json!(true), &json!("b"))
        );
        let events = app.named("/v1/responses", &body).await;
        let streamed = checked(&events);
        assert_eq!(events.last().unwrap().0, "response.completed");
        assert_eq!(nameless(&streamed), nameless(&whole));
        assert_eq!(streamed["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
        let details = &whole["usage"]["output_tokens_details"];
        assert_eq!(details["reasoning_tokens"].as_u64() > Some(0), effort != "none", "{whole}");
    }
}

#[tokio::test]
async fn items_make_the_same_conversation_as_messages() {
    let app = App::new();
    let mut body = asked("");
    body["instructions"] = json!("You are brief.");
    body["tools"] = weather();
    let part = |kind: &str, text: &str| json!([{ "type": kind, "text": text }]);
    body["input"] = json!([
        { "role": "developer", "content": "Very." },
        { "type": "message", "role": "user", "content": part("input_text", "What is the weather in Paris?") },
        { "type": "reasoning", "id": "rs_1", "summary": [], "content": part("reasoning_text", "I ask.") },
        { "type": "message", "role": "assistant", "content": part("output_text", "Let me see.") },
        { "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\": \"Paris\"}" },
        { "type": "function_call_output", "call_id": "c1", "output": "sunny, 21 degrees" },
    ]);
    let response = app.ok("/v1/responses", &body).await;
    assert!(text(&response).contains("sunny"), "{response}");
    let tool = &weather()[0];
    let (name, description, parameters) = (&tool["name"], &tool["description"], &tool["parameters"]);
    let function = json!({ "name": name, "description": description, "parameters": parameters });
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "get_weather", "arguments": "{\"city\": \"Paris\"}" } });
    let chat = json!({ "reasoning_effort": "none", "tools": [{ "type": "function", "function": function }], "messages": [
        { "role": "system", "content": "You are brief.\n\nVery." },
        { "role": "user", "content": "What is the weather in Paris?" },
        { "role": "assistant", "reasoning_content": "I ask.", "content": "Let me see.", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c1", "content": "sunny, 21 degrees" },
    ] });
    let same = app.ok("/v1/chat/completions", &chat).await;
    assert_eq!(same["usage"]["prompt_tokens"], response["usage"]["input_tokens"]);
    assert_eq!(same["choices"][0]["message"]["content"], text(&response));
}

#[tokio::test]
async fn functions_are_called_freely_and_by_force() {
    let app = App::new();
    let mut body = asked("What is the weather in Paris?");
    body["tools"] = weather();
    for choice in [json!("auto"), json!("required"), json!({ "type": "function", "name": "get_weather" })] {
        body["tool_choice"] = choice.clone();
        body["parallel_tool_calls"] = json!(choice == "auto");
        let response = checked(&app.named("/v1/responses", &body).await);
        let call = response["output"].as_array().unwrap().iter().find(|item| item["type"] == "function_call");
        let call = call.unwrap_or_else(|| panic!("{choice}: {response}"));
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!((&call["name"], arguments["city"].is_string()), (&json!("get_weather"), true), "{call}");
        assert!(call["call_id"].as_str().unwrap().starts_with("call_"));
        assert_eq!((&response["status"], &response["tool_choice"]), (&json!("completed"), &choice));
    }
}

#[tokio::test]
async fn functions_in_namespaces_and_custom_tools_are_called_as_they_were_offered() {
    let app = App::new();
    let mut body = asked("What is the weather in Paris?");
    body["tools"] = json!([
        { "type": "namespace", "name": "mcp__sky__", "tools": weather() },
        { "type": "web_search", "external_web_access": true },
    ]);
    body["tool_choice"] = json!("required");
    let response = checked(&app.named("/v1/responses", &body).await);
    let call = response["output"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&call["type"], &call["namespace"], &call["name"]),
        (&json!("function_call"), &json!("mcp__sky__"), &json!("get_weather"))
    );
    assert!(response["warnings"][0].as_str().unwrap().contains("web_search"), "{response}");

    // It can be demanded with its namespace, by its name alone, and among others.
    for choice in [
        json!({ "type": "function", "namespace": "mcp__sky__", "name": "get_weather" }),
        json!({ "type": "function", "name": "get_weather" }),
        json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "get_weather" }, { "type": "web_search" }] }),
    ] {
        body["tool_choice"] = choice;
        let response = app.ok("/v1/responses", &body).await;
        assert_eq!(response["output"].as_array().unwrap().last().unwrap()["name"], "get_weather", "{response}");
    }

    // A later turn names it in the same way, beside what other tools left in the history.
    let items = json!([
        { "role": "user", "content": "What is the weather in Paris?" },
        { "type": "web_search_call", "id": "ws_1", "status": "completed" },
        call,
        { "type": "function_call_output", "call_id": call["call_id"], "output": [{ "type": "input_text", "text": "sunny" }, { "type": "input_image" }] },
        { "type": "local_shell_call", "call_id": "c2", "action": { "type": "exec", "command": ["ls"] } },
        { "type": "local_shell_call_output", "id": "c2", "output": "a.txt" },
        { "type": "custom_tool_call", "call_id": "c3", "name": "note", "input": "x\ny" },
        { "type": "custom_tool_call_output", "call_id": "c3", "output": "done" },
    ]);
    (body["input"], body["tool_choice"]) = (items, json!("none"));
    app.ok("/v1/responses", &body).await;

    let mut body = asked("Say hello.");
    body["tools"] =
        json!([{ "type": "custom", "name": "note", "description": "Keeps a note.", "format": { "type": "text" } }]);
    body["tool_choice"] = json!({ "type": "custom", "name": "note" });
    body["max_output_tokens"] = json!(400);
    let response = checked(&app.named("/v1/responses", &body).await);
    let call = response["output"].as_array().unwrap().last().unwrap();
    assert_eq!((&call["type"], &call["name"]), (&json!("custom_tool_call"), &json!("note")), "{response}");
    assert!(call["input"].is_string() && call.get("arguments").is_none(), "{call}");
    assert!(response.get("warnings").is_none());
}

#[tokio::test]
async fn forms_limits_and_log_probabilities_hold() {
    let app = App::new();
    let mut body = asked("My name is Clara and I am 31 years old.");
    let schema = json!({ "type": "object", "properties": { "age": { "type": "integer", "maximum": 150 } }, "required": ["age"], "additionalProperties": false });
    body["text"] = json!({ "format": { "type": "json_schema", "name": "person", "strict": true, "schema": schema } });
    let response = app.ok("/v1/responses", &body).await;
    assert!(serde_json::from_str::<Value>(text(&response)).unwrap()["age"].is_u64(), "{response}");
    assert_eq!(response["text"], body["text"]);

    let mut body = asked("Tell me a story.");
    body["max_output_tokens"] = json!(5);
    let response = app.ok("/v1/responses", &body).await;
    assert_eq!(
        (&response["status"], &response["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(response["usage"]["output_tokens"], 5);
    assert_eq!(app.named("/v1/responses", &body).await.last().unwrap().0, "response.incomplete");

    let mut body = asked("What is 20 + 15?");
    (body["include"], body["top_logprobs"]) = (json!(["message.output_text.logprobs"]), json!(2));
    let events = app.named("/v1/responses", &body).await;
    let response = checked(&events);
    let logprobs = response["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    let joined: String = logprobs.iter().map(|l| l["token"].as_str().unwrap()).collect();
    assert_eq!(joined, text(&response));
    assert!(logprobs.iter().all(|l| l["top_logprobs"].as_array().unwrap().len() == 2));
    let of_deltas: Vec<&Value> = events
        .iter()
        .filter_map(|(_, data)| data["delta"].as_str().and(data["logprobs"].as_array()))
        .flatten()
        .collect();
    assert_eq!(of_deltas, logprobs.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_not_kept_or_not_known_is_refused_in_clear_words() {
    let app = App::new();
    let with = |field: &str, value: Value| {
        let mut body = asked("Hello");
        body[field] = value;
        body
    };
    for (body, field, word) in [
        (with("previous_response_id", json!("resp_1")), "previous_response_id", "resp_1"),
        (with("conversation", json!("conv_1")), "conversation", "responses only"),
        (with("prompt", json!({ "id": "pmpt_1" })), "prompt", "responses only"),
        (with("background", json!(true)), "background", "waits"),
        (with("input", json!([])), "input", "items"),
        (with("input", Value::Null), "input", "items"),
        (with("input", json!([{ "type": "item_reference", "id": "x" }])), "input", "no item `x`"),
        (with("input", json!([{ "id": "y" }])), "input", "no item `y`"),
        (with("input", json!([{ "role": "user", "content": "x" }, { "type": "vision" }])), "input", "input[1]"),
        (with("input", json!([{ "role": "user", "content": [{ "type": "input_image" }] }])), "input", "`image_url`"),
        (with("input", json!([{ "role": "wizard", "content": "x" }])), "input", "wizard"),
        (with("input", json!([{ "type": "function_call", "call_id": "c", "name": "x" }])), "input", "arguments"),
        (with("tools", json!([{ "type": "function" }])), "tools", "tools[0].name"),
        (with("tools", json!([{ "name": "x" }])), "tools", "tools[0].type"),
        (with("tool_choice", json!({ "type": "mcp" })), "tool_choice", "expected"),
        (with("text", json!({ "format": { "type": "xml" } })), "text.format", "json_schema"),
        (with("reasoning", json!({ "effort": "much" })), "reasoning.effort", "much"),
        (with("max_output_tokens", json!(0)), "max_output_tokens", "at least 1"),
        (with("top_logprobs", json!(21)), "top_logprobs", "20"),
        (with("n", json!(2)), "n", "1 answer"),
    ] {
        let (status, answer) = app.post("/v1/responses", &body).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)), "{body}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{body}: {answer}");
    }
}

#[tokio::test]
async fn beside_tools_a_text_has_the_form_that_was_asked_for() {
    let app = App::new();
    let schema = json!({ "type": "object", "properties": { "age": { "type": "integer", "maximum": 150 } }, "required": ["age"], "additionalProperties": false });
    for text in ["My name is Clara and I am 31 years old.", "What is the weather in Paris?"] {
        let mut body = asked(text);
        body["tools"] = weather();
        body["text"] = json!({ "format": { "type": "json_schema", "name": "person", "schema": schema } });
        let response = checked(&app.named("/v1/responses", &body).await);
        for item in response["output"].as_array().unwrap() {
            match item["type"].as_str().unwrap() {
                "message" => {
                    let text = item["content"][0]["text"].as_str().unwrap();
                    assert!(serde_json::from_str::<Value>(text).unwrap()["age"].is_u64(), "{text}");
                }
                kind => assert_eq!(kind, "function_call"),
            }
        }
    }
}
