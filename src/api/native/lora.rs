//! `/lora-adapters`: which LoRA adapters a model has, and the factors that hold where a request does not say.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::props::Which;
use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::params::LoraScale;
use crate::query::Query;
use crate::state::AppState;

/// One adapter.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoraAdapter {
    /// Its number.
    id: usize,
    /// Its file.
    path: String,
    /// The factor where a request does not say; 0 leaves it out.
    scale: f32,
    task_name: String,
    prompt_prefix: String,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoraSet {
    success: bool,
}

/// `GET /lora-adapters`.
pub(crate) async fn list(
    State(state): State<AppState>,
    Query(which): Query<Which>,
) -> Result<Output<Vec<LoraAdapter>>, ApiError> {
    let served = state.registry().ready(which.model.as_deref())?;
    let set = served.adapters();
    let adapters = served.model().adapters().iter().enumerate().map(|(id, adapter)| LoraAdapter {
        id,
        path: adapter.path().display().to_string(),
        scale: set.scale(id),
        task_name: adapter.task_name().to_owned(),
        prompt_prefix: adapter.prompt_prefix().to_owned(),
    });
    Ok(Output(adapters.collect()))
}

/// `POST /lora-adapters`: sets the factors of all adapters; those that are not named get 0.
pub(crate) async fn set(
    State(state): State<AppState>,
    Query(which): Query<Which>,
    input: Input,
) -> Result<Output<LoraSet>, ApiError> {
    let scales: Vec<LoraScale> = input.read_list().await?;
    let served = state.registry().get(which.model.as_deref()).await?;
    served.set_adapters(LoraScale::set(&scales, &served, "lora-adapters")?);
    Ok(Output(LoraSet { success: true }))
}
