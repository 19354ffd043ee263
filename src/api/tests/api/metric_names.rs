//! Every metric that a page, the Grafana dashboard or the manual names is one that `/metrics` serves.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

use super::support::{App, question};

/// The names of all samples after a request that made drafts and one that found its prompt in the cache.
async fn served() -> BTreeSet<String> {
    let app = App::new();
    for _ in 0..2 {
        let body = json!({ "prompt": "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "n_predict": 24, "temperature": 0 });
        app.ok("/completion", &body).await;
    }
    let mut names = BTreeSet::new();
    // Browsers ask with an `Accept` of their own and get the older format; Prometheus asks for the newer one.
    for accept in ["*/*", "application/openmetrics-text; version=1.0.0"] {
        let request = Request::get("/metrics").header("accept", accept).body(Body::empty()).expect("a request");
        let (status, text) = app.send(request).await;
        assert_eq!(status, StatusCode::OK);
        let text = String::from_utf8(text).expect("text");
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        names.extend(samples.map(|line| line.split(['{', ' ']).next().unwrap_or_default().to_owned()));
    }
    names
}

/// Names with one of our prefixes in a text; what ends in `_` is a pattern and no name.
fn named(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for prefix in ["llamacpp:", "nextn:"] {
        for (at, _) in text.match_indices(prefix) {
            let is_name = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '_';
            let rest: String = text[at + prefix.len()..].chars().take_while(is_name).collect();
            if !rest.is_empty() && !rest.ends_with('_') {
                found.insert(format!("{prefix}{rest}"));
            }
        }
    }
    found
}

#[tokio::test]
async fn every_metric_that_the_dashboard_page_asks_for_is_served() {
    let served = served().await;
    let asked = named(include_str!("../../web/dashboard.js"));
    assert!(asked.len() > 20, "{asked:?}");
    // The page gives the name of a histogram, and reads its buckets.
    let is_served = |name: &String| served.contains(name) || served.contains(&format!("{name}_bucket"));
    let missing: Vec<&String> = asked.iter().filter(|name| !is_served(name)).collect();
    assert!(missing.is_empty(), "asked for and not served: {missing:?}\nserved: {served:#?}");
}

#[tokio::test]
async fn every_metric_of_the_grafana_dashboard_is_served() {
    let served = served().await;
    let dashboard: Value =
        serde_json::from_str(include_str!("../../../../scripts/deploy/grafana.json")).expect("the file is JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() > 8, "{} panels", panels.len());
    for panel in panels {
        let title = panel["title"].as_str().expect("each panel has a title");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().expect("each target has a query");
            let asked = named(query);
            assert!(!asked.is_empty(), "{title}: {query}: no metric of this server");
            let missing: Vec<&String> = asked.difference(&served).collect();
            assert!(missing.is_empty(), "{title}: {query}: not served: {missing:?}\nserved: {served:#?}");
        }
    }
}

#[tokio::test]
async fn what_a_model_did_is_told_under_its_name() {
    let app = App::new();
    let body = json!({ "prompt": "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "n_predict": 24, "temperature": 0 });
    app.ok("/completion", &body).await;
    // Of a conversation the state at its message's end is kept.
    app.ok("/v1/chat/completions", &question("Hello")).await;
    app.ok("/v1/chat/completions", &question("Hello")).await;
    let (_, metrics) = app.get("/metrics").await;
    let text = metrics.as_str().expect("text");
    let value = |name: &str| -> f64 {
        let name = format!("{name}{{model=\"pocket\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().expect("a number")
    };
    let total = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().expect("a number")
    };
    assert_eq!(value("nextn:model_requests_total"), 3.0);
    for (of_model, of_all) in [
        ("nextn:model_tokens_predicted_total", "llamacpp:tokens_predicted_total"),
        ("nextn:model_prompt_tokens_total", "llamacpp:prompt_tokens_total"),
        ("nextn:model_prompt_cache_hits_total", "nextn:prompt_cache_hits_total"),
        ("nextn:model_prompt_tokens_cached_total", "nextn:prompt_tokens_cached_total"),
        ("nextn:model_draft_tokens_total", "llamacpp:spec_decode_num_draft_tokens_total"),
        ("nextn:model_accepted_tokens_total", "llamacpp:spec_decode_num_accepted_tokens_total"),
        ("nextn:model_inter_token_seconds_count", "nextn:inter_token_seconds_count"),
        ("nextn:model_state_bytes", "nextn:state_bytes"),
    ] {
        assert_eq!(value(of_model), total(of_all), "{of_model}: the server has one model");
        assert!(value(of_model) > 0.0, "{of_model}");
    }
    assert_eq!(value("nextn:model_time_to_first_token_seconds_count"), 3.0);
}

#[tokio::test]
async fn what_vllm_has_too_is_told_under_its_names_where_they_are_asked_for() {
    let app = App::new();
    let body = json!({ "prompt": "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "n_predict": 24, "temperature": 0 });
    app.ok("/completion", &body).await;
    for _ in 0..2 {
        app.ok("/v1/chat/completions", &question("Hello")).await;
    }
    let (status, metrics) = app.get("/metrics?names=vllm").await;
    assert_eq!(status, StatusCode::OK);
    let text = metrics.as_str().expect("text");
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().expect("a number")
    };
    assert_eq!((value("vllm:num_requests_running"), value("vllm:num_requests_waiting")), (0.0, 0.0));
    let fill = value("vllm:kv_cache_usage_perc");
    assert!(fill > 0.0 && fill < 1.0, "{fill}");
    assert!(value("vllm:generation_tokens_total") > 24.0, "{text}");
    let (hits, queries) = (value("vllm:prefix_cache_hits_total"), value("vllm:prefix_cache_queries_total"));
    assert!(hits > 0.0 && hits < queries, "{hits} of {queries}: a question came twice");
    for name in [
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
    ] {
        assert!(value(name) > 0.0, "{name}");
    }
    assert!(!text.contains("llamacpp:") && !text.contains("nextn:"), "{text}");
    assert_eq!(app.get("/metrics?names=other").await.0, StatusCode::BAD_REQUEST);
}
