//! `/props`: what the server runs, and with which settings.

use axum::extract::{Query, State};
use engine::RequestOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::json::Output;
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
    model_path: String,
    chat_template: String,
    /// The template for conversations with tools, where the file has another one for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_tool_use: Option<String>,
    #[schema(value_type = Object)]
    modalities: Value,
    bos_token: String,
    eos_token: String,
    build_info: String,
    /// The longest draft; 0 without speculation.
    n_draft_max: usize,
    /// This server embeds texts.
    embeddings: bool,
}

/// `GET /props`.
pub(crate) async fn props(
    State(state): State<AppState>,
    Query(which): Query<Which>,
) -> Result<Output<Props>, ApiError> {
    let served = state.registry().ready(which.model.as_deref())?;
    let (bos_token, eos_token) = served.boundary_tokens();
    Ok(Output(Props {
        default_generation_settings: json!({
            "id": 0,
            "n_ctx": served.engine().limits().n_ctx,
            "speculative": served.drafts().max > 0,
            "is_processing": false,
            "params": generation_settings(&served.request_options()),
        }),
        total_slots: served.n_sequences(),
        model_alias: served.id.clone(),
        model_path: served.file(),
        chat_template: served.template_source().to_owned(),
        chat_template_tool_use: served.tool_use_source().map(str::to_owned),
        modalities: json!({ "vision": false, "audio": false }),
        bos_token,
        eos_token,
        build_info: state.settings().build.clone(),
        n_draft_max: served.drafts().max,
        embeddings: state.settings().embeddings,
    }))
}

/// The settings of a request by llama.cpp's names.
pub(crate) fn generation_settings(options: &RequestOptions) -> Value {
    let mut settings: Map<String, Value> =
        session::options::request_fields(&options.sampling).map(|(name, value)| (name.to_owned(), value)).collect();
    // JSON has no infinity.
    let bias = options.sampling.logit_bias.iter();
    let bias: Vec<Value> = bias.map(|&(id, b)| json!({ "token": id.0, "bias": b.max(f32::MIN) })).collect();
    let others = [
        ("stop", json!(options.stops)),
        ("max_tokens", json!(options.max_tokens)),
        ("n_predict", json!(options.max_tokens)),
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
