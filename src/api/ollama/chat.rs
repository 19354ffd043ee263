//! `/api/chat`: a conversation in Ollama's form.

use axum::extract::State;
use axum::response::Response;

use super::asked::{Asked, load, logprobs, shown, unload};
use super::reply::{Clock, Reply, Shape};
use super::types::{OllamaChatRequest, OllamaFields};
use super::{input, options};
use crate::error::ApiError;
use crate::json::Input;
use crate::pictures;
use crate::respond::respond;
use crate::state::AppState;
use crate::work::{Caller, Work, WorkKind};

/// `POST /api/chat`.
pub(crate) async fn chat(State(state): State<AppState>, caller: Caller, input: Input) -> Result<Response, ApiError> {
    let mut clock = Clock::start();
    let body: OllamaChatRequest = input.read().await?;
    let fields: OllamaFields = input.read().await?;
    let asked = Asked::of(&state, &fields)?;
    if body.messages.as_ref().is_none_or(Vec::is_empty) {
        return load(&state, Shape::Chat, &fields).await;
    }
    let params = options::params(fields.options.as_ref())?;
    let logprobs = logprobs(&fields)?;
    let conversation = input::conversation(body, &fields, &state.settings().reasoning)?;
    let served = state.registry().get(asked.model.as_deref()).await?;
    clock.loaded();
    let kind = WorkKind::of(&served, pictures::are_in(&conversation));
    let work = move |work: &mut Work| {
        let mut wanted = params.wanted(work.served())?;
        wanted.options.logprobs = logprobs;
        let prepared = work.prepare(conversation, wanted.options)?;
        work.submit(&[prepared], 1)
    };
    let replies = state.work_at(kind, &served, caller, 1, work).await?;
    drop(input);
    if asked.unloads {
        unload(&state, &served.id)?;
    }
    let reply = Reply::new(Shape::Chat, shown(&fields, &served), served, clock, None);
    respond(&state, replies, reply, fields.stream.unwrap_or(true)).await
}
