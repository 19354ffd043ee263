//! Kept responses, fetched and removed: `GET` and `DELETE /v1/responses/{id}`, and `/input_items`.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use hyper::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::store::Item;
use crate::error::{ApiError, shortened};
use crate::json::Output;
use crate::params::range;
use crate::query::Query;
use crate::state::AppState;
use crate::work::Caller;

/// `GET /v1/responses/{id}`.
pub(crate) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let kept = state.responses().find(&id, caller.scope).ok_or_else(|| unknown(&id))?;
    Ok(([(CONTENT_TYPE, "application/json")], kept.body().to_owned()).into_response())
}

/// A response that is kept no longer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeletedResponse {
    id: String,
    object: &'static str,
    deleted: bool,
}

/// `DELETE /v1/responses/{id}`.
pub(crate) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Output<DeletedResponse>, ApiError> {
    match state.responses().remove(&id, caller.scope) {
        true => Ok(Output(DeletedResponse { id, object: "response", deleted: true })),
        false => Err(unknown(&id)),
    }
}

/// Which of the items.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Which {
    after: Option<String>,
    limit: Option<i64>,
    order: Option<String>,
}

/// Items of a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemList {
    object: &'static str,
    #[schema(value_type = Vec<Object>)]
    data: Vec<Value>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// `GET /v1/responses/{id}/input_items`: the conversation that led to a response, the latest first unless `order` is `asc`.
pub(crate) async fn input_items(
    State(state): State<AppState>,
    caller: Caller,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Result<Output<ItemList>, ApiError> {
    let limit = range("limit", which.limit.unwrap_or(20), 1, 100)? as usize;
    let kept = state.responses().find(&id, caller.scope).ok_or_else(|| unknown(&id))?;
    let mut items: Vec<&Item> = kept.input().iter().map(|item| &**item).collect();
    match which.order.as_deref() {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::field("order", "order: asc or desc expected")),
    }
    if let Some(after) = &which.after {
        let at = items.iter().position(|item| item.id == *after);
        let at = at.ok_or_else(|| ApiError::field("after", format!("after: no item `{}` here", shortened(after))))?;
        items.drain(..=at);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let name = |item: Option<&&Item>| item.map(|item| item.id.clone());
    Ok(Output(ItemList {
        object: "list",
        first_id: name(items.first()),
        last_id: name(items.last()),
        has_more,
        // They were written as JSON.
        data: items.iter().filter_map(|item| item.value()).collect(),
    }))
}

fn unknown(id: &str) -> ApiError {
    let id = shortened(id);
    ApiError::not_found(format!(
        "no response `{id}` of yours is kept: it was not stored, or had to leave, or never was"
    ))
}
