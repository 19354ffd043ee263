//! Requests that servers of this kind are known to take badly, each with the answer that is right.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::{Value, json};

use crate::support::{App, question};

async fn refused(app: &App, path: &str, body: impl Into<Body>, what: &str) -> Value {
    let (status, answer) = app.raw(path, body).await;
    let answer: Value = serde_json::from_slice(&answer).expect("an error in JSON");
    assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {answer}");
    assert_eq!(answer["error"]["type"], "invalid_request_error", "{what}");
    answer
}

#[tokio::test]
async fn what_is_no_json_is_the_clients_mistake() {
    let app = App::new();
    let deep = "[".repeat(100_000);
    let nested = format!("{{\"messages\":{deep}");
    let bodies: [(&str, &[u8]); 8] = [
        ("empty", b""),
        ("cut off", b"{"),
        ("bad UTF-8", b"{\"prompt\":\"\xff\xfe\"}"),
        ("lone surrogate", b"{\"prompt\":\"\\ud800\"}"),
        ("NaN", b"{\"prompt\":\"x\",\"temperature\":NaN}"),
        ("1e400", b"{\"prompt\":\"x\",\"temperature\":1e400}"),
        ("deep", deep.as_bytes()),
        ("deep within", nested.as_bytes()),
    ];
    for path in ["/v1/chat/completions", "/v1/completions", "/completion", "/tokenize"] {
        for (what, body) in bodies {
            refused(&app, path, body.to_vec(), &format!("{path} {what}")).await;
        }
    }
}

#[tokio::test]
async fn json_need_not_be_declared_but_by_browsers() {
    let app = App::new();
    let body = question("Hello").to_string();
    let sent = |kind: Option<&str>, browser: Option<(&str, &str)>, body: &str| {
        let both = kind.map(|kind| ("content-type", kind)).into_iter().chain(browser);
        let request =
            both.fold(Request::post("/v1/chat/completions"), |request, (name, value)| request.header(name, value));
        app.send(request.body(Body::from(body.to_owned())).unwrap())
    };
    for kind in
        [None, Some(""), Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("multipart/form-data")]
    {
        assert_eq!(sent(kind, None, &body).await.0, StatusCode::OK, "{kind:?}");
        let (status, answer) = sent(kind, None, "prompt=Hello").await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{kind:?}");
        assert!(String::from_utf8_lossy(&answer).contains("not JSON"), "{kind:?}");
        for browser in [("origin", "null"), ("origin", "http://localhost:3000"), ("sec-fetch-site", "same-origin")] {
            let (status, _) = sent(kind, Some(browser), &body).await;
            assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind:?} {browser:?}");
        }
    }
}

#[tokio::test]
async fn numbers_out_of_range_are_named_with_their_range() {
    let app = App::new();
    for (field, value) in [
        ("n", json!(100_000)),
        ("n", json!(-1)),
        ("max_tokens", json!(-5)),
        ("n_predict", json!(-5)),
        ("n_discard", json!(-5)),
        ("n_probs", json!(-1)),
        ("t_max_predict_ms", json!(-5)),
        ("n_indent", json!(-1)),
        ("temperature", json!(1e39)),
        ("top_p", json!(2)),
        ("logit_bias", json!([[999_999, 1]])),
        ("logit_bias", json!({ "999999": 1 })),
        ("logit_bias", json!("x")),
        ("speculative.n_max", json!(-1)),
        ("speculative.p_min", json!(1.5)),
        ("speculative.p_min", json!(-0.5)),
        ("mirostat", json!(9)),
        ("samplers", json!(3)),
        ("stop", json!([3])),
    ] {
        let body = json!({ "prompt": "Once", field: value });
        let answer = refused(&app, "/completion", body.to_string(), &body.to_string()).await;
        assert_eq!(answer["error"]["param"], field, "{answer}");
    }
    let mut body = question("Hello");
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(1_000_000);
    refused(&app, "/v1/chat/completions", body.to_string(), "top_logprobs").await;
}

#[tokio::test]
async fn tokens_out_of_range_are_refused() {
    let app = App::new();
    for prompt in [json!([1, 999_999]), json!([-1]), json!([1.5]), json!([4_294_967_296u64]), json!({}), json!([])] {
        refused(&app, "/completion", json!({ "prompt": prompt }).to_string(), &prompt.to_string()).await;
    }
    for tokens in [json!([999_999]), json!([-1]), json!(["a"])] {
        refused(&app, "/detokenize", json!({ "tokens": tokens }).to_string(), &tokens.to_string()).await;
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_not_read() {
    let app = App::new();
    let body = json!({ "content": "word ".repeat(7 << 20) }).to_string();
    assert!(body.len() > 32 << 20);
    let (status, _) = app.raw("/tokenize", body.clone()).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    // Without a length in the headers too.
    let stream = futures_util::stream::iter([Ok::<_, std::io::Error>(body)]);
    let (status, _) = app.raw("/tokenize", Body::from_stream(stream)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn other_methods_and_paths_are_told_apart() {
    let app = App::new();
    for method in [Method::TRACE, Method::DELETE, Method::GET] {
        let request = Request::builder().method(method).uri("/v1/chat/completions").body(Body::empty()).unwrap();
        assert_eq!(app.send(request).await.0, StatusCode::METHOD_NOT_ALLOWED);
    }
    assert_eq!(app.get("/v1/nothing").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn form_demands_that_cannot_be_met_are_not_left_out() {
    let app = App::new();
    let mut body = question("Hello");
    body["response_format"] = json!({ "type": "no_such_format" });
    refused(&app, "/v1/chat/completions", body.to_string(), "response_format").await;
    let mut body = question("Hello");
    body["tool_choice"] = json!("sometimes");
    refused(&app, "/v1/chat/completions", body.to_string(), "tool_choice").await;
}

#[tokio::test]
async fn grammars_that_lead_to_themselves_are_served_and_those_without_bounds_are_refused() {
    let app = App::new();
    let ask = |grammar: &str| json!({ "prompt": "Once", "n_predict": 4, "grammar": grammar });
    for grammar in ["root ::= root \"a\" | \"a\"", "root ::= (((\"a\"{1,1000}){1,1000}){1,1000}){1,1000}"] {
        let answer = app.ok("/completion", &ask(grammar)).await;
        assert!(answer["content"].as_str().unwrap().bytes().all(|b| b == b'a'), "{grammar}: {answer}");
    }
    let nested = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
    for grammar in [nested.as_str(), "root ::= \"a\"{1,100000000}"] {
        refused(&app, "/completion", ask(grammar).to_string(), &grammar[..20]).await;
    }
}

#[tokio::test]
async fn the_served_document_names_what_is_there() {
    let app = App::new();
    let (status, document) = app.get("/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    let refs = document.to_string();
    for name in refs.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(document["components"]["schemas"][name].is_object(), "{name} is referred to and not there");
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        let asked = path.replace("{id}", "0");
        for method in item.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let request = Request::builder().method(method.clone()).uri(&asked).body(Body::empty()).unwrap();
            let (status, answer) = app.send(request).await;
            assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            assert!(!String::from_utf8_lossy(&answer).contains("nothing at this path"), "{method} {path}");
            let documented = &item[method.as_str().to_lowercase()]["responses"];
            assert!(documented[status.as_str()].is_object(), "{method} {path} gives {status}: {documented}");
        }
    }
}
