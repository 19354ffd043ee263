//! `/v1/models` and `/v1/models/{id}`.

use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::registry::{ModelEntry, Phase, Served};
use crate::state::AppState;

/// All models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelBody>,
}

/// One model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelBody {
    /// Its name.
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Other names for it.
    aliases: Vec<String>,
    /// What to choose it by.
    tags: Vec<String>,
    /// `downloading`, `unloaded`, `loading`, `loaded`, `unloading` (its last replies run) or `failed`.
    status: &'static str,
    /// Of a download, and of a load that locks files in memory or copies them to devices: for each file the bytes that are
    /// done, and all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<serde_json::Value>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What the file says, once it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<Meta>,
}

/// What a model file says of itself.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Meta {
    n_vocab: usize,
    n_ctx: usize,
    n_ctx_train: usize,
    n_embd: usize,
    n_params: u64,
    size: u64,
    architecture: String,
    quantization: String,
    /// There is an MTP layer.
    nextn: bool,
}

impl Meta {
    fn of(served: &Served) -> Self {
        let about = served.model().describe();
        let hparams = served.model().hparams();
        Self {
            n_vocab: hparams.n_vocab,
            n_ctx: served.engine().limits().n_ctx,
            n_ctx_train: hparams.n_ctx_train,
            n_embd: hparams.n_embd,
            n_params: about.n_params,
            size: about.n_bytes,
            architecture: about.architecture.clone(),
            quantization: about.quantization.clone(),
            nextn: about.nextn,
        }
    }
}

fn body(state: &AppState, (entry, created, phase): (ModelEntry, u64, Phase)) -> ModelBody {
    let loaded = state.registry().loaded();
    let meta = loaded.iter().find(|served| served.id == entry.id).map(|served| Meta::of(served));
    let detail = state.registry().detail(&entry.id);
    ModelBody {
        id: entry.id,
        object: "model",
        created,
        owned_by: "nextn",
        aliases: entry.aliases,
        tags: entry.tags,
        status: phase.word(),
        progress: detail.progress,
        error: detail.error,
        meta,
    }
}

/// Which model is to be loaded, unloaded or downloaded.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ModelName {
    pub(super) model: String,
}

/// Whether something was done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Done {
    success: bool,
}

/// `POST /models/load`: begins to load a model; `/v1/models` says when it is there.
pub(crate) async fn load(State(state): State<AppState>, input: Input) -> Result<Output<Done>, ApiError> {
    let ModelName { model } = known(&state, input).await?;
    Ok(Output(Done { success: state.registry().load(&model)? }))
}

/// `POST /models/unload`: replies that run on it end first.
pub(crate) async fn unload(State(state): State<AppState>, input: Input) -> Result<Output<Done>, ApiError> {
    let ModelName { model } = known(&state, input).await?;
    Ok(Output(Done { success: state.registry().unload(&model)? }))
}

async fn known(state: &AppState, input: Input) -> Result<ModelName, ApiError> {
    let name: ModelName = input.read().await?;
    if state.registry().knows(&name.model) {
        return Ok(name);
    }
    let known: Vec<String> = state.registry().list().into_iter().map(|(entry, ..)| entry.id).collect();
    Err(ApiError::no_model(&name.model, &known))
}

/// `GET /v1/models`.
pub(crate) async fn list(State(state): State<AppState>) -> Output<ModelList> {
    let data = state.registry().list().into_iter().map(|m| body(&state, m)).collect();
    Output(ModelList { object: "list", data })
}

/// `GET /v1/models/{id}`.
pub(crate) async fn one(State(state): State<AppState>, Path(id): Path<String>) -> Result<Output<ModelBody>, ApiError> {
    let all = state.registry().list();
    let known: Vec<String> = all.iter().map(|(entry, ..)| entry.id.clone()).collect();
    let found = all.into_iter().find(|(entry, ..)| entry.id == id || entry.aliases.contains(&id));
    Ok(Output(body(&state, found.ok_or_else(|| ApiError::no_model(&id, &known))?)))
}
