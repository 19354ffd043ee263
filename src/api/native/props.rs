//! `/props`: what the server runs, and with which settings.

use axum::extract::{Query, State};
use engine::RequestOptions;
use engine::sample::Mirostat;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use text::TokenId;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::json::Output;
use crate::state::AppState;

/// Which model is asked about.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Which {
    model: Option<String>,
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
    let vocab = served.model.vocab();
    let text = |id: Option<TokenId>| {
        id.and_then(|id| vocab.bytes(id)).map(|b| String::from_utf8_lossy(b).into_owned()).unwrap_or_default()
    };
    let (sampling, min_draft, draft_p_min) = (served.sampling.clone(), served.min_draft, served.draft_p_min);
    let options = RequestOptions { sampling, min_draft, draft_p_min, ..RequestOptions::default() };
    Ok(Output(Props {
        default_generation_settings: json!({
            "id": 0,
            "n_ctx": served.engine.limits().n_ctx,
            "speculative": served.max_draft > 0,
            "is_processing": false,
            "params": generation_settings(&options),
        }),
        total_slots: served.n_sequences,
        model_alias: served.id.clone(),
        model_path: served.path.clone(),
        chat_template: served.template_source.clone(),
        modalities: json!({ "vision": false, "audio": false }),
        bos_token: text(vocab.bos()),
        eos_token: text(vocab.eos()),
        build_info: state.settings().build.clone(),
        n_draft_max: served.max_draft,
        embeddings: state.settings().embeddings,
    }))
}

/// The settings of a request by llama.cpp's names.
pub(crate) fn generation_settings(options: &RequestOptions) -> Value {
    let s = &options.sampling;
    let samplers: Vec<&str> = s.stages.iter().map(|stage| stage.name()).collect();
    // JSON has no infinity.
    let bias: Vec<Value> =
        s.logit_bias.iter().map(|&(id, b)| json!({ "token": id.0, "bias": b.max(f32::MIN) })).collect();
    json!({
        "seed": s.seed,
        "temperature": s.temperature,
        "dynatemp_range": s.dynatemp_range,
        "dynatemp_exponent": s.dynatemp_exponent,
        "top_k": s.top_k,
        "top_p": s.top_p,
        "min_p": s.min_p,
        "top_n_sigma": s.top_n_sigma,
        "xtc_probability": s.xtc_probability,
        "xtc_threshold": s.xtc_threshold,
        "typical_p": s.typical_p,
        "repeat_last_n": s.penalty_last_n,
        "repeat_penalty": s.repeat_penalty,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "dry_multiplier": s.dry_multiplier,
        "dry_base": s.dry_base,
        "dry_allowed_length": s.dry_allowed_length,
        "dry_penalty_last_n": s.dry_penalty_last_n,
        "dry_sequence_breakers": s.dry_sequence_breakers,
        "mirostat": match s.mirostat { Mirostat::Off => 0, Mirostat::V1 => 1, Mirostat::V2 => 2 },
        "mirostat_tau": s.mirostat_tau,
        "mirostat_eta": s.mirostat_eta,
        "stop": options.stops,
        "max_tokens": options.max_tokens,
        "n_predict": options.max_tokens,
        "ignore_eos": options.ignore_eos,
        "n_probs": options.logprobs.unwrap_or(0),
        "min_keep": s.min_keep,
        "samplers": samplers,
        "logit_bias": bias,
        "speculative.n_max": options.max_draft,
        "speculative.n_min": options.min_draft,
        "speculative.p_min": options.draft_p_min,
    })
}
