//! Cached state and API keys: what one key asked, another cannot tell.

use api::{CacheScope, Settings};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use engine::EngineConfig;
use serde_json::{Value, json};

use crate::support::App;

async fn post(app: &App, key: &str, path: &str, body: &Value) -> (StatusCode, Value) {
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.header("authorization", format!("Bearer {key}"));
    let (status, body) = app.send(request.body(Body::from(body.to_string())).unwrap()).await;
    (status, serde_json::from_slice(&body).expect("an answer in JSON"))
}

async fn n_cached(app: &App, key: &str, path: &str, body: &Value) -> u64 {
    let (status, answer) = post(app, key, path, body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let n = answer["timings"]["cache_n"].as_u64();
    n.unwrap_or_else(|| panic!("{answer}"))
}

fn app(cache_scope: CacheScope, slot_save_path: Option<std::path::PathBuf>) -> App {
    let api_keys = vec!["one".into(), "two".into()];
    let settings = Settings { api_keys, cache_scope, slots: true, slot_save_path, ..Settings::default() };
    App::over(EngineConfig { n_sequences: 2, ..EngineConfig::default() }, settings)
}

#[tokio::test]
async fn what_one_key_asked_is_cached_for_no_other() {
    let story = json!({ "prompt": "Once upon a time there was a clever", "n_predict": 4 });
    let talk = json!({ "messages": [{ "role": "user", "content": "What is 20 + 15?" }], "max_tokens": 4,
        "chat_template_kwargs": { "enable_thinking": false } });
    for (path, body) in [("/completion", &story), ("/v1/completions", &story), ("/v1/chat/completions", &talk)] {
        // Beginnings of equal requests are taken up at a boundary or at the end of what was answered.
        let longer = |answer: &Value| match answer["content"].as_str().or(answer["choices"][0]["text"].as_str()) {
            Some(said) => json!({ "prompt": format!("Once upon a time there was a clever{said}"), "n_predict": 4 }),
            None => body.clone(),
        };
        for (scope, found) in [(CacheScope::Key, false), (CacheScope::All, true)] {
            let app = app(scope, None);
            let (status, answer) = post(&app, "one", path, body).await;
            assert_eq!(status, StatusCode::OK, "{answer}");
            let again = longer(&answer);
            assert_eq!(n_cached(&app, "two", path, &again).await > 0, found, "{path}, {scope:?}");
            // Where all share, the other one has gone on with this state.
            if scope == CacheScope::Key {
                assert!(n_cached(&app, "one", path, &again).await > 0, "{path}, {scope:?}: its own");
            }
        }
    }
}

#[tokio::test]
async fn a_slot_is_saved_by_its_key_and_belongs_to_the_key_that_restored_it() {
    let directory = tempfile::tempdir().unwrap();
    let app = app(CacheScope::Key, Some(directory.path().to_owned()));
    let body = json!({ "prompt": "Once upon a time there was a clever", "n_predict": 4, "id_slot": 0 });
    let (_, answer) = post(&app, "one", "/completion", &body).await;
    let longer = format!("Once upon a time there was a clever{}", answer["content"].as_str().unwrap());
    let longer = json!({ "prompt": longer, "n_predict": 2 });
    let name = json!({ "filename": "a.bin" });
    let (status, refused) = post(&app, "two", "/slots/0?action=save", &name).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{refused}");
    let (status, saved) = post(&app, "one", "/slots/0?action=save", &name).await;
    assert_eq!(status, StatusCode::OK, "{saved}");
    assert_eq!(post(&app, "two", "/slots/1?action=restore", &name).await.0, StatusCode::OK);
    assert_eq!(n_cached(&app, "two", "/completion", &longer).await, saved["n_saved"].as_u64().unwrap());
    // Numbers only: neither texts nor tokens of anybody.
    let request = Request::get("/slots").header("x-api-key", "two").body(Body::empty()).unwrap();
    let slots = String::from_utf8(app.send(request).await.1).unwrap();
    assert!(!slots.contains("clever") && !slots.contains("prompt\""), "{slots}");
}
