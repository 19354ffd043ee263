//! `/props`: what the server runs, and with which settings.

use axum::extract::State;
use engine::RequestOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::json::Output;
use crate::prompt::MEDIA_MARKER;
use crate::query::Query;
use crate::state::AppState;

/// Which model is asked about.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Which {
    pub(super) model: Option<String>,
}

/// What is known of the server and its model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Props {
    #[schema(value_type = Object)]
    default_generation_settings: Value,
    total_slots: usize,
    model_alias: String,
    /// The quantisation.
    model_ftype: String,
    model_path: String,
    chat_template: String,
    /// The template for conversations with tools, where the file has another one for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_tool_use: Option<String>,
    /// What the template makes use of.
    #[schema(value_type = Object)]
    chat_template_caps: Value,
    #[schema(value_type = Object)]
    modalities: Value,
    /// Stands for an image in a `prompt_string`.
    media_marker: &'static str,
    bos_token: String,
    eos_token: String,
    build_info: String,
    /// The longest draft; 0 without speculation.
    n_draft_max: usize,
    /// This server embeds texts.
    embeddings: bool,
    /// The model is out of memory since nobody asked; the next request loads it again.
    is_sleeping: bool,
    endpoint_slots: bool,
    /// Settings cannot be changed while the server runs.
    endpoint_props: bool,
    endpoint_metrics: bool,
    /// The web pages are served.
    ui: bool,
    #[schema(value_type = Object)]
    ui_settings: Value,
    cors_proxy_enabled: bool,
}

/// `GET /props`. Does not wake a model that sleeps.
pub(crate) async fn props(
    State(state): State<AppState>,
    Query(which): Query<Which>,
) -> Result<Output<Props>, ApiError> {
    let (served, about) = state.registry().about(which.model.as_deref())?;
    // Adapters may be set anew while the model is there.
    let options = served.as_ref().map_or_else(|| about.options.clone(), |served| served.request_options());
    let settings = state.settings();
    Ok(Output(Props {
        default_generation_settings: json!({
            "id": 0,
            "n_ctx": about.n_ctx,
            "speculative": about.n_draft_max > 0,
            "is_processing": false,
            "params": generation_settings(&options),
        }),
        total_slots: about.n_sequences,
        model_alias: about.id.clone(),
        model_ftype: about.quantization.clone(),
        model_path: about.file.clone(),
        chat_template_caps: template_caps(&about.template),
        chat_template: about.template.clone(),
        chat_template_tool_use: about.tool_use.clone(),
        modalities: json!({ "vision": about.sees, "audio": false, "video": false }),
        media_marker: MEDIA_MARKER,
        bos_token: about.bos_token.clone(),
        eos_token: about.eos_token.clone(),
        build_info: settings.build.clone(),
        n_draft_max: about.n_draft_max,
        embeddings: settings.embeddings,
        is_sleeping: served.is_none(),
        endpoint_slots: settings.slots,
        endpoint_props: false,
        endpoint_metrics: settings.metrics,
        ui: settings.webui,
        ui_settings: json!({}),
        cors_proxy_enabled: false,
    }))
}

/// What a template reads of a conversation, by llama.cpp's names, as far as its text shows.
fn template_caps(template: &str) -> Value {
    let has = |word: &str| template.contains(word);
    json!({
        "supports_tools": has("tools"),
        "supports_tool_calls": has("tool_calls"),
        "supports_system_role": has("system"),
        "supports_preserve_reasoning": has("reasoning_content"),
    })
}

/// The settings of a request by llama.cpp's names.
pub(crate) fn generation_settings(options: &RequestOptions) -> Value {
    let mut settings: Map<String, Value> =
        session::options::request_fields(&options.sampling).map(|(name, value)| (name.to_owned(), value)).collect();
    // JSON has no infinity; llama.cpp writes null.
    let bias = options.sampling.logit_bias.iter();
    let amount = |b: f32| if b.is_finite() { json!(b) } else { Value::Null };
    let bias: Vec<Value> = bias.map(|&(id, b)| json!({ "token": id.0, "bias": amount(b) })).collect();
    let max_tokens = options.max_tokens.map_or(json!(-1), |n| json!(n));
    let others = [
        ("stop", json!(options.stops)),
        ("max_tokens", max_tokens.clone()),
        ("n_predict", max_tokens),
        ("n_indent", json!(options.lines.min_indent)),
        ("t_max_predict_ms", json!(options.lines.max_time.map_or(-1, |time| time.as_millis() as i64))),
        ("post_sampling_probs", json!(options.sampler_logprobs)),
        ("stream", json!(false)),
        ("timings_per_token", json!(false)),
        // What llama.cpp has and this server has not, at its value for off.
        ("n_keep", json!(0)),
        ("n_discard", json!(0)),
        ("adaptive_target", json!(-1.0)),
        ("adaptive_decay", json!(0.9)),
        ("backend_sampling", json!(false)),
        ("ignore_eos", json!(options.ignore_eos)),
        ("n_probs", json!(options.logprobs.unwrap_or(0))),
        ("logit_bias", json!(bias)),
        ("speculative.n_max", json!(options.max_draft)),
        ("speculative.n_min", json!(options.min_draft)),
        ("speculative.p_min", json!(options.draft_p_min)),
        ("lora", options.adapters.scales().map(|(id, scale)| json!({ "id": id, "scale": scale })).collect()),
    ];
    settings.extend(others.map(|(name, value)| (name.to_owned(), value)));
    Value::Object(settings)
}
