//! `POST /models`, `DELETE /models` and `GET /models/sse`: llama.cpp's way to models of a hub.

use axum::extract::{Path, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::RecvError;
use utoipa::ToSchema;

use super::models::ModelName;
use crate::blocking::blocking;
use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::query::Query;
use crate::registry::{ModelEvent, Phase};
use crate::state::{AppState, Course, reached};
use crate::stream::{self, Events, Framing};

/// A download has begun.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Started {
    success: bool,
    /// `downloading`; `/models` and `/models/sse` tell how far it is.
    status: &'static str,
}

/// Something was removed, or is about to stop.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedBody {
    success: bool,
    /// The name that was given.
    id: String,
    object: &'static str,
    deleted: bool,
}

/// Which model is to be removed.
#[derive(Debug, Deserialize)]
pub(crate) struct ModelQuery {
    model: Option<String>,
}

/// `POST /models`: begins to download a model.
pub(crate) async fn create(State(state): State<AppState>, input: Input) -> Result<Output<Started>, ApiError> {
    let ModelName { model } = input.read().await?;
    state.registry().download(&model)?;
    Ok(Output(Started { success: true, status: Phase::Downloading.word() }))
}

/// `DELETE /models?model=NAME`.
pub(crate) async fn remove(
    State(state): State<AppState>,
    Query(ModelQuery { model }): Query<ModelQuery>,
) -> Result<Output<RemovedBody>, ApiError> {
    let unnamed = || ApiError::field("model", "the query is to name a model: DELETE /models?model=NAME");
    removed(state, model.ok_or_else(unnamed)?).await
}

/// `DELETE /models/{id}` and `/v1/models/{id}`.
pub(crate) async fn remove_one(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Output<RemovedBody>, ApiError> {
    removed(state, id).await
}

async fn removed(state: AppState, id: String) -> Result<Output<RemovedBody>, ApiError> {
    let name = id.clone();
    blocking(move || state.registry().remove(&name)).await?;
    Ok(Output(RemovedBody { success: true, id, object: "model", deleted: true }))
}

/// `GET /models/sse`: what happens to the models, until the reader leaves or the server ends.
pub(crate) async fn events(State(state): State<AppState>) -> Response {
    let (registry, mut course) = (state.registry().clone(), state.watch_course());
    let mut news = registry.events();
    stream::response(&state, Framing::Events, ALIVE, |sse| async move {
        loop {
            let mut events = Events::new(Framing::Events);
            tokio::select! {
                event = news.recv() => match event {
                    Ok(event) => events.data(&event),
                    Err(RecvError::Lagged(_)) => events.data(&ModelEvent::reload()),
                    Err(RecvError::Closed) => return Ok(()),
                },
                () = reached(&mut course, Course::Draining) => return Ok(()),
                // Some phases end by themselves: looking at them tells of it.
                () = tokio::time::sleep(LOOK_EVERY) => drop(registry.list()),
            }
            sse.send(&mut events).await?;
        }
    })
}

const ALIVE: &[u8] = b": keep-alive\n\n";
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
