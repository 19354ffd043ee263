//! `/v1/responses`: a request becomes a conversation, with what was kept of earlier ones, and its reply a response, which is kept.

mod earlier;
pub(crate) mod fetch;
mod input;
mod store;
mod tools;
pub(crate) mod types;
mod wire;

use axum::extract::State;
use axum::response::Response;

use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::params::{Params, one_answer, range};
use crate::respond::respond;
use crate::state::AppState;
use crate::wire::InputTokens;
use crate::work::{Caller, Work, WorkKind};
use earlier::Conversation;
pub(crate) use store::Store;
use tools::ToolMap;
use types::ResponsesRequest;
use wire::Keeping;

/// `POST /v1/responses`.
pub(crate) async fn responses(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Response, ApiError> {
    let mut body: ResponsesRequest = input.read().await?;
    let mut params = Params::read(&input).await?;
    if let Some(n) = body.max_output_tokens {
        params.max_completion_tokens = Some(range("max_output_tokens", n, 1, i64::MAX)?);
    }
    let served = state.registry().get(body.model.as_deref()).await?;
    one_answer(&params)?;
    let logprobs = logprobs(&body)?;
    let tools = ToolMap::of(body.tools.as_deref().unwrap_or_default())?;
    let conversation = Conversation::of(&mut body, &state, caller)?;
    let (keeper, defaults) = (state.clone(), state.settings().reasoning.clone());
    let kind = WorkKind::of(&served, conversation.may_have_images());
    let work = move |work: &mut Work| {
        let keeping = keeping(&keeper, &body, &conversation, caller);
        let (items, n_own) = conversation.items();
        let chat = input::chat_input(&body, &items, n_own, &tools, &defaults)?;
        drop(items);
        let mut wanted = params.wanted(work.served())?;
        wanted.options.logprobs = logprobs.or(wanted.options.logprobs);
        let prepared = work.prepare(chat, wanted.options.clone())?;
        let replies = work.submit(&[prepared], 1)?;
        let stream = wanted.stream;
        Ok((replies, wire::Reply::new(work.served(), body, tools, wanted, keeping), stream))
    };
    let (replies, reply, stream) = state.work_at(kind, &served, caller, 1, work).await?;
    drop(input);
    respond(&state, replies, reply, stream).await
}

/// `POST /v1/responses/input_tokens`.
pub(crate) async fn input_tokens(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Output<InputTokens>, ApiError> {
    let mut body: ResponsesRequest = input.read().await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let tools = ToolMap::of(body.tools.as_deref().unwrap_or_default())?;
    let conversation = Conversation::of(&mut body, &state, caller)?;
    let defaults = state.settings().reasoning.clone();
    let kind = WorkKind::of(&served, conversation.may_have_images());
    let count = move |work: &mut Work| {
        let (items, n_own) = conversation.items();
        let chat = input::chat_input(&body, &items, n_own, &tools, &defaults)?;
        Ok(Output(InputTokens::of(&work.render(chat)?)))
    };
    state.work_at(kind, &served, caller, 0, count).await
}

/// How the response to this request is kept; `None`: it is not, because that is not wanted or there is no room.
fn keeping(state: &AppState, body: &ResponsesRequest, conversation: &Conversation, caller: Caller) -> Option<Keeping> {
    if body.store == Some(false) || !state.responses().is_open() {
        return None;
    }
    let mut input = conversation.kept.clone();
    input.extend(state.responses().items(&conversation.own)?);
    Some(Keeping { state: state.clone(), scope: caller.scope, input })
}

/// Log probabilities are asked for by a word in `include`, their number apart from it.
fn logprobs(body: &ResponsesRequest) -> Result<Option<usize>, ApiError> {
    let top = body.top_logprobs.map(|n| range("top_logprobs", n, 0, engine::MAX_LOGPROBS as i64)).transpose()?;
    let asked = body.include.iter().flatten().any(|word| word == "message.output_text.logprobs");
    Ok((asked || top > Some(0)).then(|| top.unwrap_or(0) as usize))
}
