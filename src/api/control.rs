//! Steering a response under way: `/v1/chat/completions/control` and `/v1/responses/{id}/cancel`.

use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::{OptionalFromRequest, Path, Request, State};
use hyper::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::blocking::blocking;
use crate::error::{ApiError, shortened};
use crate::json::{Input, Output};
use crate::state::AppState;
use crate::work::Caller;

/// What is to be done with which response.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ControlRequest {
    /// The response's id, as its parts give it: of a chat, a completion, a response or a message.
    id: String,
    /// `cancel` or `reasoning_end`.
    action: String,
}

/// Whether it was done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ControlResponse {
    success: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'static str>,
}

/// `POST /v1/chat/completions/control`.
pub(crate) async fn control(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Output<ControlResponse>, ApiError> {
    let body: ControlRequest = input.read().await?;
    let found = state.in_flight().find(&body.id, caller.key);
    let message = match (body.action.as_str(), found) {
        ("cancel", Some(response)) => {
            response.cancel();
            None
        }
        ("cancel", None) => return Err(unknown(&body.id)),
        // As llama.cpp has it: a response may end while its client asks.
        ("reasoning_end", None) => Some("no response with this id is under way"),
        ("reasoning_end", Some(response)) => {
            let was_thinking = blocking(move || Ok(response.end_thinking())).await?;
            (!was_thinking).then_some("this response is not thinking")
        }
        _ => return Err(ApiError::field("action", "action: cancel or reasoning_end expected")),
    };
    Ok(Output(ControlResponse { success: message.is_none(), message }))
}

/// `POST /v1/responses/{id}/cancel`: gives the response as it was cancelled. It can do without a body, but not with one that a
/// form of a web page may send.
pub(crate) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    Path(id): Path<String>,
    request: Request,
) -> Result<Output<Value>, ApiError> {
    if request.headers().contains_key(CONTENT_TYPE) || request.body().size_hint().exact() != Some(0) {
        <Input as OptionalFromRequest<AppState>>::from_request(request, &state).await?;
    }
    let found = state.in_flight().find(&id, caller.key).filter(|_| id.starts_with("resp_"));
    let mut ended = found.ok_or_else(|| unknown(&id))?.cancel();
    let body = tokio::time::timeout(PATIENCE, ended.wait_for(Option::is_some)).await;
    match body {
        Ok(Ok(body)) => Ok(Output(body.clone().unwrap_or_default())),
        // It broke off meanwhile: its client left, or the server made an end.
        Ok(Err(_)) => Err(unknown(&id)),
        Err(_) => {
            let message = "the response is cancelled, and its client has not read what there was before";
            Err(ApiError::unavailable(message, None))
        }
    }
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(format!("no response `{}` of yours is under way: it has ended, or never was", shortened(id)))
}

/// The reader of a cancelled response may be slow: so long is waited for what it has become.
const PATIENCE: Duration = Duration::from_secs(10);
