//! Images in every wire format: the same picture is the same prompt, and what cannot be seen is told with its place.

#[path = "../../../../tests/support/projector.rs"]
#[allow(dead_code)]
mod projector;

use std::io::Cursor;
use std::path::Path;

use api::{Served, Settings};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use session::ModelOptions;
use session::options::{ImageLimitOptions, ImageOptions};

use crate::support::App;
use projector::TinyProjector;

/// The small model with a projector of random weights: what it says of a picture means nothing, but depends on it.
fn seeing() -> Served {
    let folder = tempfile::tempdir().expect("a folder");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-q4_k_m.gguf");
    let path = folder.path().join("pocket.gguf");
    std::fs::copy(model, &path).expect("a disk with room");
    // Found beside the model; one for another width is passed over.
    TinyProjector::qwen(256).write(&folder.path().join("mmproj-pocket.gguf"));
    TinyProjector::qwen(64).write(&folder.path().join("pocket.mmproj-f16.gguf"));
    let mut options = ModelOptions::default();
    options.run.ctx_size = Some(1024);
    options.run.compute.threads = Some(1);
    options.capacity.parallel = 2;
    options.sampling =
        serde_json::from_value(json!({ "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0 })).expect("fields");
    let limits = ImageLimitOptions {
        image_min_pixels: Some(1024),
        image_max_pixels: Some(4096),
        ..ImageLimitOptions::default()
    };
    options.images = ImageOptions { limits, ..ImageOptions::default() };
    Served { id: "pocket".into(), model: session::open(path, &options).expect("both fit") }
}

fn app() -> App {
    App::serving(seeing(), Settings { slots: true, ..Settings::default() })
}

/// A PNG of 32 x 48 pixels, 24 rows, in base64.
fn png(shade: u8) -> String {
    let picture = image::RgbImage::from_fn(32, 48, |x, y| image::Rgb([shade, (x * 5) as u8, (y * 3) as u8]));
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, image::ImageFormat::Png).expect("a picture");
    BASE64_STANDARD.encode(bytes.into_inner())
}

fn uri(shade: u8) -> String {
    format!("data:image/png;base64,{}", png(shade))
}

fn part(shade: u8) -> Value {
    json!({ "type": "image_url", "image_url": { "url": uri(shade), "detail": "auto" } })
}

fn asked(content: Value) -> Value {
    json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 12, "chat_template_kwargs": { "enable_thinking": false } })
}

fn question(shade: u8) -> Value {
    asked(json!([part(shade), { "type": "text", "text": "What is this?" }]))
}

#[tokio::test]
async fn every_wire_format_has_the_same_prompt_of_a_picture() {
    let app = app();
    let answer = app.ok("/v1/chat/completions", &question(9)).await;
    let n_prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let words = app.ok("/v1/chat/completions", &asked(json!("What is this?"))).await;
    // The picture's rows, and the tokens that begin and end it.
    assert_eq!(n_prompt, words["usage"]["prompt_tokens"].as_u64().unwrap() + 24 + 2);
    assert_ne!(answer["choices"][0]["message"]["content"], words["choices"][0]["message"]["content"]);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();

    let count = app.ok("/v1/chat/completions/input_tokens", &question(9)).await;
    assert_eq!(count["input_tokens"], n_prompt);

    let source = json!({ "type": "base64", "media_type": "image/png", "data": png(9) });
    let content = json!([{ "type": "image", "source": source }, { "type": "text", "text": "What is this?" }]);
    let body = json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 12 });
    let messages = app.ok("/v1/messages", &body).await;
    let n = |name: &str| messages["usage"][name].as_u64().unwrap();
    assert_eq!(n("input_tokens") + n("cache_read_input_tokens"), n_prompt);
    assert_eq!(messages["content"][0]["text"], text);
    assert_eq!(app.ok("/v1/messages/count_tokens", &body).await["input_tokens"], n_prompt);

    let content =
        json!([{ "type": "input_image", "image_url": uri(9) }, { "type": "input_text", "text": "What is this?" }]);
    let body = json!({ "input": [{ "role": "user", "content": content }], "max_output_tokens": 12, "reasoning": { "effort": "none" } });
    let response = app.ok("/v1/responses", &body).await;
    assert_eq!(response["usage"]["input_tokens"], n_prompt, "{response}");
    assert_eq!(response["output"][0]["content"][0]["text"], text);
    // Kept with its picture, so that the next turn goes on from it.
    let next = json!({ "previous_response_id": response["id"], "input": "And now?", "max_output_tokens": 4 });
    let next = app.ok("/v1/responses", &next).await;
    assert!(next["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() >= n_prompt - 8, "{next}");

    let message = json!({ "role": "user", "content": "What is this?", "images": [png(9)] });
    let body = json!({ "messages": [message], "stream": false, "think": false, "options": { "num_predict": 12 } });
    let chat = app.ok("/api/chat", &body).await;
    assert_eq!((&chat["prompt_eval_count"], &chat["message"]["content"]), (&json!(n_prompt), &json!(text)), "{chat}");
    let body = json!({ "prompt": "What is this?", "images": [png(9)], "stream": false, "think": false, "options": { "num_predict": 12 } });
    let generated = app.ok("/api/generate", &body).await;
    assert_eq!((&generated["prompt_eval_count"], &generated["response"]), (&json!(n_prompt), &json!(text)));
    assert!(generated.get("context").is_none_or(Value::is_null), "a list of ids holds no picture");

    let rendered = app.ok("/apply-template", &question(9)).await["prompt"].as_str().unwrap().to_owned();
    let shown = "<|vision_start|><|image_pad|><|vision_end|>";
    assert!(rendered.contains(shown), "{rendered}");
    let prompt = json!({ "prompt_string": rendered.replace(shown, "<__media__>"), "multimodal_data": [png(9)] });
    let completion = app.ok("/completion", &json!({ "prompt": prompt, "n_predict": 12 })).await;
    assert_eq!((&completion["tokens_evaluated"], &completion["content"]), (&json!(n_prompt), &json!(text)));
    assert_eq!(app.get("/props").await.1["modalities"]["vision"], true);
}

#[tokio::test]
async fn a_conversation_goes_on_from_its_pictures() {
    let app = app();
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let first = app.ok("/v1/chat/completions", &question(9)).await;
    let said = first["choices"][0]["message"]["content"].clone();
    let mut body = question(9);
    let more = [
        json!({ "role": "assistant", "content": said }),
        json!({ "role": "user", "content": [{ "type": "text", "text": "And this?" }, part(70)] }),
    ];
    body["messages"].as_array_mut().unwrap().extend(more);
    let second = app.ok("/v1/chat/completions", &body).await;
    assert!(cached(&second) >= 24 + 2, "{second}");
    // Another picture in the first place: nothing behind the words before it is the same.
    body["messages"][0]["content"][0] = part(10);
    let other = app.ok("/v1/chat/completions", &body).await;
    assert!(cached(&other) < 16, "{other}");
    assert_eq!(other["usage"]["prompt_tokens"], second["usage"]["prompt_tokens"]);
    // Speculation changes no text.
    body["speculative.n_max"] = json!(0);
    body["cache_prompt"] = json!(false);
    let plain = app.ok("/v1/chat/completions", &body).await;
    assert_eq!(plain["choices"], other["choices"]);
}

#[tokio::test]
async fn tools_may_give_pictures() {
    let app = app();
    let call = json!({ "id": "c", "type": "function", "function": { "name": "look", "arguments": "{}" } });
    let mut body = asked(json!("Look."));
    body["messages"].as_array_mut().unwrap().extend([
        json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": "c", "content": [{ "type": "text", "text": "seen:" }, part(1)] }),
    ]);
    let count =
        async |body: &Value| app.ok("/v1/chat/completions/input_tokens", body).await["input_tokens"].as_u64().unwrap();
    let with = count(&body).await;
    body["messages"][2]["content"] = json!("seen:");
    // Words beside a picture may fall into other tokens.
    assert!(with >= count(&body).await + 24 + 2);

    let result = |image: Value| {
        json!({ "max_tokens": 4, "messages": [
            { "role": "user", "content": "Look." },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "c", "name": "look", "input": {} }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c", "content": [image, { "type": "text", "text": "seen" }] }] },
        ] })
    };
    let image = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": png(1) } });
    let anthropic = app.ok("/v1/messages", &result(image)).await;
    let words = app.ok("/v1/messages", &result(json!({ "type": "text", "text": "" }))).await;
    let n = |answer: &Value| {
        let n = |name: &str| answer["usage"][name].as_u64().unwrap();
        n("input_tokens") + n("cache_read_input_tokens")
    };
    assert!(n(&anthropic) >= n(&words) + 24, "{anthropic} {words}");
}

#[tokio::test]
async fn frames_of_a_video_are_pairs_with_their_times() {
    let app = app();
    let count =
        async |body: &Value| app.ok("/v1/chat/completions/input_tokens", body).await["input_tokens"].as_u64().unwrap();
    let film = |shades: &[u8], fps: f64| {
        let frames: Vec<String> = shades.iter().map(|&shade| uri(shade)).collect();
        asked(json!([{ "type": "video", "video": frames, "fps": fps }, { "type": "text", "text": "What happens?" }]))
    };
    let body = film(&[1, 50, 100], 2.0);
    let rendered = app.ok("/apply-template", &body).await["prompt"].as_str().unwrap().to_owned();
    let frame = "<|vision_start|><|video_pad|><|vision_end|>";
    // Two frames are one, at the mean of their times; the last stands for the one that is missing.
    assert!(rendered.contains(&format!("<0.2 seconds>{frame}<1.0 seconds>{frame}What happens?")), "{rendered}");
    // 32 x 48 pixels of tokens of 8 x 8 are 24 rows, as of a picture; the two marks of each are tokens too.
    let words = asked(json!("<0.2 seconds><1.0 seconds>What happens?"));
    let n_prompt = count(&body).await;
    assert!(n_prompt.abs_diff(count(&words).await + 2 * (24 + 2)) <= 2, "{n_prompt}");

    let joined: Vec<String> = [1, 50, 100].map(png).into();
    let url = format!("data:video/jpeg;base64,{}", joined.join(","));
    let vllm = asked(
        json!([{ "type": "video_url", "video_url": { "url": &url }, "fps": 2 }, { "type": "text", "text": "What happens?" }]),
    );
    let [first, again] = [&body, &vllm].map(async |body| app.ok("/v1/chat/completions", body).await);
    let (first, again) = (first.await, again.await);
    assert_eq!(first["choices"][0]["message"], again["choices"][0]["message"]);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached(&again) >= 2 * 26, "the same frames are the same tokens: {again}");
    // As a part of an item, and gone on from.
    let video = json!({ "type": "input_video", "video_url": &url, "fps": 2 });
    let content = json!([video, { "type": "input_text", "text": "What happens?" }]);
    let item = json!({ "input": [{ "role": "user", "content": content }], "max_output_tokens": 12, "reasoning": { "effort": "none" } });
    let response = app.ok("/v1/responses", &item).await;
    assert_eq!(response["usage"]["input_tokens"], first["usage"]["prompt_tokens"], "{response}");
    assert_eq!(response["output"][0]["content"][0]["text"], first["choices"][0]["message"]["content"]);
    let next = json!({ "previous_response_id": response["id"], "input": "And now?", "max_output_tokens": 4 });
    let next = app.ok("/v1/responses", &next).await;
    assert!(next["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 2 * 26, "{next}");
    // The order of two frames that are seen as one counts.
    let other = app.ok("/v1/chat/completions", &film(&[50, 1, 100], 2.0)).await;
    assert!(cached(&other) < 20, "{other}");
    // Speculation changes no text.
    let mut plain = film(&[50, 1, 100], 2.0);
    plain["speculative.n_max"] = json!(0);
    plain["cache_prompt"] = json!(false);
    let plain = app.ok("/v1/chat/completions", &plain).await;
    assert_eq!(plain["choices"], other["choices"]);

    // Pictures and videos keep their places.
    let mut both = film(&[1, 50], 1.0);
    both["messages"][0]["content"].as_array_mut().unwrap().insert(0, part(9));
    let rendered = app.ok("/apply-template", &both).await["prompt"].as_str().unwrap().to_owned();
    assert!(
        rendered.contains(&format!("<|vision_start|><|image_pad|><|vision_end|><0.5 seconds>{frame}")),
        "{rendered}"
    );
    app.ok("/v1/chat/completions", &both).await;

    let mut small = film(&[1], 1.0);
    let frames = small["messages"][0]["content"][0]["video"].as_array_mut().unwrap();
    let mut bytes = Cursor::new(Vec::new());
    image::RgbImage::new(16, 16).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    frames.push(format!("data:image/png;base64,{}", BASE64_STANDARD.encode(bytes.into_inner())).into());
    let said = asked(json!([part(1), { "type": "text", "text": "<|video_pad|>" }]));
    for (body, words) in [
        (small, "video 1 of 1, frame 2 of 2: it has 16 x 16 pixels, the first has 32 x 48"),
        (film(&[], 1.0), "0 frames"),
        (said, "<|video_pad|>"),
        (asked(json!([{ "type": "video_url", "video_url": { "url": "data:video/mp4;base64,AAAA" } }])), "send frames"),
    ] {
        let (status, answer) = app.post("/v1/chat/completions", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{words}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(words), "{words}: {answer}");
    }
}

#[tokio::test]
async fn what_cannot_be_seen_is_told_with_its_place() {
    let app = app();
    let url = |url: &str| {
        asked(json!([{ "type": "text", "text": "a" }, { "type": "image_url", "image_url": { "url": url } }]))
    };
    let cut = BASE64_STANDARD.decode(png(3)).unwrap();
    let cut = format!("data:image/png;base64,{}", BASE64_STANDARD.encode(&cut[..cut.len() / 2]));
    let long = image::RgbImage::new(4000, 8);
    let mut bytes = Cursor::new(Vec::new());
    long.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    let long = format!("data:image/png;base64,{}", BASE64_STANDARD.encode(bytes.into_inner()));
    for (body, words) in [
        (url("data:image/png;base64,AAAA"), "image 1 of 1"),
        (url(&cut), "image 1 of 1"),
        (url(&long), "image 1 of 1"),
        (url("file:///etc/passwd"), "messages[0].content[1]"),
        (url("https://example.org/a.png"), "--allow-image-urls"),
        (asked(json!([part(1), { "type": "text", "text": "<|image_pad|>" }])), "<|image_pad|>"),
        (asked(json!([{ "type": "image" }])), "0 images"),
        (asked(json!([{ "type": "input_audio" }])), "input_audio"),
        (asked(vec![part(1); 50].into()), "context"),
    ] {
        let (status, answer) = app.post("/v1/chat/completions", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{words}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(words), "{words}: {answer}");
    }
    let prompt = json!({ "prompt_string": "no place", "multimodal_data": [png(1)] });
    let (status, answer) = app.post("/completion", &json!({ "prompt": prompt })).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");

    let blind = App::new();
    let (status, answer) = blind.post("/v1/chat/completions", &question(1)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(answer["error"]["message"].as_str().unwrap().contains("--mmproj"), "{answer}");
    assert_eq!(blind.get("/props").await.1["modalities"]["vision"], false);
}
