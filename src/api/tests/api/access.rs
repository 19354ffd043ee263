//! Keys, origins, rates, names of models.

use std::time::Duration;

use api::{HttpLimits, Settings};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
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
    let app = App::with(Settings { cors_origins: vec!["*".into()], ..Settings::default() });
    assert_eq!(origin(&app, "http://b.example").await.as_deref(), Some("http://b.example"));
}

#[tokio::test]
async fn an_allowed_origin_is_granted_what_its_preflight_asks_for_and_others_nothing() {
    let settings =
        Settings { cors_origins: vec!["localhost".into()], api_keys: vec!["k".into()], ..Settings::default() };
    let app = App::with(settings);
    let asked = "authorization,content-type,x-stainless-lang,anthropic-beta,anthropic-dangerous-direct-browser-access";
    let preflight = |origin: &'static str| {
        let request = Request::options("/v1/messages")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-private-network", "true")
            .header("access-control-request-headers", asked);
        let (router, request) = (app.router.clone(), request.body(Body::empty()).unwrap());
        async move { router.oneshot(request).await.unwrap() }
    };
    for origin in ["http://localhost:5173", "https://127.0.0.1", "http://[::1]:3000"] {
        let response = preflight(origin).await;
        assert!(response.status().is_success(), "{origin}: {}", response.status());
        let granted = |name: &str| response.headers()[name].to_str().unwrap();
        assert_eq!(granted("access-control-allow-origin"), origin);
        assert_eq!(granted("access-control-allow-headers"), asked);
        assert_eq!(granted("access-control-allow-methods"), "GET, POST, DELETE, OPTIONS");
        assert_eq!(granted("access-control-allow-private-network"), "true");
    }
    for origin in ["http://localhost.evil.example", "https://evil.example", "null"] {
        let response = preflight(origin).await;
        let told: Vec<&str> = response.headers().keys().map(|name| name.as_str()).collect();
        assert!(!told.iter().any(|name| name.starts_with("access-control-")), "{origin}: {told:?}");
    }
    // A page of this machine reads what it asked for, without a preflight too, but not without a key.
    let request = Request::get("/v1/models").header("origin", "http://localhost:1").body(Body::empty()).unwrap();
    let response = app.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()["access-control-allow-origin"], "http://localhost:1");
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
    let config = engine::EngineConfig { n_sequences: 1, max_queue: 8, ..engine::EngineConfig::default() };
    let app = App::over(config, Settings::default());
    let served = app.state.registry().get(None).await.unwrap();
    let _others = served.engine().reserve(6).unwrap();
    for (n, status) in [(2, StatusCode::OK), (3, StatusCode::SERVICE_UNAVAILABLE), (9, StatusCode::BAD_REQUEST)] {
        let body = json!({ "prompt": "Once upon", "n_predict": 4, "n": n });
        let request = Request::post("/completion").header("content-type", "application/json");
        let response = app.router.clone().oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{n} answers");
        // More than ever fit will not fit later.
        assert_eq!(response.headers().contains_key("retry-after"), status == StatusCode::SERVICE_UNAVAILABLE);
    }
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

#[tokio::test]
async fn a_name_that_is_none_of_the_servers_is_let_in_with_a_key_only() {
    let by_name = |host: &'static str| Request::get("/v1/models").header("host", host).body(Body::empty()).unwrap();
    let app = App::new();
    for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "192.168.1.5"] {
        assert_eq!(app.send(by_name(host)).await.0, StatusCode::OK, "{host}");
    }
    let (status, answer) = app.send(by_name("evil.example:8080")).await;
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::FORBIDDEN, &json!("host_not_allowed")), "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("--allowed-host evil.example"), "{message}");
    let health = Request::get("/health").header("host", "evil.example").body(Body::empty()).unwrap();
    assert_eq!(app.send(health).await.0, StatusCode::OK);

    let app = App::with(Settings { api_keys: vec!["one".into()], ..Settings::default() });
    let mut request = by_name("evil.example");
    assert_eq!(app.send(by_name("evil.example")).await.0, StatusCode::UNAUTHORIZED);
    request.headers_mut().insert("x-api-key", "one".parse().unwrap());
    assert_eq!(app.send(request).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_page_of_another_site_asks_for_nothing() {
    let app = App::new();
    let request = Request::post("/v1/chat/completions")
        .header("content-type", "application/json")
        .header("sec-fetch-site", "cross-site")
        .header("origin", "https://evil.example")
        .body(Body::from(question("Hello").to_string()));
    let (status, answer) = app.send(request.unwrap()).await;
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::FORBIDDEN, &json!("origin_not_allowed")), "{answer}");
}

#[tokio::test]
async fn no_post_takes_what_a_form_of_a_page_can_send() {
    let directory = tempfile::tempdir().unwrap();
    let slot_save_path = Some(directory.path().to_owned());
    let app = App::with(Settings { slots: true, embeddings: true, slot_save_path, ..Settings::default() });
    let (_, document) = app.get("/openapi.json").await;
    let paths = document["paths"].as_object().unwrap().iter();
    let documented = paths.filter(|(_, path)| path.get("post").is_some()).map(|(path, _)| path.replace("{id}", "0"));
    let others = ["/chat/completions", "/responses", "/embeddings", "/completions", "/slots/0?action=erase"];
    let all: Vec<String> = documented.chain(others.map(str::to_owned)).collect();
    assert!(all.len() > 15, "{all:?}");
    for path in all {
        for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("multipart/form-data")] {
            for browser in [("origin", "null"), ("sec-fetch-site", "none")] {
                let mut request = Request::post(&path).header(browser.0, browser.1);
                if let Some(kind) = kind {
                    request = request.header("content-type", kind);
                }
                let (status, answer) = app.send(request.body(Body::from(r#"{"model":"pocket"}"#)).unwrap()).await;
                let answer = String::from_utf8_lossy(&answer);
                assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path} {kind:?} {browser:?}: {answer}");
                let found = kind.map_or("no content type".to_owned(), |kind| format!("the content type is `{kind}`"));
                assert!(answer.contains(&found), "{path} {kind:?}: {answer}");
            }
        }
    }
}

#[tokio::test]
async fn wrong_keys_are_told_to_wait_and_right_ones_are_not() {
    let app = App::with(Settings { api_keys: vec!["right".into()], ..Settings::default() });
    let from = |address: &str, key: &str| {
        let mut request = Request::get("/v1/models").header("x-api-key", key).body(Body::empty()).unwrap();
        request.extensions_mut().insert(axum::extract::ConnectInfo(api::Peer(address.parse().unwrap())));
        request
    };
    let mut refused = 0;
    for i in 0..100 {
        let response = app.router.clone().oneshot(from("2001:db8::1", &format!("wrong-{i}"))).await.unwrap();
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            assert!(response.headers().contains_key("retry-after"));
            refused += 1;
        } else {
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        }
    }
    // Some may come back while the test runs.
    assert!(refused > 0, "no limit was met");
    assert_eq!(app.send(from("2001:db8::2", "wrong")).await.0, StatusCode::TOO_MANY_REQUESTS, "the same network");
    assert_eq!(app.send(from("2001:db8:0:1::1", "wrong")).await.0, StatusCode::UNAUTHORIZED, "another one");
    assert_eq!(app.send(from("2001:db8::1", "right")).await.0, StatusCode::OK);
}
