//! Whether the server can answer.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::json::Output;
use crate::registry::Phase;
use crate::state::{AppState, Course};

/// The body of a good response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`.
    status: &'static str,
}

/// `GET /health`: 200 when a request would be taken, 503 while a model loads at the start, after the engine of one
/// has ended by itself, and when the server ends; 500 when a model did not load.
pub(crate) async fn health(State(state): State<AppState>) -> Response {
    if state.course() != Course::Open {
        return ApiError::unavailable("the server is shutting down", None).into_probe_response();
    }
    for (entry, _, phase) in state.registry().list() {
        match phase {
            Phase::Loading if entry.at_start => {
                return state.registry().still_loading(&entry.id).into_probe_response();
            }
            // What a client asked for and did not get is no illness of the server.
            Phase::Failed if !entry.from_hub => {
                return ApiError::server(format!("the model {} did not load", entry.id)).into_probe_response();
            }
            Phase::Ended => {
                let message =
                    format!("the engine of the model {} has ended: the next request loads it again", entry.id);
                return ApiError::unavailable(message, Some(1)).into_probe_response();
            }
            Phase::Failed | Phase::Loading | Phase::Ready | Phase::Unloading | Phase::Unloaded | Phase::Downloading => {
            }
        }
    }
    Output(Health { status: "ok" }).into_response()
}
