//! Keys, origins, rates, names of models.

use std::time::Duration;

use api::{HttpLimits, Settings};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::json;
use tower::ServiceExt;

use crate::support::{App, question};

#[tokio::test]
async fn without_a_key_only_health_is_open() {
    let app = App::with(Settings {
        api_keys: vec!["one".into(), "two".into()],
        metrics: true,
        slots: true,
        ..Settings::default()
    });
    assert_eq!(app.get("/health").await.0, StatusCode::OK);
    for path in ["/v1/models", "/props", "/slots", "/metrics", "/nothing"] {
        assert_eq!(app.get(path).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }
    assert_eq!(app.post("/v1/chat/completions", &question("Hello")).await.0, StatusCode::UNAUTHORIZED);
    for (name, value) in [("authorization", "Bearer two"), ("x-api-key", "one")] {
        let request = Request::get("/v1/models").header(name, value).body(Body::empty()).unwrap();
        assert_eq!(app.send(request).await.0, StatusCode::OK, "{name}");
    }
}

#[tokio::test]
async fn other_origins_are_let_in_by_name_only() {
    let origin = |app: &App, origin: &'static str| {
        let request = Request::get("/health").header("origin", origin).body(Body::empty()).unwrap();
        let router = app.router.clone();
        async move {
            let response = router.oneshot(request).await.unwrap();
            response.headers().get("access-control-allow-origin").map(|v| v.to_str().unwrap().to_owned())
        }
    };
    assert_eq!(origin(&App::new(), "http://a.example").await, None);
    let app = App::with(Settings { cors_origins: vec!["http://a.example".into()], ..Settings::default() });
    assert_eq!(origin(&app, "http://a.example").await.as_deref(), Some("http://a.example"));
    assert_eq!(origin(&app, "http://b.example").await, None);
}

#[tokio::test]
async fn too_many_requests_are_told_when_to_come_back() {
    let app = App::with(Settings { requests_per_minute: Some(2), ..Settings::default() });
    assert_eq!(app.get("/v1/models").await.0, StatusCode::OK);
    assert_eq!(app.get("/v1/models").await.0, StatusCode::OK);
    let request = Request::get("/v1/models").body(Body::empty()).unwrap();
    let response = app.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=31).contains(&seconds));
    assert_eq!(app.get("/health").await.0, StatusCode::OK);
}

#[tokio::test]
async fn every_answer_has_a_request_id_and_takes_over_a_given_one() {
    let app = App::new();
    let id = |value: Option<&'static str>| {
        let mut request = Request::get("/health");
        if let Some(value) = value {
            request = request.header("x-request-id", value);
        }
        let (router, request) = (app.router.clone(), request.body(Body::empty()).unwrap());
        async move { router.oneshot(request).await.unwrap().headers()["x-request-id"].to_str().unwrap().to_owned() }
    };
    assert_eq!(id(Some("abc-1")).await, "abc-1");
    assert_ne!(id(None).await, id(None).await);
    assert_ne!(id(Some("a b")).await, "a b");
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_given_up() {
    let limits = HttpLimits { request_timeout: Some(Duration::ZERO), ..HttpLimits::default() };
    let app = App::with(Settings { limits, ..Settings::default() });
    let (status, answer) = app.post("/v1/chat/completions", &question("Hello")).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::GATEWAY_TIMEOUT, &json!("timeout")));
}

#[tokio::test]
async fn a_full_queue_is_an_answer() {
    let config = engine::EngineConfig { n_sequences: 1, max_queue: 1, ..engine::EngineConfig::default() };
    let app = App::over(config, Settings::default());
    let body = json!({ "prompt": "Once upon", "n_predict": 4, "n": 16 });
    let request = Request::post("/completion").header("content-type", "application/json");
    let response = app.router.clone().oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn pages_come_without_a_key_and_keep_to_themselves() {
    let settings = |webui| Settings { webui, api_keys: vec!["one".into()], ..Settings::default() };
    let app = App::with(settings(true));
    for path in ["/", "/dashboard", "/assets/chat.js", "/assets/style.css"] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = app.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let policy = response.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(
            (&response.headers()["x-frame-options"], &response.headers()["x-content-type-options"]),
            (&"DENY".parse().unwrap(), &"nosniff".parse().unwrap())
        );
    }
    assert_eq!(app.get("/assets/none.js").await.0, StatusCode::NOT_FOUND);
    let without = App::with(settings(false));
    for path in ["/", "/dashboard", "/assets/chat.js"] {
        assert_eq!(without.get(path).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }
}
