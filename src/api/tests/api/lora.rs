//! LoRA adapters over HTTP: the server's factors, a request's own, and what is refused.

use std::path::{Path, PathBuf};

use api::{Served, Settings};
use axum::http::StatusCode;
use engine::EngineConfig;
use gguf::Header;
use model::{LoadOptions, Model};
use serde_json::{Value, json};
use session::ModelOptions;
use tempfile::TempDir;

use crate::adapters::adapter_for;
use crate::support::App;

/// A server of the small model with two adapters, of which the first is applied.
fn app(dir: &TempDir) -> App {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-q4_k_m.gguf");
    let bytes = std::fs::read(&path).expect("the model is part of the repository");
    let header = Header::parse(&bytes).expect("a sound file");
    let write = |seed: u64| -> PathBuf {
        let tensors = header.tensors().iter().map(|t| (t.name, t.dims()));
        adapter_for("qwen35", tensors, 8, seed, |_| true).write(&dir.path().join(format!("{seed}.gguf")))
    };
    let mut options = ModelOptions::default();
    options.adapters.adapters = vec![(write(1), 0.3), (write(2), 0.0)];
    options.sampling = serde_json::from_value(json!({ "temperature": 0 })).expect("fields");
    let load = LoadOptions { adapters: options.adapters.files(), ..LoadOptions::default() };
    let model = Model::open(&path, &load).expect("adapters that fit");
    let config = EngineConfig { n_ctx: Some(512), threads: Some(1), n_sequences: 2, ..EngineConfig::default() };
    let model = session::start_engine_with(model, config, &options, None).expect("it is small");
    App::serving(Served { id: "pocket".into(), model }, Settings::default())
}

async fn text(app: &App, lora: Option<Value>) -> String {
    let mut body = json!({ "prompt": "Once upon a time", "n_predict": 12, "cache_prompt": false, "ignore_eos": true });
    if let Some(lora) = lora {
        body["lora"] = lora;
    }
    app.ok("/completion", &body).await["content"].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn a_request_uses_its_own_adapters_else_those_of_the_server() {
    let dir = TempDir::new().unwrap();
    let app = app(&dir);
    let (status, list) = app.get("/lora-adapters").await;
    assert_eq!(status, StatusCode::OK, "{list}");
    let path = |i: usize| list[i]["path"].as_str().unwrap().to_owned();
    assert!(path(0).ends_with("1.gguf") && path(1).ends_with("2.gguf"), "{list}");
    let shown = |list: &Value| {
        let number = |value: &Value| (value.as_f64().unwrap() * 100.0).round() as i64;
        list.as_array()
            .unwrap()
            .iter()
            .map(|one| (one["id"].as_i64().unwrap(), number(&one["scale"])))
            .collect::<Vec<_>>()
    };
    assert_eq!(shown(&list), [(0, 30), (1, 0)]);

    let first = text(&app, None).await;
    assert_eq!(text(&app, Some(json!([{ "id": 0, "scale": 0.3 }]))).await, first);
    assert_eq!(text(&app, Some(json!([]))).await, first, "an empty list is as none");
    let plain = text(&app, Some(json!([{ "id": 0, "scale": 0 }]))).await;
    let second = text(&app, Some(json!([{ "id": 1, "scale": 0.3 }]))).await;
    assert!(plain != first && plain != second && first != second, "{plain}, {first}, {second}");

    assert_eq!(app.ok("/lora-adapters", &json!([{ "id": 1, "scale": 0.3 }])).await, json!({ "success": true }));
    assert_eq!(shown(&app.get("/lora-adapters").await.1), [(0, 0), (1, 30)], "those that are not named get 0");
    assert_eq!(text(&app, None).await, second);
    let params = app.get("/props").await.1["default_generation_settings"]["params"]["lora"].clone();
    assert_eq!(shown(&params), [(1, 30)]);
    app.ok("/lora-adapters", &json!([])).await;
    assert_eq!(text(&app, None).await, plain);
}

#[tokio::test]
async fn every_generating_endpoint_takes_adapters() {
    let dir = TempDir::new().unwrap();
    let app = app(&dir);
    let talk = json!([{ "role": "user", "content": "What is 20 + 15?" }]);
    for (path, body, at) in [
        ("/v1/completions", json!({ "prompt": "Once upon a time" }), "/choices/0/text"),
        ("/v1/chat/completions", json!({ "messages": talk }), "/choices/0/message"),
        ("/v1/messages", json!({ "messages": talk, "model": "pocket" }), "/content"),
        ("/v1/responses", json!({ "input": "What is 20 + 15?" }), "/output/0"),
    ] {
        let mut said = Vec::new();
        for scale in [0.0, 1.5] {
            let mut body = body.clone();
            body["lora"] = json!([{ "id": 1, "scale": scale }]);
            body["max_tokens"] = json!(16);
            let mut part = app.ok(path, &body).await.pointer(at).unwrap_or_else(|| panic!("{path}: {at}")).clone();
            if let Some(part) = part.as_object_mut() {
                part.remove("id");
            }
            said.push(part);
        }
        assert_ne!(said[0], said[1], "{path} does not use the adapter");
    }
}

#[tokio::test]
async fn adapters_that_cannot_be_used_are_refused_with_the_field() {
    let dir = TempDir::new().unwrap();
    let app = app(&dir);
    let many: Vec<Value> = (0..1000).map(|id| json!({ "id": id, "scale": 1 })).collect();
    for (lora, reason) in [
        (json!([{ "id": 2, "scale": 1 }]), "adapter 2 does not exist: 2 are loaded, numbered from 0"),
        (json!(many), "adapter 2 does not exist"),
        (json!([{ "id": 0, "scale": 1 }, { "id": 0, "scale": 2 }]), "adapter 0 is named twice"),
        (json!([{ "id": 0, "scale": 1e39 }]), "scale"),
        (json!([{ "id": -1, "scale": 1 }]), "-1"),
        (json!([{ "id": 0 }]), "scale"),
        (json!([{ "scale": 1 }]), "id"),
        (json!([{ "id": 0, "scale": "1" }]), "string"),
        (json!({ "id": 0, "scale": 1 }), "a"),
        (json!("0"), "a"),
    ] {
        let body = json!({ "prompt": "Once", "n_predict": 1, "lora": lora });
        for (path, body) in [("/completion", &body), ("/v1/chat/completions", &body), ("/lora-adapters", &body["lora"])]
        {
            let mut body = body.clone();
            if path.starts_with("/v1") {
                body["messages"] = json!([{ "role": "user", "content": "Hello" }]);
            }
            let (status, answer) = app.post(path, &body).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path}, {lora}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(message.contains(reason), "{path}, {lora}: `{message}` is not `{reason}`");
        }
    }
    // A number that no JSON has.
    let (status, _) = app.raw("/lora-adapters", "[{\"id\": 0, \"scale\": NaN}]").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (_, list) = app.get("/lora-adapters").await;
    assert!((list[0]["scale"].as_f64().unwrap() - 0.3).abs() < 1e-6, "what is refused changes nothing: {list}");
}

#[tokio::test]
async fn a_model_without_adapters_has_an_empty_list() {
    let app = App::plain(EngineConfig { n_sequences: 1, ..EngineConfig::default() });
    assert_eq!(app.get("/lora-adapters").await, (StatusCode::OK, json!([])));
    assert_eq!(app.ok("/lora-adapters", &json!([])).await["success"], true);
    let (status, answer) = app.post("/lora-adapters", &json!([{ "id": 0, "scale": 1 }])).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(answer["error"]["message"], "lora-adapters: adapter 0 does not exist: 0 are loaded, numbered from 0");
}
