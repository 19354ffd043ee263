//! `/api/embed` and the older `/api/embeddings`: vectors in Ollama's form.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::names;
use super::reply::Clock;
use crate::blocking::blocking;
use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::openai::embeddings::{Plan, check_on};
use crate::prompt::Prompts;
use crate::state::AppState;
use crate::vectors::{self, Embed};
use crate::work::Caller;

/// The fields of `/api/embed`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct OllamaEmbedRequest {
    /// The model's name.
    model: Option<String>,
    /// A text, or a list of them.
    #[schema(value_type = Value)]
    input: Prompts,
    /// Cut inputs that are longer than the context; true by default, otherwise they are refused.
    truncate: Option<bool>,
    /// Give the first so many numbers, normalised again.
    dimensions: Option<i64>,
}

/// Vectors of length 1.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaEmbedReply {
    model: String,
    embeddings: Vec<Vec<f32>>,
    /// Nanoseconds.
    total_duration: u64,
    /// Nanoseconds.
    load_duration: u64,
    /// Tokens of all inputs.
    prompt_eval_count: usize,
}

/// `POST /api/embed`.
pub(crate) async fn embed(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Output<OllamaEmbedReply>, ApiError> {
    check_on(&state)?;
    let mut clock = Clock::start();
    let body: OllamaEmbedRequest = input.read().await?;
    let name = names::asked(state.registry(), body.model.as_deref());
    let served = state.registry().get(name.as_deref()).await?;
    clock.loaded();
    let plan = Plan::of_texts(&served, body.dimensions, None)?;
    let truncate = body.truncate.unwrap_or(true);
    let embed = Embed { inputs: body.input.into_list(), pooling: plan.pooling, truncate, field: "input" };
    drop(input);
    let vectors = vectors::embed(&state, &served, caller, embed).await?;
    let model = body.model.unwrap_or_else(|| served.id.clone());
    blocking(move || {
        let prompt_eval_count = vectors.iter().map(|vector| vector.n_tokens).sum();
        let embeddings = vectors.iter().map(|vector| plan.numbers(&vector.numbers)).collect();
        let (total_duration, load_duration) = clock.durations();
        Ok(Output(OllamaEmbedReply { model, embeddings, total_duration, load_duration, prompt_eval_count }))
    })
    .await
}

/// The fields of `/api/embeddings`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct OllamaEmbeddingsRequest {
    /// The model's name.
    model: Option<String>,
    /// A text.
    prompt: String,
}

/// One vector, as the model made it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaEmbeddingsReply {
    embedding: Vec<f32>,
}

/// `POST /api/embeddings`.
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Output<OllamaEmbeddingsReply>, ApiError> {
    check_on(&state)?;
    let body: OllamaEmbeddingsRequest = input.read().await?;
    let name = names::asked(state.registry(), body.model.as_deref());
    let served = state.registry().get(name.as_deref()).await?;
    let plan = Plan::of_texts(&served, None, Some(NOT_NORMALISED))?;
    let inputs = Prompts::from(body.prompt).into_list();
    let embed = Embed { inputs, pooling: plan.pooling, truncate: true, field: "prompt" };
    drop(input);
    let vectors = vectors::embed(&state, &served, caller, embed).await?;
    let embedding = vectors.first().map(|vector| plan.numbers(&vector.numbers)).unwrap_or_default();
    Ok(Output(OllamaEmbeddingsReply { embedding }))
}

/// Of `embd_normalize`.
const NOT_NORMALISED: i64 = -1;
