//! Sampling where nobody says: by the file, over it what the program was told, over that the request.

use api::Settings;
use engine::EngineConfig;
use serde_json::json;
use session::ModelOptions;

use crate::support::App;
use crate::tiny::{Meta, Spec};
use crate::tiny_served::served_tiny;

#[tokio::test]
async fn a_request_goes_before_the_programs_options_and_these_before_the_file() {
    let mut document = Spec::of("qwen3").document();
    for (key, value) in [
        ("temp", Meta::F32(0.25)),
        ("top_k", Meta::U32(7)),
        ("top_p", Meta::Str("0.5".into())),
        ("penalty_last_n", Meta::F32(33.0)),
        ("penalty_repeat", Meta::F32(1.5)),
        ("sequence", Meta::Str("top_k;temperature".into())),
        // Out of range: the built-in value holds.
        ("min_p", Meta::F32(7.0)),
    ] {
        document.set(&format!("general.sampling.{key}"), value);
    }
    let sampling = serde_json::from_value(json!({ "top_k": 5, "repeat_penalty": 1.25 })).expect("fields");
    let options = ModelOptions { sampling, ..ModelOptions::default() };
    let app = App::serving(served_tiny(&document, EngineConfig::default(), &options), Settings::default());
    let (_, props) = app.get("/props").await;
    let shown = &props["default_generation_settings"]["params"];
    let body = json!({ "prompt": "the", "n_predict": 1, "temperature": 0.75, "repetition_penalty": 1, "min_p": null });
    let used = app.ok("/completion", &body).await["generation_settings"].clone();
    for (field, default, of_request) in [
        ("temperature", json!(0.25), json!(0.75)),
        ("top_k", json!(5), json!(5)),
        ("top_p", json!(0.5), json!(0.5)),
        ("repeat_last_n", json!(33), json!(33)),
        ("repeat_penalty", json!(1.25), json!(1.0)),
        ("min_p", json!(0.05f32), json!(0.05f32)),
        ("samplers", json!(["top_k", "temperature"]), json!(["top_k", "temperature"])),
    ] {
        assert_eq!((&shown[field], &used[field]), (&default, &of_request), "{field}");
    }
}
