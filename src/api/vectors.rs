//! Inputs that are embedded or ranked: from their tokens to vectors, many at a time.
//! Owns the limits of one request, and how many of its inputs wait in the engine's queue together. Knows no wire format.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use engine::{Pooling, RequestError, RequestOptions};
use session::{Delta, PrepareError, Prepared};
use text::TokenId;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::prompt::Prompt;
use crate::registry::Served;
use crate::running_reply::{RunningReplies, RunningReply};
use crate::state::AppState;
use crate::work::{Caller, Work};

/// What came of one input.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vector {
    /// As [`engine::Summary::embedding`].
    pub(crate) numbers: Vec<f32>,
    /// Tokens of the input.
    pub(crate) n_tokens: usize,
}

/// Holds the number of inputs to its limit; `field` is named in errors.
///
/// # Errors
/// 400 for none, and for too many.
pub(crate) fn check_count(n: usize, field: &str) -> Result<(), ApiError> {
    if (1..=MAX_INPUTS).contains(&n) {
        return Ok(());
    }
    Err(ApiError::field(field, format!("{field}: 1 to {MAX_INPUTS} expected in one request, {n} found")))
}

/// Holds the numbers of a response to their limit.
///
/// # Errors
/// 400: ask for less at once.
pub(crate) fn check_numbers(inputs: &[Prepared], pooling: Pooling, n_embd: usize, field: &str) -> Result<(), ApiError> {
    let n_vectors = match pooling {
        Pooling::None => inputs.iter().map(|input| input.request.prompt().len()).sum(),
        _ => inputs.len(),
    };
    if n_vectors.saturating_mul(n_embd) <= MAX_NUMBERS {
        return Ok(());
    }
    let message = format!(
        "{field}: {n_vectors} vectors of {n_embd} numbers were asked for, one response has {MAX_NUMBERS} numbers at most: \
         send fewer inputs at once"
    );
    Err(ApiError::field(field, message))
}

/// The engine's request for one input. `place` says which one it is in errors, such as `input[3]`, `field` whose it is.
///
/// # Errors
/// 400 for an input that is empty, too long, or of tokens that there are not; as [`Work::go_on`].
pub(crate) fn prepared(
    work: &Work,
    tokens: Vec<TokenId>,
    options: &RequestOptions,
    field: &str,
    place: &str,
) -> Result<Prepared, ApiError> {
    work.go_on()?;
    work.served().prepare_text(tokens, options.clone()).map_err(|error| match error {
        PrepareError::Request(RequestError::EmptyPrompt) => {
            ApiError::field(field, format!("{place} is empty: give a text, or at least one token"))
        }
        PrepareError::Request(RequestError::PromptTooLong { n_prompt, n_ctx }) => {
            let message = format!(
                "{place} is too large and exceeds the available context size: it has {n_prompt} tokens, and inputs may have {n_ctx}; shorten it, \
                 or start the server with a larger --ctx-size"
            );
            ApiError::context_exceeded(field, message, n_prompt, n_ctx)
        }
        error => {
            let error = ApiError::from(error);
            ApiError { param: Some(field.to_owned()), message: format!("{place}: {}", error.message), ..error }
        }
    })
}

/// Inputs to be embedded, and how.
pub(crate) struct Embed {
    /// One or many.
    pub(crate) inputs: Vec<Prompt>,
    /// What is made of their hidden states.
    pub(crate) pooling: Pooling,
    /// Inputs that are longer than the context are cut, not refused.
    pub(crate) truncate: bool,
    /// Where they were given, for errors.
    pub(crate) field: &'static str,
}

/// The vectors of these inputs, in their order. Texts end as the model's file asks for it.
///
/// # Errors
/// As [`check_count`], [`prepared`], [`check_numbers`] and [`vectors`].
pub(crate) async fn embed(
    state: &AppState,
    served: &Arc<Served>,
    caller: Caller,
    embed: Embed,
) -> Result<Vec<Vector>, ApiError> {
    let Embed { inputs, pooling, truncate, field } = embed;
    let n = inputs.len();
    check_count(n, field)?;
    let prepare = move |work: &Work| {
        let options = RequestOptions { embed: Some(pooling), ..work.served().request_options() };
        let end = work.served().embedding_end();
        let n_ctx = work.served().engine().limits().n_ctx;
        let one = |(i, prompt): (usize, Prompt)| {
            let end = end.filter(|_| prompt.is_text());
            let mut tokens = prompt.tokens(work.served().vocab());
            if truncate {
                tokens.truncate(n_ctx.saturating_sub(usize::from(end.is_some())));
            }
            tokens.extend(end);
            let place = if n == 1 { field.to_owned() } else { format!("{field}[{i}]") };
            prepared(work, tokens, &options, field, &place)
        };
        let inputs = inputs.into_iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
        check_numbers(&inputs, pooling, work.served().model().hparams().n_embd, field)?;
        Ok(inputs)
    };
    vectors(state, served, caller, n, prepare).await
}

/// The vectors of `n` inputs, in their order. `prepare` makes the engine's requests for them, all before the first is computed.
///
/// # Errors
/// Those of `prepare`; as [`AppState::work`]; those of the engine.
pub(crate) async fn vectors(
    state: &AppState,
    served: &Arc<Served>,
    caller: Caller,
    n: usize,
    prepare: impl FnOnce(&Work) -> Result<Vec<Prepared>, ApiError> + Send + 'static,
) -> Result<Vec<Vector>, ApiError> {
    let n_wave = n.min(MAX_WAITING).min(served.engine().max_queue());
    let first = move |work: &mut Work| {
        let inputs = Arc::new(prepare(work)?);
        let replies = work.submit(&inputs[..n_wave.min(inputs.len())], 1)?;
        Ok((inputs, replies))
    };
    let (inputs, mut replies) = state.work(served, caller, n_wave, first).await?;
    let mut all: Vec<Vector> = Vec::with_capacity(inputs.len());
    loop {
        all.append(&mut complete(replies).await?);
        let wave = all.len()..(all.len() + n_wave).min(inputs.len());
        if wave.is_empty() {
            return Ok(all);
        }
        replies = submit(state, served, caller, Arc::clone(&inputs), wave).await?;
    }
}

/// Hands some of the inputs over. The queue may be full of others' requests; those of this one were let in already, and wait.
async fn submit(
    state: &AppState,
    served: &Arc<Served>,
    caller: Caller,
    inputs: Arc<Vec<Prepared>>,
    wave: Range<usize>,
) -> Result<Vec<RunningReply>, ApiError> {
    let deadline = Instant::now() + PATIENCE;
    let engine = served.engine();
    while engine.n_waiting() + wave.len() > engine.max_queue() && Instant::now() < deadline {
        tokio::time::sleep(PAUSE).await;
    }
    state.work(served, caller, wave.len(), move |work| work.submit(&inputs[wave], 1)).await
}

/// What comes of these replies, in their order.
async fn complete(replies: Vec<RunningReply>) -> Result<Vec<Vector>, ApiError> {
    let mut all = vec![Vector::default(); replies.len()];
    let mut replies = RunningReplies::new(replies);
    while let Some((i, delta, _)) = replies.next().await {
        if let Delta::End(end) = delta? {
            all[i] = Vector { numbers: end.embedding.unwrap_or_default(), n_tokens: end.timings.prompt_tokens };
        }
    }
    Ok(all)
}

/// Inputs of one request at most, as OpenAI has it.
const MAX_INPUTS: usize = 2048;

/// Numbers of one response at most: some 90 MB of JSON.
const MAX_NUMBERS: usize = 1 << 23;

/// Inputs of one request in the engine's queue: enough to keep sequences busy, and room for others.
const MAX_WAITING: usize = 32;

/// Time that inputs wait for room in the queue.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between looks for room.
const PAUSE: Duration = Duration::from_millis(10);
