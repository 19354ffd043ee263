//! Ollama's interface: `/api/chat`, `/api/generate`, and what its clients ask beside them.

use std::time::Duration;

use api::{Phase, Settings};
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use engine::EngineConfig;
use serde_json::{Value, json};

use crate::downloads::{self, Hub};
use crate::rig;
use crate::support::App;

fn chat(messages: Value) -> Value {
    let options = json!({ "temperature": 0, "num_predict": 150 });
    json!({ "model": "pocket", "messages": messages, "think": false, "stream": false, "options": options })
}

fn sum() -> Value {
    chat(json!([{ "role": "user", "content": "What is 20 + 15?" }]))
}

fn weather() -> Value {
    let city = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    let function = json!({ "name": "get_weather", "description": "Weather of a city", "parameters": city });
    let mut body = chat(json!([{ "role": "user", "content": "What is the weather in Oslo?" }]));
    body["tools"] = json!([{ "type": "function", "function": function }]);
    body
}

impl App {
    /// The lines of a stream, which is what there is without `stream`.
    async fn lines(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body.as_object_mut().unwrap().remove("stream");
        let request = Request::post(path).header("content-type", "application/json");
        let open = self.stream_of(request.body(Body::from(body.to_string())).unwrap()).await;
        assert_eq!(open.status, StatusCode::OK);
        let text = open.whole().await;
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    }

    async fn told(&self, path: &str, body: &Value) -> (u16, String) {
        let (status, answer) = self.post(path, body).await;
        (status.as_u16(), answer["error"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned())
    }
}

fn joined(lines: &[Value], field: &str) -> String {
    lines.iter().filter_map(|line| line["message"][field].as_str()).collect()
}

#[tokio::test]
async fn lines_say_what_the_whole_reply_says() {
    let app = App::new();
    let mut body = sum();
    body["think"] = json!(true);
    body["model"] = json!("pocket:latest");
    let whole = app.ok("/api/chat", &body).await;
    assert_eq!(
        (&whole["model"], &whole["done"], &whole["done_reason"]),
        (&json!("pocket:latest"), &json!(true), &json!("stop"))
    );
    let message = &whole["message"];
    assert!(message["role"] == "assistant" && message["content"].as_str().unwrap().contains("35"), "{whole}");
    assert!(!message["thinking"].as_str().unwrap().is_empty(), "{whole}");
    let n = |field: &str| whole[field].as_u64().unwrap_or_else(|| panic!("{field}: {whole}"));
    assert!(n("eval_count") > 0 && n("prompt_eval_count") > 0 && n("eval_duration") > 0 && n("load_duration") > 0);
    assert!(n("total_duration") >= n("eval_duration"), "{whole}");
    assert!(whole["created_at"].as_str().unwrap().ends_with('Z'), "{whole}");

    let lines = app.lines("/api/chat", &body).await;
    let (last, more) = lines.split_last().unwrap();
    assert_eq!(joined(&lines, "content"), message["content"].as_str().unwrap());
    assert_eq!(joined(&lines, "thinking"), message["thinking"].as_str().unwrap());
    assert!(more.iter().all(|line| line["done"] == false && line.get("done_reason").is_none()), "{lines:?}");
    assert_eq!((&last["done"], &last["eval_count"]), (&json!(true), &whole["eval_count"]));
    body["options"]["num_predict"] = json!(3);
    assert_eq!(app.ok("/api/chat", &body).await["done_reason"], "length");
}

#[tokio::test]
async fn tools_are_called_with_objects_and_their_results_come_back_by_name() {
    let app = App::new();
    let whole = app.ok("/api/chat", &weather()).await;
    let call = &whole["message"]["tool_calls"][0];
    let expected = json!({ "index": 0, "name": "get_weather", "arguments": { "city": "Oslo" } });
    assert_eq!(call["function"], expected, "{whole}");
    let lines = app.lines("/api/chat", &weather()).await;
    let calls: Vec<&Value> = lines.iter().filter_map(|line| line["message"].get("tool_calls")).collect();
    assert!(calls.len() == 1 && calls[0][0]["function"] == expected, "{lines:?}");
    let mut body = weather();
    let result = json!({ "role": "tool", "tool_name": "get_weather", "content": "{\"condition\": \"snowy\", \"temperature_c\": -3}" });
    body["messages"] = json!([weather()["messages"][0], whole["message"], result]);
    let answer = app.ok("/api/chat", &body).await;
    assert!(answer["message"]["content"].as_str().unwrap().contains("snowy"), "{answer}");
}

#[tokio::test]
async fn a_format_holds_the_reply() {
    let app = App::new();
    let schema = json!({
        "type": "object", "properties": { "name": { "type": "string" }, "age": { "type": "integer" } },
        "required": ["name", "age"], "additionalProperties": false,
    });
    for format in [schema, json!("json")] {
        let mut body = chat(json!([{ "role": "user", "content": "My name is Clara and I am 31 years old." }]));
        body["format"] = format.clone();
        let answer = app.ok("/api/chat", &body).await;
        let object: Value = serde_json::from_str(answer["message"]["content"].as_str().unwrap()).unwrap();
        assert!(object.is_object() && (format == "json" || object["age"].is_i64()), "{answer}");
    }
}

#[tokio::test]
async fn a_prompt_goes_on_with_the_context_of_the_one_before() {
    let app = App::new();
    let body =
        json!({ "prompt": "What is 20 + 15?", "think": false, "stream": false, "options": { "temperature": 0 } });
    let first = app.ok("/api/generate", &body).await;
    assert_eq!(first["response"], "20 + 15 = 35.", "{first}");
    let context = first["context"].as_array().unwrap();
    let n = |answer: &Value, field: &str| answer[field].as_u64().unwrap();
    assert_eq!(context.len() as u64, n(&first, "prompt_eval_count") + n(&first, "eval_count"));
    let mut body = json!({ "prompt": "Hello", "think": false, "stream": false, "context": context });
    let second = app.ok("/api/generate", &body).await;
    assert!(n(&second, "prompt_eval_count") > context.len() as u64, "{second}");
    assert_eq!(second["context"].as_array().unwrap()[..context.len()], context[..]);
    body["context"] = json!([1_000_000]);
    assert_eq!(app.told("/api/generate", &body).await.0, 400);
    body["context"] = json!([-1]);
    assert_eq!(app.told("/api/generate", &body).await.0, 400);
}

#[tokio::test]
async fn raw_prompts_and_gaps_are_continued_as_elsewhere() {
    let app = App::new();
    let options = json!({ "temperature": 0, "num_predict": 6 });
    let raw = json!({ "prompt": "Once upon a", "raw": true, "stream": false, "options": options });
    let answer = app.ok("/api/generate", &raw).await;
    let same = app.ok("/v1/completions", &json!({ "prompt": "Once upon a", "max_tokens": 6 })).await;
    assert_eq!(answer["response"], same["choices"][0]["text"]);
    assert!(answer.get("context").is_none(), "{answer}");
    let lines = app.lines("/api/generate", &raw).await;
    let text: String = lines.iter().filter_map(|line| line["response"].as_str()).collect();
    assert_eq!(answer["response"], text);
    let (before, after) = ("def add(a, b):\n    return ", "\n\nprint(add(1, 2))");
    let gap = json!({ "prompt": before, "suffix": after, "stream": false, "options": options });
    let filled = app.ok("/api/generate", &gap).await;
    let same = app.ok("/v1/completions", &json!({ "prompt": before, "suffix": after, "max_tokens": 6 })).await;
    assert_eq!(filled["response"], same["choices"][0]["text"]);
}

#[tokio::test]
async fn what_is_asked_without_words_loads_the_model() {
    let app = App::new();
    for body in
        [json!({ "model": "pocket" }), json!({ "model": "pocket", "messages": [] }), json!({ "messages": null })]
    {
        let answer = app.ok("/api/chat", &body).await;
        assert_eq!((&answer["done_reason"], &answer["message"]["content"]), (&json!("load"), &json!("")), "{answer}");
    }
    let answer = app.ok("/api/generate", &json!({ "model": "pocket", "prompt": "" })).await;
    assert_eq!((&answer["done_reason"], &answer["response"]), (&json!("load"), &json!("")), "{answer}");
    assert_eq!(app.ok("/api/generate", &json!({ "keep_alive": 0 })).await["done_reason"], "unload");
    assert_eq!(app.state.registry().loaded().len(), 1, "the only model stays");
}

#[tokio::test]
async fn a_model_that_is_kept_for_no_time_is_unloaded_after_its_reply() {
    let (app, log) = rig::app(&["one", "two"], None, Duration::from_secs(60));
    let body = |model: &str, keep_alive: Value| json!({ "model": model, "prompt": "Hi", "raw": true, "stream": false, "keep_alive": keep_alive, "options": { "num_predict": 1 } });
    app.ok("/api/generate", &body("one", json!("5m"))).await;
    assert_eq!(app.state.registry().loaded().len(), 1);
    assert_eq!(app.ok("/api/generate", &body("one:latest", json!("0s"))).await["done"], true);
    rig::until(&app, "one", Phase::Unloaded).await;
    app.ok("/api/chat", &json!({ "model": "two" })).await;
    app.ok("/api/chat", &json!({ "model": "two", "keep_alive": 0 })).await;
    rig::until(&app, "two", Phase::Unloaded).await;
    assert_eq!(log.loads(), ["one", "two"]);
    assert_eq!(app.told("/api/chat", &json!({ "model": "three" })).await.0, 404);
}

#[tokio::test]
async fn models_are_listed_shown_and_told_of() {
    let app = App::new();
    let (_, tags) = app.get("/api/tags").await;
    let model = &tags["models"][0];
    assert_eq!((&model["name"], &model["details"]["family"]), (&json!("pocket:latest"), &json!("qwen35")), "{tags}");
    assert_eq!((model["digest"].as_str().unwrap().len(), &model["details"]["parameter_size"]), (64, &json!("13.98M")));
    let (_, ps) = app.get("/api/ps").await;
    assert_eq!((&ps["models"][0]["model"], &ps["models"][0]["context_length"]), (&model["model"], &json!(1024)));
    for name in ["pocket", "pocket:latest"] {
        let show = app.ok("/api/show", &json!({ "model": name })).await;
        assert_eq!(show["model_info"]["qwen35.context_length"], 1024, "{show}");
        assert_eq!(show["capabilities"], json!(["completion", "tools", "thinking", "insert"]));
        assert!(show["template"].as_str().unwrap().contains("im_start"), "{show}");
    }
    let (_, version) = app.get("/api/version").await;
    assert_eq!(version["version"].as_str().unwrap().split('.').count(), 3);
}

#[tokio::test]
async fn errors_are_a_text() {
    let app = App::new();
    let with = |field: &str, value: Value| {
        let mut body = sum();
        body[field] = value;
        body
    };
    for (body, word) in [
        (with("options", json!({ "top_p": 7 })), "top_p"),
        (with("options", json!({ "top_k": [] })), "options.top_k"),
        (with("think", json!("hard")), "think"),
        (with("format", json!("xml")), "format"),
        (with("keep_alive", json!("later")), "keep_alive"),
        (with("stream", json!("yes")), "stream"),
        (with("messages", json!([{ "role": "user", "content": "a", "images": ["aGk="] }])), "images"),
    ] {
        let (status, error) = app.told("/api/chat", &body).await;
        assert!(status == 400 && error.contains(word), "{word}: {status} {error}");
    }
    for (field, value) in [("template", json!("{{ .Prompt }}")), ("images", json!(["aGk="])), ("raw", json!(true))] {
        let mut body = json!({ "prompt": "Hi", "system": "Be brief." });
        body[field] = value;
        let (status, error) = app.told("/api/generate", &body).await;
        assert!(status == 400 && error.contains(field), "{field}: {status} {error}");
    }
    for path in ["/api/copy", "/api/create", "/api/push", "/api/embed", "/api/embeddings"] {
        let (status, error) = app.told(path, &json!({ "model": "x", "input": "a", "prompt": "a" })).await;
        assert!(status == 501 && !error.is_empty(), "{path}: {status} {error}");
    }
    let keyed = App::with(Settings { api_keys: vec!["one".into()], ..Settings::default() });
    let (status, error) = keyed.told("/api/chat", &sum()).await;
    assert!(status == 401 && error.contains("API key"), "{status} {error}");
}

#[tokio::test]
async fn inputs_are_embedded_at_length_1_and_cut_to_the_context() {
    let config = EngineConfig { n_sequences: 2, embeddings: true, ..EngineConfig::default() };
    let app = App::over(config, Settings { embeddings: true, ..Settings::default() });
    let body = json!({ "model": "pocket", "input": ["a dog", "word ".repeat(3000)] });
    let answer = app.ok("/api/embed", &body).await;
    let vectors = answer["embeddings"].as_array().unwrap();
    assert!(vectors.len() == 2 && answer["prompt_eval_count"].as_u64().unwrap() > 1024, "{answer}");
    let length = |vector: &Value| vector.as_array().unwrap().iter().map(|x| x.as_f64().unwrap().powi(2)).sum::<f64>();
    assert!(vectors.iter().all(|vector| (length(vector) - 1.0).abs() < 1e-3));
    let mut strict = body.clone();
    strict["truncate"] = json!(false);
    assert_eq!(app.told("/api/embed", &strict).await.0, 400);
    let old = app.ok("/api/embeddings", &json!({ "model": "pocket", "prompt": "a dog" })).await;
    // The same vector before its length was made 1.
    let factor = length(&old["embedding"]).sqrt();
    let (a, b) = (old["embedding"][0].as_f64().unwrap(), vectors[0][0].as_f64().unwrap() * factor);
    assert!((a - b).abs() < 1e-2 * factor, "{a} and {b}");
    let short = app.ok("/api/embed", &json!({ "input": "a dog", "dimensions": 8 })).await;
    assert_eq!(short["embeddings"][0].as_array().unwrap().len(), 8);
}

#[tokio::test]
async fn models_are_pulled_and_deleted_where_that_is_allowed() {
    let hub = Hub::default();
    hub.go_on();
    let app = downloads::app(&hub, Settings::default(), true);
    let lines = app.lines("/api/pull", &json!({ "model": "hf.co/u/r:Q4" })).await;
    assert_eq!(lines.first().unwrap()["status"], "pulling manifest");
    assert_eq!(lines.last().unwrap()["status"], "success", "{lines:?}");
    let again = app.ok("/api/pull", &json!({ "model": "u/r:Q4", "stream": false })).await;
    assert_eq!(again, json!({ "status": "success" }), "it is there");
    let lines = app.lines("/api/pull", &json!({ "model": "u/broken" })).await;
    assert_eq!(lines.last().unwrap()["error"], "the hub answers 404", "{lines:?}");
    let remove = |name: &str| {
        let request = Request::builder().method(Method::DELETE).uri("/api/delete");
        let request = request.header("content-type", "application/json");
        app.send(request.body(Body::from(json!({ "model": name }).to_string())).unwrap())
    };
    assert_eq!(remove("hf.co/u/r:Q4").await, (StatusCode::OK, Vec::new()));
    assert_eq!(remove("u/r:Q4").await.0, StatusCode::NOT_FOUND);
    let closed = downloads::app(&hub, Settings::default(), false);
    let (status, error) = closed.told("/api/pull", &json!({ "model": "u/r", "stream": false })).await;
    assert!(status == 501 && error.contains("--allow-downloads"), "{error}");
    let there = closed.ok("/api/pull", &json!({ "model": "first", "stream": false })).await;
    assert_eq!(there["status"], "success", "a model of the configuration is there");
}

#[tokio::test]
async fn programs_that_look_for_ollama_find_it_and_browsers_the_page() {
    let app = App::with(Settings { webui: true, api_keys: vec!["one".into()], ..Settings::default() });
    async fn front(app: &App, method: Method, accept: &str) -> (StatusCode, Vec<u8>) {
        let request = Request::builder().method(method).uri("/").header("accept", accept).body(Body::empty());
        app.send(request.unwrap()).await
    }
    assert_eq!(front(&app, Method::HEAD, "*/*").await.0, StatusCode::OK);
    assert_eq!(front(&app, Method::GET, "application/json").await.1, b"Ollama is running");
    assert!(front(&app, Method::GET, "text/html,*/*").await.1.starts_with(b"<!"));
    let plain = App::new();
    assert_eq!(front(&plain, Method::GET, "*/*").await.1, b"Ollama is running");
}
