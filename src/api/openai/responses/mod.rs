//! `/v1/responses`, without memory: what it answers to comes with the request, and nothing is kept.

mod input;
mod tools;
pub(crate) mod types;
mod wire;

use axum::extract::State;
use axum::response::Response;

use crate::error::ApiError;
use crate::json::Input;
use crate::params::{Params, one_answer, range};
use crate::respond::respond;
use crate::state::AppState;
use crate::work::{Caller, Work};
use tools::ToolMap;
use types::ResponsesRequest;

/// `POST /v1/responses`.
pub(crate) async fn responses(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Response, ApiError> {
    let body: ResponsesRequest = input.read().await?;
    let mut params = Params::read(&input).await?;
    if let Some(n) = body.max_output_tokens {
        params.max_completion_tokens = Some(range("max_output_tokens", n, 1, i64::MAX)?);
    }
    let served = state.registry().get(body.model.as_deref()).await?;
    one_answer(&params)?;
    let logprobs = logprobs(&body)?;
    let tools = ToolMap::of(body.tools.as_deref().unwrap_or_default())?;
    let chat = input::chat_input(&body, &tools, &state.settings().reasoning)?;
    let work = move |work: &mut Work| {
        let mut wanted = params.wanted(work.served())?;
        wanted.options.logprobs = logprobs.or(wanted.options.logprobs);
        let prepared = work.prepare(chat, wanted.options.clone())?;
        Ok((work.submit(&[prepared], 1)?, wanted))
    };
    let (replies, wanted) = state.work(&served, caller, 1, work).await?;
    drop(input);
    let stream = wanted.stream;
    respond(&state, replies, wire::Reply::new(&served, body, tools, &wanted), stream).await
}

/// Log probabilities are asked for by a word in `include`, their number apart from it.
fn logprobs(body: &ResponsesRequest) -> Result<Option<usize>, ApiError> {
    let top = body.top_logprobs.map(|n| range("top_logprobs", n, 0, engine::MAX_LOGPROBS as i64)).transpose()?;
    let asked = body.include.iter().flatten().any(|word| word == "message.output_text.logprobs");
    Ok((asked || top > Some(0)).then(|| top.unwrap_or(0) as usize))
}
