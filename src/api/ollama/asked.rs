//! What every request of a reply asks of its model: which one, to load it, to unload it.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};

use super::reply::{Shape, silent};
use super::types::OllamaFields;
use super::{names, options};
use crate::error::ApiError;
use crate::json::Output;
use crate::params::range;
use crate::registry::Served;
use crate::state::AppState;

/// What a request asks of the model as a whole.
pub(super) struct Asked {
    /// The name for the registry.
    pub(super) model: Option<String>,
    /// It is to be unloaded after the reply.
    pub(super) unloads: bool,
}

impl Asked {
    pub(super) fn of(state: &AppState, fields: &OllamaFields) -> Result<Self, ApiError> {
        let unloads = options::unloads(fields.keep_alive.as_ref())?;
        Ok(Self { model: names::asked(state.registry(), fields.model.as_deref()), unloads })
    }
}

/// The number of log probabilities that a request asks for.
///
/// # Errors
/// 400 for a number out of range.
pub(super) fn logprobs(fields: &OllamaFields) -> Result<Option<usize>, ApiError> {
    let n = range("top_logprobs", fields.top_logprobs.unwrap_or(0), 0, engine::MAX_LOGPROBS as i64)?;
    Ok(fields.logprobs.unwrap_or(false).then_some(n as usize))
}

/// The name that a reply repeats.
pub(super) fn shown(fields: &OllamaFields, served: &Arc<Served>) -> String {
    fields.model.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| served.id.clone())
}

/// A request that says nothing: the model is loaded, or unloaded where it is to be kept for no time.
pub(super) async fn load(state: &AppState, shape: Shape, fields: &OllamaFields) -> Result<Response, ApiError> {
    let Asked { model, unloads } = Asked::of(state, fields)?;
    let reason = if unloads {
        if let Some(name) = &model {
            unload(state, name)?;
        }
        "unload"
    } else {
        state.registry().get(model.as_deref()).await?;
        "load"
    };
    let name = fields.model.clone().or(model).unwrap_or_default();
    Ok(Output(silent(shape, &name, reason)).into_response())
}

/// Unloads a model of several; replies that run on it end first. The only one stays.
pub(super) fn unload(state: &AppState, name: &str) -> Result<(), ApiError> {
    if state.registry().list().len() > 1 {
        state.registry().unload(name)?;
    } else {
        tracing::debug!("`keep_alive` 0 changes nothing: the only model of a server stays loaded");
    }
    Ok(())
}
