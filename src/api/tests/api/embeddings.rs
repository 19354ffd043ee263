//! `/v1/embeddings` and `/embedding`: shapes, limits, and what the file says of its inputs.

use api::Settings;
use axum::http::StatusCode;
use engine::EngineConfig;
use serde_json::{Value, json};
use session::ModelOptions;

use crate::support::App;
use crate::tiny::{Meta, Spec};
use crate::tiny_served::served_tiny;
use crate::words::END;

const WIDTH: usize = 48;

fn config() -> EngineConfig {
    EngineConfig { n_sequences: 2, embeddings: true, ..EngineConfig::default() }
}

/// Serves a tiny model whose file has these keys beside the usual ones.
fn app_of(keys: &[(&str, Meta)], config: EngineConfig, options: &ModelOptions) -> App {
    let mut document = Spec::of("qwen3").document();
    keys.iter().for_each(|(key, value)| document.set(key, value.clone()));
    let settings = Settings { embeddings: true, ..Settings::default() };
    App::serving(served_tiny(&document, config, options), settings)
}

fn app() -> App {
    app_of(&[], config(), &ModelOptions::default())
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap_or_else(|| panic!("{list}")).iter().map(|x| x.as_f64().unwrap()).collect()
}

/// The vectors of a response in OpenAI's form, which are in order.
fn vectors(response: &Value) -> Vec<Vec<f64>> {
    let data = response["data"].as_array().unwrap_or_else(|| panic!("{response}"));
    assert!(data.iter().enumerate().all(|(i, one)| one["index"] == i && one["object"] == "embedding"));
    data.iter().map(|one| numbers(&one["embedding"])).collect()
}

/// The vectors agree but for what other batches make of their last bits.
fn assert_same(a: &[f64], b: &[f64]) {
    assert!(a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3), "{a:?} and {b:?}");
}

fn norm(x: &[f64], p: f64) -> f64 {
    x.iter().map(|x| x.abs().powf(p)).sum::<f64>().powf(1.0 / p)
}

#[tokio::test]
async fn inputs_come_as_texts_as_tokens_and_as_lists_of_both() {
    let app = app();
    let tokens = app.ok("/tokenize", &json!({ "content": "the rain" })).await["tokens"].clone();
    let text = vectors(&app.ok("/v1/embeddings", &json!({ "input": "the rain" })).await);
    for input in [json!(["the rain"]), tokens.clone(), json!([tokens]), json!(["the rain", tokens, "the rain"])] {
        let response = app.ok("/v1/embeddings", &json!({ "input": input, "model": "tiny" })).await;
        let found = vectors(&response);
        found.iter().for_each(|vector| assert_same(vector, &text[0]));
        let n = found.len() * tokens.as_array().unwrap().len();
        assert_eq!(response["usage"], json!({ "prompt_tokens": n, "total_tokens": n }));
        assert_eq!((&response["object"], &response["model"]), (&json!("list"), &json!("tiny")));
    }
}

#[tokio::test]
async fn vectors_are_cut_and_normed_as_asked() {
    let app = app();
    let raw = json!({ "input": "the rain in", "embd_normalize": -1 });
    let whole = vectors(&app.ok("/v1/embeddings", &raw).await).remove(0);
    assert!((norm(&whole, 2.0) - 1.0).abs() > 0.01, "not of length one by itself");
    for n in [1, 7, WIDTH] {
        for (body, p) in
            [(json!({}), 2.0), (json!({ "embd_normalize": 1 }), 1.0), (json!({ "embd_normalize": 3 }), 3.0)]
        {
            let mut body = body.clone();
            (body["input"], body["dimensions"]) = (json!("the rain in"), json!(n));
            let found = vectors(&app.ok("/v1/embeddings", &body).await).remove(0);
            let expected: Vec<f64> = whole[..n].iter().map(|x| x / norm(&whole[..n], p)).collect();
            assert_same(&found, &expected);
        }
    }
    let largest = vectors(&app.ok("/v1/embeddings", &json!({ "input": "the", "embd_normalize": 0 })).await).remove(0);
    assert!((largest.iter().fold(0.0, |m: f64, x| m.max(x.abs())) - 32760.0).abs() < 0.1);
    // What holds where a request does not say.
    let mut options = ModelOptions::default();
    options.embedding.embd_normalize = 1;
    let app = app_of(&[], config(), &options);
    let found = vectors(&app.ok("/v1/embeddings", &json!({ "input": "the rain" })).await).remove(0);
    assert!((norm(&found, 1.0) - 1.0).abs() < 1e-5);
}

#[tokio::test]
async fn base64_holds_the_same_numbers() {
    use base64::Engine as _;
    let app = app();
    let input = json!({ "input": ["the rain", "in"], "dimensions": 5 });
    let floats = vectors(&app.ok("/v1/embeddings", &input).await);
    let mut coded = input.clone();
    coded["encoding_format"] = json!("base64");
    let coded = app.ok("/v1/embeddings", &coded).await;
    for (one, floats) in coded["data"].as_array().unwrap().iter().zip(floats) {
        let bytes = base64::prelude::BASE64_STANDARD.decode(one["embedding"].as_str().unwrap()).unwrap();
        let found: Vec<f64> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect();
        assert_same(&found, &floats);
    }
}

#[tokio::test]
async fn llama_cpps_form_has_a_list_of_vectors_for_each_input() {
    let app = app();
    let n_tokens = app.ok("/tokenize", &json!({ "content": "the rain" })).await["tokens"].as_array().unwrap().len();
    let expected = vectors(&app.ok("/v1/embeddings", &json!({ "input": "the rain" })).await).remove(0);
    for (path, field) in [("/embedding", "content"), ("/embedding", "input"), ("/embeddings", "content")] {
        let response = app.ok(path, &json!({ field: ["the rain", "in"] })).await;
        assert_eq!((response[0]["index"].as_u64(), response[1]["index"].as_u64()), (Some(0), Some(1)), "{response}");
        assert_eq!(response[0]["embedding"].as_array().unwrap().len(), 1);
        assert_same(&numbers(&response[0]["embedding"][0]), &expected);
    }
    let each = app.ok("/embedding", &json!({ "content": "the rain", "pooling": "none" })).await;
    let each: Vec<Vec<f64>> = each[0]["embedding"].as_array().unwrap().iter().map(numbers).collect();
    assert!(each.len() == n_tokens && each.iter().all(|vector| vector.len() == WIDTH));
    // As the model made them: the last of them is what pooling by the last one gives.
    let last = app.ok("/embedding", &json!({ "content": "the rain", "pooling": "last", "embd_normalize": -1 })).await;
    let first = app.ok("/embedding", &json!({ "content": "the rain", "pooling": "cls", "embd_normalize": -1 })).await;
    assert_same(&numbers(&last[0]["embedding"][0]), &each[n_tokens - 1]);
    assert_same(&numbers(&first[0]["embedding"][0]), &each[0]);
}

#[tokio::test]
async fn pooling_is_the_requests_else_the_options_else_the_files() {
    let by_last = [("qwen3.pooling_type", Meta::U32(3))];
    let of = async |app: &App, pooling: Option<&str>| {
        let body = json!({ "input": "the rain in the", "pooling": pooling });
        vectors(&app.ok("/v1/embeddings", &body).await).remove(0)
    };
    let (plain, of_file) = (app(), app_of(&by_last, config(), &ModelOptions::default()));
    let mut options = ModelOptions::default();
    options.embedding.pooling = Some(engine::Pooling::Cls);
    let of_options = app_of(&by_last, config(), &options);
    for (app, default) in [(&plain, "mean"), (&of_file, "last"), (&of_options, "cls")] {
        assert_same(&of(app, None).await, &of(&plain, Some(default)).await);
        assert_same(&of(app, Some("mean")).await, &of(&plain, Some("mean")).await);
    }
}

#[tokio::test]
async fn texts_end_with_the_token_that_the_file_asks_for_and_tokens_do_not() {
    let keys = [("qwen3.pooling_type", Meta::U32(3)), ("tokenizer.ggml.add_eos_token", Meta::Bool(true))];
    let app = app_of(&keys, config(), &ModelOptions::default());
    let mut tokens = app.ok("/tokenize", &json!({ "content": "the rain" })).await["tokens"].clone();
    let plain = vectors(&app.ok("/v1/embeddings", &json!({ "input": tokens })).await).remove(0);
    tokens.as_array_mut().unwrap().push(json!(END));
    let ended = vectors(&app.ok("/v1/embeddings", &json!({ "input": tokens })).await).remove(0);
    let text = vectors(&app.ok("/v1/embeddings", &json!({ "input": "the rain" })).await).remove(0);
    assert_same(&text, &ended);
    assert!(text.iter().zip(&plain).any(|(a, b)| (a - b).abs() > 1e-2));
}

#[tokio::test]
async fn more_inputs_than_the_queue_holds_come_back_in_order() {
    let app = app_of(&[], EngineConfig { max_queue: 3, n_batch: 16, ..config() }, &ModelOptions::default());
    let texts: Vec<String> = (0..100).map(|i| format!("the rain {}", "in ".repeat(i % 40))).collect();
    let found = vectors(&app.ok("/v1/embeddings", &json!({ "input": texts })).await);
    for i in [0, 1, 39, 40, 77, 99] {
        let alone = vectors(&app.ok("/v1/embeddings", &json!({ "input": texts[i] })).await).remove(0);
        assert_same(&found[i], &alone);
    }
}

#[tokio::test]
async fn what_cannot_be_embedded_is_refused_with_its_place() {
    let app = app_of(&[("qwen3.pooling_type", Meta::U32(4))], config(), &ModelOptions::default());
    let long = "the ".repeat(2000);
    for (path, body, field, word) in [
        ("/v1/embeddings", json!({ "input": [], "pooling": "mean" }), "input", "1 to 2048"),
        ("/v1/embeddings", json!({ "input": vec!["x"; 2049], "pooling": "mean" }), "input", "2049"),
        ("/v1/embeddings", json!({}), "input", "expected"),
        ("/v1/embeddings", json!({ "input": ["x", ""], "pooling": "mean" }), "input", "input[1] is empty"),
        (
            "/v1/embeddings",
            json!({ "input": ["x", long], "pooling": "mean" }),
            "input",
            "input[1] is too large and exceeds the available context",
        ),
        ("/v1/embeddings", json!({ "input": long, "pooling": "mean" }), "input", "input is too large and exceeds"),
        ("/v1/embeddings", json!({ "input": [[1, 999]], "pooling": "mean" }), "input", "999"),
        ("/v1/embeddings", json!({ "input": "x", "pooling": "mean", "dimensions": 0 }), "dimensions", "1 to 48"),
        ("/v1/embeddings", json!({ "input": "x", "pooling": "mean", "dimensions": 49 }), "dimensions", "49"),
        ("/v1/embeddings", json!({ "input": "x", "pooling": "median" }), "pooling", "median"),
        ("/v1/embeddings", json!({ "input": "x" }), "pooling", "/v1/rerank"),
        ("/v1/embeddings", json!({ "input": "x", "pooling": "none" }), "pooling", "/embedding"),
        (
            "/v1/embeddings",
            json!({ "input": "x", "pooling": "mean", "encoding_format": "hex" }),
            "encoding_format",
            "base64",
        ),
        ("/v1/embeddings", json!({ "input": "x", "pooling": "mean", "embd_normalize": -2 }), "embd_normalize", "-2"),
        ("/embedding", json!({ "content": 7 }), "content", "a text"),
    ] {
        let (status, answer) = app.post(path, &body).await;
        let shown: String = body.to_string().chars().take(90).collect();
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)), "{shown}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{shown}: {answer}");
    }
    let (_, answer) = app.post("/v1/embeddings", &json!({ "input": long, "pooling": "mean" })).await;
    assert_eq!(answer["error"]["code"], "context_length_exceeded");
    // An input may fill the context.
    let whole = json!({ "input": [vec![5; 1024]], "pooling": "last" });
    assert_eq!(app.ok("/v1/embeddings", &whole).await["usage"]["prompt_tokens"], 1024);
    let off = App::new();
    for path in ["/v1/embeddings", "/embedding", "/v1/rerank"] {
        let (status, answer) = off.post(path, &json!({ "input": "x" })).await;
        assert_eq!(status, StatusCode::NOT_IMPLEMENTED, "{path}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("--embeddings"), "{answer}");
    }
}
