//! llama.cpp's own endpoints.

use api::Settings;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{App, question};

#[tokio::test]
async fn tokens_go_there_and_back() {
    let app = App::new();
    let text = "Once upon a time, <|im_end|> caf\u{e9} \u{1f600}!";
    let tokens = app.ok("/tokenize", &json!({ "content": text })).await["tokens"].clone();
    assert_eq!(app.ok("/detokenize", &json!({ "tokens": tokens })).await["content"], text);
    let plain = app.ok("/tokenize", &json!({ "content": text, "parse_special": false })).await["tokens"].clone();
    assert!(plain.as_array().unwrap().len() > tokens.as_array().unwrap().len());
    let pieces = app.ok("/tokenize", &json!({ "content": "Once upon", "with_pieces": true })).await;
    assert_eq!(pieces["tokens"][0]["piece"], "Once");
}

#[tokio::test]
async fn a_native_completion_has_its_figures() {
    let app = App::new();
    let body = json!({ "prompt": "Once upon", "n_predict": 6, "return_tokens": true, "n_probs": 2 });
    let answer = app.ok("/completion", &body).await;
    assert_eq!((answer["tokens"].as_array().unwrap().len(), &answer["stop_type"]), (6, &json!("limit")));
    assert_eq!((&answer["timings"]["predicted_n"], &answer["tokens_predicted"]), (&json!(6), &json!(6)));
    assert_eq!(answer["completion_probabilities"][0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert!(answer["timings"]["draft_n"].is_u64() && answer["timings"]["draft_n_accepted"].is_u64());
    let events = app.stream("/completion", &body).await;
    let text: String = events.iter().filter_map(|e| e["content"].as_str()).collect();
    assert_eq!(text, answer["content"].as_str().unwrap());
    assert_eq!(events.last().unwrap()["stop"], true);
}

#[tokio::test]
async fn the_least_probability_of_a_draft_is_the_requests_else_the_servers() {
    let app = App::new();
    let mut body = json!({ "prompt": "Once upon", "n_predict": 1 });
    let key = "speculative.p_min";
    assert_eq!(app.ok("/completion", &body).await["generation_settings"][key], 0.25);
    let (_, props) = app.get("/props").await;
    assert_eq!(props["default_generation_settings"]["params"][key], 0.25);
    for p_min in [0.0, 0.5, 1.0] {
        body[key] = json!(p_min);
        assert_eq!(app.ok("/completion", &body).await["generation_settings"][key], p_min);
    }
}

#[tokio::test]
async fn a_gap_is_filled_where_the_vocabulary_can() {
    let app = App::new();
    let body = json!({ "input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 8 });
    let answer = app.ok("/infill", &body).await;
    assert!(!answer["content"].as_str().unwrap().is_empty(), "{answer}");
}

#[tokio::test]
async fn the_template_is_applied_as_in_a_chat() {
    let app = App::new();
    let prompt = app.ok("/apply-template", &question("Hello")).await["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.contains("<|im_start|>user\nHello<|im_end|>") && prompt.ends_with("</think>\n\n"), "{prompt}");
}

#[tokio::test]
async fn what_the_server_is_can_be_read() {
    let app = App::new();
    let (_, props) = app.get("/props").await;
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(2), &json!("pocket")));
    assert!(props["chat_template"].as_str().unwrap().contains("im_start"));
    app.ok("/v1/chat/completions", &question("Hello")).await;
    let (_, slots) = app.get("/slots").await;
    assert!(slots.as_array().unwrap().iter().any(|slot| slot["n_tokens"].as_u64() > Some(0)), "{slots}");
    let (status, models) = app.get("/v1/models").await;
    assert_eq!((status, &models["data"][0]["id"]), (StatusCode::OK, &json!("pocket")));
    assert_eq!(app.get("/v1/models/pocket").await.0, StatusCode::OK);
    assert_eq!(app.get("/v1/models/other").await.0, StatusCode::NOT_FOUND);
    let (status, metrics) = app.get("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    for name in
        ["llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "nextn:time_to_first_token_seconds_bucket"]
    {
        assert!(metrics.as_str().unwrap().contains(name), "{name}");
    }
    assert!(metrics.as_str().unwrap().contains("nextn:requests_total{reason=\"stop\"} 1"), "{metrics}");
}

#[tokio::test]
async fn rates_are_those_of_the_requests_that_ended_since_the_metrics_were_read() {
    let app = App::new();
    app.ok("/v1/chat/completions", &question("Hello")).await;
    let rates = |metrics: &Value, name: &str| -> f64 {
        let text = metrics.as_str().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    };
    let (first, second) = (app.get("/metrics").await.1, app.get("/metrics").await.1);
    for name in ["prompt_tokens_seconds", "predicted_tokens_seconds"] {
        let (since, last) = (format!("llamacpp:{name}"), format!("nextn:{name}"));
        assert!(rates(&first, &since) > 0.0 && rates(&first, &last) > 0.0, "{name}");
        assert!(rates(&second, &since) == 0.0 && rates(&second, &last) > 0.0, "{name}");
    }
}

#[tokio::test]
async fn timings_are_numbers_unless_more_is_asked_for() {
    let app = App::new();
    let body = json!({ "prompt": "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "n_predict": 24, "temperature": 0 });
    let plain = app.ok("/completion", &body).await;
    assert!(plain["timings"].as_object().unwrap().values().all(Value::is_number), "{plain}");
    let mut message = json!({ "max_tokens": 8, "messages": [{ "role": "user", "content": "Hello" }] });
    assert_eq!(app.ok("/v1/messages", &message).await.get("timings"), None, "Anthropic has none");
    message["timings_per_token"] = json!(true);
    assert!(app.ok("/v1/messages", &message).await["timings"]["draft_n"].is_u64());
}

#[tokio::test]
async fn a_request_may_choose_its_slot() {
    let app = App::new();
    for slot in [1, 0, 0, 1] {
        let body = json!({ "prompt": "Once upon a time", "n_predict": 2, "id_slot": slot });
        assert_eq!(app.ok("/completion", &body).await["id_slot"], slot);
        let (_, slots) = app.get("/slots").await;
        assert!(slots[slot]["n_tokens"].as_u64() > Some(0), "{slots}");
    }
    let beyond = json!({ "prompt": "x", "n_predict": 2, "id_slot": 2 });
    let (status, answer) = app.post("/completion", &beyond).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("id_slot")));
}

#[tokio::test]
async fn a_slot_is_saved_and_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let settings = Settings { slots: true, slot_save_path: Some(path.clone()), ..Settings::default() };
    let app = App::over(engine::EngineConfig::default(), settings);
    let body = json!({ "prompt": "Once upon a time there was a clever", "n_predict": 4 });
    let answer = app.ok("/completion", &body).await;
    let saved = app.ok("/slots/0?action=save", &json!({ "filename": "a.bin" })).await;
    assert_eq!(saved["n_written"].as_u64(), std::fs::metadata(path.join("a.bin")).ok().map(|m| m.len()));
    let n = saved["n_saved"].as_u64().unwrap();
    assert_eq!(app.ok("/slots/0?action=erase", &json!({})).await["n_erased"], n);
    assert_eq!(app.ok("/slots/0?action=restore", &json!({ "filename": "a.bin" })).await["n_restored"], n);
    // What was generated goes on where it was: the whole text is in the state but for its last token.
    let longer = format!("Once upon a time there was a clever{}", answer["content"].as_str().unwrap());
    let more = app.ok("/completion", &json!({ "prompt": longer, "n_predict": 2 })).await;
    assert_eq!(more["timings"]["cache_n"], n, "{more}");

    let mut bytes = std::fs::read(path.join("a.bin")).unwrap();
    let of_version_1 = [b"NXTSLOT1", &bytes[8..]].concat();
    std::fs::write(path.join("old.bin"), of_version_1).unwrap();
    // Longer than any slot of this server: nothing of it is read. No disk holds what a sparse file says it has.
    std::fs::File::create(path.join("long.bin")).unwrap().set_len(1 << 40).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(path.join("cut.bin"), bytes).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", path.join("link")).unwrap();
    for (slot, name, status) in [
        (0, "cut.bin", StatusCode::BAD_REQUEST),
        (0, "old.bin", StatusCode::BAD_REQUEST),
        (0, "long.bin", StatusCode::BAD_REQUEST),
        (0, "link", StatusCode::BAD_REQUEST),
        (0, "../a.bin", StatusCode::BAD_REQUEST),
        (0, "/etc/hostname", StatusCode::BAD_REQUEST),
        (0, "a/b", StatusCode::BAD_REQUEST),
        (0, "", StatusCode::BAD_REQUEST),
        (0, "none.bin", StatusCode::NOT_FOUND),
        (999, "a.bin", StatusCode::NOT_FOUND),
    ] {
        let (found, answer) = app.post(&format!("/slots/{slot}?action=restore"), &json!({ "filename": name })).await;
        assert_eq!(found, status, "{slot} {name}: {answer}");
    }
    for (name, says) in [("old.bin", "save the slot anew"), ("long.bin", "a slot of this server at most")] {
        let (_, answer) = app.post("/slots/0?action=restore", &json!({ "filename": name })).await;
        assert!(answer["error"]["message"].as_str().is_some_and(|why| why.contains(says)), "{answer}");
    }
    // What was refused has changed nothing.
    let again = app.ok("/completion", &json!({ "prompt": longer, "n_predict": 2 })).await;
    assert_eq!(again["content"], more["content"], "{again}");
    assert_eq!(app.post("/slots/999?action=save", &json!({ "filename": "b" })).await.0, StatusCode::NOT_FOUND);
    assert!(!path.join("b").exists());
}

#[tokio::test]
async fn texts_become_rows_of_length_one() {
    let app = App::with(Settings { embeddings: true, ..Settings::default() });
    let texts = json!(["a red apple", "a green apple", "What is 412 - 187?", "a red apple"]);
    let answer = app.ok("/v1/embeddings", &json!({ "input": texts })).await;
    let rows: Vec<Vec<f64>> = answer["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect())
        .collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert!(rows.iter().all(|row| row.len() == 256 && (dot(row, row) - 1.0).abs() < 1e-5), "{answer}");
    // Rows of a pass may differ in their last bits from those of another pass.
    assert!((dot(&rows[0], &rows[3]) - 1.0).abs() < 1e-4);
    assert!(dot(&rows[0], &rows[1]) > dot(&rows[0], &rows[2]), "apples are closer to each other");
    let last = app.ok("/v1/embeddings", &json!({ "input": "a red apple", "pooling": "last" })).await;
    assert_ne!(last["data"][0]["embedding"], answer["data"][0]["embedding"]);
    let coded = app.ok("/v1/embeddings", &json!({ "input": "a red apple", "encoding_format": "base64" })).await;
    assert_eq!(coded["data"][0]["embedding"].as_str().map(str::len), Some((256 * 4_usize).div_ceil(3) * 4));
    assert_eq!(coded["usage"]["prompt_tokens"], coded["usage"]["total_tokens"]);
    // Answers go on as they were.
    let story = json!({ "prompt": "Once upon", "n_predict": 8 });
    assert_eq!(app.ok("/completion", &story).await["content"], App::new().ok("/completion", &story).await["content"]);
    let (status, _) = App::new().post("/v1/embeddings", &json!({ "input": "x" })).await;
    assert_eq!(status, StatusCode::NOT_IMPLEMENTED);
}
