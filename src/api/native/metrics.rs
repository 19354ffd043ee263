//! `/metrics`: all metrics as OpenMetrics text.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::CONTENT_TYPE;

use crate::blocking::blocking;
use crate::error::ApiError;
use crate::state::AppState;

/// `GET /metrics`.
pub(crate) async fn metrics(State(state): State<AppState>) -> Result<Response, ApiError> {
    if !state.settings().metrics {
        return Err(ApiError::not_supported("this server was started without metrics: start it with --metrics"));
    }
    let text = blocking(move || Ok(state.metrics().text(state.registry()))).await?;
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, media)], text).into_response())
}
