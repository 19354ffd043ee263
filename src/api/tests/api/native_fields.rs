//! Fields of llama.cpp's own endpoints that its clients send.

use std::time::Duration;

use api::{ModelEntry, Phase, Served, Settings};
use axum::http::StatusCode;
use engine::{ContextShift, EngineConfig};
use serde_json::{Value, json};
use session::ModelOptions;

use crate::rig;
use crate::support::{App, question};
use crate::tiny::Spec;
use crate::tiny_served::served_tiny;

#[tokio::test]
async fn no_tokens_are_generated_where_none_are_asked_for_and_the_prompt_is_kept() {
    let app = App::new();
    let mut body = json!({ "prompt": "Once upon a time there was a clever fox", "n_predict": 0 });
    let first = app.ok("/completion", &body).await;
    assert_eq!(
        (&first["content"], &first["stop_type"], &first["tokens_predicted"]),
        (&json!(""), &json!("limit"), &json!(0))
    );
    assert!(
        first["timings"]["prompt_n"].as_u64() > Some(4) && first["timings"]["prompt_ms"].as_f64() > Some(0.0),
        "{first}"
    );
    let events = app.stream("/completion", &body).await;
    assert_eq!((events.len(), &events[0]["stop"]), (1, &json!(true)), "{events:?}");
    // Recurrent state cannot be cut back: what goes on from it takes it up.
    body["prompt"] = json!("Once upon a time there was a clever fox who");
    body["n_predict"] = json!(4);
    body["temperature"] = json!(0);
    let warm = app.ok("/completion", &body).await;
    assert!(warm["timings"]["cache_n"].as_u64() > Some(4), "{warm}");
    let cold = App::new().ok("/completion", &body).await;
    assert_eq!(warm["content"], cold["content"]);
    let chat = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 0 });
    let answer = app.ok("/v1/chat/completions", &chat).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn whole_numbers_with_a_fraction_of_nothing_are_integers() {
    let app = App::new();
    let body = json!({ "prompt": "Once upon", "n_predict": 4.0, "top_k": 40.0, "seed": 7.0, "n_probs": 2.0 });
    assert_eq!(app.ok("/completion", &body).await["timings"]["predicted_n"], 4);
    let mut chat = question("Hello");
    chat["max_tokens"] = json!(3.0);
    assert_eq!(app.ok("/v1/chat/completions", &chat).await["usage"]["completion_tokens"], 3);
    let (status, answer) = app.post("/completion", &json!({ "prompt": "Once", "n_predict": 4.5 })).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("n_predict")));
}

#[tokio::test]
async fn a_reply_has_the_fields_that_were_asked_for() {
    let app = App::new();
    let fields = json!(["content", "timings/prompt_n", "generation_settings/n_predict", "no/such", "tokens_predicted"]);
    let mut body = json!({ "prompt": "Once upon", "n_predict": 4, "response_fields": fields });
    let answer = app.ok("/completion", &body).await;
    let names: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(names.len(), 4, "{answer}");
    assert_eq!((&answer["generation_settings/n_predict"], &answer["tokens_predicted"]), (&json!(4), &json!(4)));
    assert!(answer["timings/prompt_n"].is_u64());
    body["response_fields"] = json!([]);
    assert!(app.ok("/completion", &body).await["generation_settings"].is_object());
    let gap = json!({ "input_prefix": "def add(a, b):\n", "input_suffix": "\n", "n_predict": 4, "response_fields": ["content"] });
    assert_eq!(app.ok("/infill", &gap).await.as_object().unwrap().len(), 1);
}

#[tokio::test]
async fn what_other_programs_send_is_taken_as_they_mean_it() {
    let app = App::new();
    let body = json!({
        "prompt": "Once upon", "n_predict": 4, "stop": "", "n_probs": 500, "samplers": ["top_k", "infill", "adaptive_p", "tfs_z"],
        "n_keep": -1, "n_discard": 0, "t_max_prompt_ms": 500, "t_max_predict_ms": 60_000, "n_indent": 0, "id_slot": -1,
        "cache_prompt": true, "add_bos_token": true, "image_data": [], "return_progress": true, "timings_per_token": false,
    });
    let answer = app.ok("/completion", &body).await;
    assert_eq!(answer["generation_settings"]["samplers"], json!(["top_k"]));
    assert_eq!(answer["completion_probabilities"][0]["top_logprobs"].as_array().unwrap().len(), 20);
    let mut other = body.clone();
    other["stop"] = json!(["", "\n\n\n\n"]);
    other["samplers"] = json!("kpmt");
    let answer = app.ok("/completion", &other).await;
    assert_eq!(answer["generation_settings"]["samplers"], json!(["top_k", "top_p", "min_p", "temperature"]));
    assert_eq!(answer["generation_settings"]["stop"], json!(["\n\n\n\n"]));
}

#[tokio::test]
async fn prompts_may_be_objects() {
    let app = App::new();
    let plain = app.ok("/completion", &json!({ "prompt": "Once upon", "n_predict": 4, "temperature": 0 })).await;
    let object = json!({ "prompt_string": "Once upon" });
    let one = app.ok("/completion", &json!({ "prompt": object, "n_predict": 4, "temperature": 0 })).await;
    assert_eq!(one["content"], plain["content"]);
    let both = json!({ "prompt": ["Once upon", object], "n_predict": 4, "temperature": 0 });
    assert_eq!(app.ok("/completion", &both).await[1]["content"], plain["content"]);
    let picture = json!({ "prompt_string": "see <__media__>", "multimodal_data": ["AAAA"] });
    let (status, answer) = app.post("/completion", &json!({ "prompt": picture, "n_predict": 4 })).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(answer["error"]["message"].as_str().unwrap().contains("multimodal_data"), "{answer}");
}

#[tokio::test]
async fn probabilities_after_sampling_are_those_that_the_sampler_draws_by() {
    let app = App::new();
    let body = json!({ "prompt": "Once upon a", "n_predict": 4, "n_probs": 5, "post_sampling_probs": true, "top_k": 3, "seed": 1,
        "temperature": 2.0, "top_p": 1.0, "min_p": 0.0 });
    let answer = app.ok("/completion", &body).await;
    let tokens = answer["completion_probabilities"].as_array().unwrap();
    assert_eq!(tokens.len(), 4);
    for token in tokens {
        let top = token["top_probs"].as_array().unwrap();
        let sum: f64 = top.iter().map(|one| one["prob"].as_f64().unwrap()).sum();
        assert!(top.len() == 3 && (sum - 1.0).abs() < 1e-5, "{token}");
        assert!(top.iter().any(|one| one["id"] == token["id"] && one["prob"] == token["prob"]), "{token}");
        assert!(token.get("logprob").is_none() && token.get("top_logprobs").is_none());
    }
    let mut forced = body.clone();
    forced["grammar"] = json!("root ::= \"yes\" | \"no\"");
    let first = app.ok("/completion", &forced).await["completion_probabilities"][0].clone();
    let allowed = |text: &Value| ["yes", "no"].iter().any(|word| word.starts_with(text.as_str().unwrap()));
    assert!(first["top_probs"].as_array().unwrap().iter().all(|one| allowed(&one["token"])), "{first}");
}

#[tokio::test]
async fn lines_end_a_reply_where_the_request_says_so() {
    let app = App::new();
    let body =
        json!({ "prompt": "x", "n_predict": 12, "n_indent": 4, "grammar": "root ::= \"a\\n    b\\nc\\n    d\" " });
    let answer = app.ok("/completion", &body).await;
    assert_eq!((&answer["content"], &answer["stop_type"]), (&json!("a\n    b\n"), &json!("limit")));
}

#[tokio::test]
async fn forbidden_ends_are_listed_as_biases() {
    let app = App::new();
    let mut body = json!({ "prompt": "Once", "n_predict": 1, "ignore_eos": true });
    let bias = app.ok("/completion", &body).await["generation_settings"]["logit_bias"].clone();
    assert!(
        bias.as_array().unwrap().iter().all(|one| one["bias"].is_null() && one["token"].is_u64())
            && bias[0].is_object(),
        "{bias}"
    );
    body["ignore_eos"] = json!(false);
    assert_eq!(app.ok("/completion", &body).await["generation_settings"]["logit_bias"], json!([]));
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_told_in_numbers() {
    let app = App::new();
    let body = json!({ "messages": [{ "role": "user", "content": "word ".repeat(1500) }] });
    let (status, answer) = app.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let error = &answer["error"];
    assert_eq!((&error["type"], &error["n_ctx"]), (&json!("exceed_context_size_error"), &json!(1024)));
    assert!(error["n_prompt_tokens"].as_u64() > Some(1500), "{error}");
    let (_, other) = app.post("/completion", &json!({ "prompt": 3 })).await;
    assert!(other["error"].get("n_ctx").is_none(), "{other}");
}

#[tokio::test]
async fn a_prompt_may_end_with_its_last_message() {
    let app = App::new();
    let mut body = question("Hello");
    let open = app.ok("/apply-template", &body).await["prompt"].as_str().unwrap().to_owned();
    body["add_generation_prompt"] = json!(false);
    let closed = app.ok("/apply-template", &body).await["prompt"].as_str().unwrap().to_owned();
    assert!(
        open.starts_with(&closed)
            && open.contains("<|im_start|>assistant")
            && !closed.contains("<|im_start|>assistant")
    );
    body["add_generation_prompt"] = json!(true);
    body["continue_final_message"] = json!(true);
    let (status, answer) = app.post("/v1/chat/completions", &body).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("add_generation_prompt")));
}

#[tokio::test]
async fn properties_and_slots_have_the_fields_of_llama_cpp() {
    let settings = Settings { slots: true, metrics: true, webui: true, ..Settings::default() };
    let app = App::over(engine::EngineConfig { n_sequences: 2, ..engine::EngineConfig::default() }, settings);
    let (_, props) = app.get("/props").await;
    for name in PROPS {
        assert!(props.get(name).is_some(), "{name} is missing: {props}");
    }
    let params = &props["default_generation_settings"]["params"];
    for name in PARAMS {
        assert!(params.get(name).is_some(), "{name} is missing: {params}");
    }
    assert_eq!((&props["is_sleeping"], &params["n_predict"]), (&json!(false), &json!(-1)));
    let (_, slots) = app.get("/slots").await;
    assert!(slots[0].get("params").is_none() && slots[0].get("next_token").is_none(), "nothing was asked yet: {slots}");
    let body = json!({ "prompt": "Once upon a time", "n_predict": 1000, "id_slot": 0, "ignore_eos": true, "stream": true, "speculative.n_max": 0 });
    let mut open = app.open("/completion", &body).await;
    assert!(open.more().await);
    let (_, busy) = app.get("/slots").await;
    for name in SLOT {
        assert!(busy[0].get(name).is_some(), "{name} is missing: {busy}");
    }
    for name in ["has_next_token", "has_new_line", "n_remain", "n_decoded"] {
        assert!(busy[0]["next_token"][0].get(name).is_some(), "{name} is missing: {busy}");
    }
    assert_eq!((&busy[0]["params"]["n_predict"], &busy[0]["is_processing"]), (&json!(1000), &json!(true)));
    drop(open);
    app.ok("/completion", &json!({ "prompt": "Once upon a time", "n_predict": 2, "id_slot": 1 })).await;
    let (_, idle) = app.get("/slots").await;
    assert_eq!(
        (&idle[1]["next_token"][0]["n_remain"], &idle[1]["next_token"][0]["n_decoded"]),
        (&json!(-1), &json!(0)),
        "{idle}"
    );
}

#[tokio::test]
async fn a_model_sleeps_when_nobody_asks_and_questions_do_not_wake_it() {
    let sleepy = ModelEntry { id: "sleepy".into(), idle: Some(Duration::ZERO), ..ModelEntry::default() };
    let (app, log) = rig::over(vec![sleepy], None, Duration::from_secs(60));
    assert_eq!(app.get("/props").await.0, StatusCode::SERVICE_UNAVAILABLE, "it was never there");
    app.state.registry().start();
    app.ok("/completion", &rig::brief("sleepy")).await;
    rig::until(&app, "sleepy", Phase::Unloaded).await;
    let (status, asleep) = app.get("/props").await;
    assert_eq!((status, &asleep["is_sleeping"]), (StatusCode::OK, &json!(true)));
    assert!(asleep["chat_template"].as_str().is_some_and(|text| text.contains("im_start")), "{asleep}");
    assert_eq!(app.get("/models").await.1["data"][0]["status"], "unloaded");
    assert_eq!(log.loads().len(), 1);
    app.ok("/tokenize", &json!({ "content": "Hello" })).await;
    assert_eq!(log.loads().len(), 2, "a request wakes it");
    rig::until(&app, "sleepy", Phase::Unloaded).await;
    app.state.registry().load("sleepy").expect("its name");
    rig::until(&app, "sleepy", Phase::Ready).await;
    app.state.registry().unload("sleepy").expect("its name");
    assert_eq!(app.get("/props").await.0, StatusCode::SERVICE_UNAVAILABLE, "who unloads it does not mean sleep");
}

/// What llama-server has in `/props`, but for the marks of pictures.
const PROPS: [&str; 19] = [
    "default_generation_settings",
    "total_slots",
    "model_alias",
    "model_ftype",
    "model_path",
    "modalities",
    "endpoint_slots",
    "endpoint_props",
    "endpoint_metrics",
    "ui",
    "ui_settings",
    "chat_template",
    "chat_template_caps",
    "bos_token",
    "eos_token",
    "build_info",
    "is_sleeping",
    "cors_proxy_enabled",
    "n_draft_max",
];

/// Those of its settings that mean something here, or are off.
const PARAMS: [&str; 36] = [
    "seed",
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "typical_p",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "max_tokens",
    "n_predict",
    "n_keep",
    "n_discard",
    "ignore_eos",
    "stream",
    "n_probs",
    "min_keep",
    "samplers",
    "timings_per_token",
    "post_sampling_probs",
    "lora",
];

const SLOT: [&str; 10] = [
    "id",
    "n_ctx",
    "speculative",
    "is_processing",
    "id_task",
    "n_prompt_tokens",
    "n_prompt_tokens_processed",
    "n_prompt_tokens_cache",
    "params",
    "next_token",
];

#[tokio::test]
async fn a_reply_that_went_on_without_its_middle_says_so() {
    let tiny = served_tiny(&Spec::of("qwen3").document(), EngineConfig::default(), &ModelOptions::default());
    let shift = ContextShift { keep: Some(4), discard: None };
    let tiny = Served { model: tiny.model.with_context_shift(Some(shift)), ..tiny };
    let app = App::serving(tiny, Settings::default());
    for (n, truncated) in [(100, false), (1100, true)] {
        let body = json!({ "prompt": "the", "n_predict": n, "ignore_eos": true, "temperature": 0 });
        let reply = app.ok("/completion", &body).await;
        assert_eq!((&reply["tokens_predicted"], &reply["truncated"]), (&json!(n), &json!(truncated)));
    }
}
