//! `/v1/completions`: texts or tokens continued as they stand.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::{GenerateRequest, Piece};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use text::TokenId;
use text::reply::ReplyEvent;
use utoipa::ToSchema;

use crate::answer::{Answer, Answers, Delta, End};
use crate::constraint;
use crate::error::ApiError;
use crate::ids;
use crate::json::{Input, Output};
use crate::params::{Params, range};
use crate::prepare::{self, Prepared};
use crate::registry::Served;
use crate::state::AppState;
use crate::stream::{self, Gone, Sse};
use crate::wire::{Logprob, Progress, TimingsBody, Usage, finish_reason};

/// The fields of a request, beside [`crate::Params`].
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// The model's name.
    pub(crate) model: Option<String>,
    /// A text, a list of tokens, a list of both, or a list of such prompts.
    pub(crate) prompt: Value,
    /// Begin the answer with the prompt.
    pub(crate) echo: Option<bool>,
    /// What follows the gap that the answer fills.
    pub(crate) suffix: Option<String>,
    /// Log probabilities of so many of the likeliest tokens, 0 to 20.
    pub(crate) logprobs: Option<Value>,
    /// Not served beyond `n`.
    pub(crate) best_of: Option<i64>,
}

/// A whole answer, or a part of one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionResponse {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<CompletionChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<TimingsBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<Progress>,
}

/// One of the answers; those to the first prompt come first.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    text: String,
    index: usize,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<&'static str>,
}

/// Log probabilities in the shape that this endpoint has always had.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    #[schema(value_type = Vec<Object>)]
    top_logprobs: Vec<Map<String, Value>>,
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    fn push(&mut self, logprob: &Logprob, offset: usize) {
        self.tokens.push(logprob.token().to_owned());
        self.token_logprobs.push(logprob.logprob());
        let top = logprob.top().iter().map(|t| (t.token.clone(), Value::from(t.logprob)));
        self.top_logprobs.push(top.collect());
        self.text_offset.push(offset);
    }
}

/// `POST /v1/completions`.
pub(crate) async fn completions(State(state): State<AppState>, input: Input) -> Result<Response, ApiError> {
    let body: CompletionRequest = input.read()?;
    let params: Params = input.read()?;
    let form = constraint::form(&input.0)?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let n_logprobs = logprobs(body.logprobs.as_ref())?;
    let mut wanted = params.wanted(&served)?;
    wanted.options.grammar = constraint::grammar(&served, form).await?;
    wanted.options.logprobs = n_logprobs.or(wanted.options.logprobs);
    if body.best_of.is_some_and(|n| n != wanted.n as i64) {
        return Err(ApiError::field("best_of", "best_of: only the same number as `n` is served"));
    }
    let echo = body.echo.unwrap_or(false);
    let (options, limits) = (wanted.options.clone(), served.engine.limits());
    let (for_prompts, n) = (Arc::clone(&served), wanted.n);
    let (prepared, echoes) = prepare::blocking(move || {
        let prompts = match body.suffix.filter(|suffix| !suffix.is_empty()) {
            Some(suffix) => vec![crate::native::infill::filled(&for_prompts, &body.prompt, &suffix)?],
            None => prompts(&for_prompts, &body.prompt)?,
        };
        let echoes: Vec<String> =
            if echo { prompts.iter().map(|p| text_of(&for_prompts, p)).collect() } else { vec![] };
        let requests = prompts.into_iter().map(|tokens| {
            Ok(Prepared { request: GenerateRequest::new(tokens, options.clone(), limits)?, reply: None })
        });
        Ok((requests.collect::<Result<Vec<_>, ApiError>>()?, echoes))
    })
    .await?;
    let mut answers = Vec::new();
    for one in &prepared {
        for i in 0..n {
            answers.push(state.submit(&served, one.with_choice(i)?)?);
        }
    }
    let reply = Reply {
        id: ids::new("cmpl-"),
        created: ids::now(),
        fingerprint: state.settings().build.clone(),
        n_answers: answers.len(),
        n,
        echoes,
        served,
        include_usage: wanted.include_usage,
        timings_per_token: wanted.timings_per_token,
        return_progress: wanted.return_progress,
    };
    if wanted.stream {
        return Ok(stream::response(&state, |sse| stream_all(sse, answers, reply)));
    }
    whole(answers, reply).await.map(|body| Output(body).into_response())
}

/// A number, as OpenAI has it; `true` is one, as chat has it.
fn logprobs(value: Option<&Value>) -> Result<Option<usize>, ApiError> {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(1)),
        Some(value) => {
            let n = value.as_i64().ok_or_else(|| ApiError::field("logprobs", "logprobs: a number expected"))?;
            Ok(Some(range("logprobs", n, 0, engine::MAX_LOGPROBS as i64)? as usize))
        }
    }
}

/// The prompts of a `prompt` field. Tokenises: call it where blocking is allowed.
///
/// # Errors
/// 400 for what is no prompt, and for too many.
pub(crate) fn prompts(served: &Served, value: &Value) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let prompts = match value {
        Value::Array(items) if items.iter().any(Value::is_array) || items.iter().all(Value::is_string) => {
            items.iter().map(|item| prompt(served, item)).collect::<Result<Vec<_>, _>>()?
        }
        one => vec![prompt(served, one)?],
    };
    match prompts.len() {
        1..=MAX_PROMPTS => Ok(prompts),
        n => Err(ApiError::field("prompt", format!("prompt: 1 to {MAX_PROMPTS} prompts expected, {n} found"))),
    }
}

/// One prompt: a text, or a list of tokens and texts.
pub(crate) fn prompt(served: &Served, value: &Value) -> Result<Vec<TokenId>, ApiError> {
    let vocab = served.model.vocab();
    let wrong = || ApiError::field("prompt", "prompt: a text, a list of token ids, or a list of such prompts expected");
    match value {
        Value::String(text) => Ok(prepare::tokens_of(vocab, text)),
        Value::Array(items) => {
            let mut tokens = Vec::with_capacity(items.len());
            for item in items {
                match item {
                    Value::String(text) if tokens.is_empty() => tokens = prepare::tokens_of(vocab, text),
                    Value::String(text) => tokens.extend(vocab.encode(text, text::Special::Parse)),
                    item => {
                        let id = item.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong)?;
                        tokens.push(TokenId(id));
                    }
                }
            }
            Ok(tokens)
        }
        _ => Err(wrong()),
    }
}

fn text_of(served: &Served, tokens: &[TokenId]) -> String {
    let vocab = served.model.vocab();
    let bytes: Vec<u8> = tokens.iter().flat_map(|&id| vocab.bytes(id).unwrap_or_default()).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What all parts of an answer repeat.
struct Reply {
    id: String,
    created: u64,
    fingerprint: String,
    served: Arc<Served>,
    n_answers: usize,
    /// Answers to one prompt.
    n: usize,
    /// The prompts' texts, where they are wanted.
    echoes: Vec<String>,
    include_usage: bool,
    timings_per_token: bool,
    return_progress: bool,
}

impl Reply {
    fn body(&self, choices: Vec<CompletionChoice>) -> CompletionResponse {
        CompletionResponse {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.served.id.clone(),
            system_fingerprint: self.fingerprint.clone(),
            choices,
            usage: None,
            timings: None,
            prompt_progress: None,
        }
    }

    fn echo(&self, index: usize) -> &str {
        self.echoes.get(index / self.n).map_or("", String::as_str)
    }

    /// Adds a step's log probabilities; `offset` is where its first token's text begins.
    fn logprobs(&self, pieces: &[Piece], mut offset: usize, to: &mut Option<TextLogprobs>) {
        let vocab = self.served.model.vocab();
        for piece in pieces {
            if let Some(logprob) = Logprob::of(piece, vocab) {
                to.get_or_insert_default().push(&logprob, offset);
            }
            offset += piece.bytes.len();
        }
    }
}

fn joined(events: Vec<ReplyEvent>) -> String {
    let texts = events.into_iter().filter_map(|event| match event {
        ReplyEvent::Text(text) => Some(text),
        _ => None,
    });
    texts.collect()
}

async fn whole(answers: Vec<Answer>, reply: Reply) -> Result<CompletionResponse, ApiError> {
    let mut choices: Vec<CompletionChoice> = (0..reply.n_answers)
        .map(|index| CompletionChoice { index, text: reply.echo(index).to_owned(), ..CompletionChoice::default() })
        .collect();
    let (mut usage, mut timings) = (Usage::default(), None);
    let mut answers = Answers::new(answers);
    while let Some((i, delta, _)) = answers.next().await {
        let choice = &mut choices[i];
        match delta {
            Delta::Progress(_) => {}
            Delta::Step(step) => {
                reply.logprobs(&step.pieces, choice.text.len(), &mut choice.logprobs);
                choice.text += &joined(step.events);
            }
            Delta::End(End { reason, events, timings: times, reasoning_tokens, .. }) => {
                choice.text += &joined(events);
                choice.finish_reason = Some(finish_reason(&reason, false));
                usage.add(&times, reasoning_tokens, i % reply.n != 0);
                if i == 0 {
                    timings = Some(TimingsBody::from(&times));
                }
            }
            Delta::Failed(error) => return Err(error),
        }
    }
    Ok(CompletionResponse { usage: Some(usage), timings, ..reply.body(choices) })
}

async fn stream_all(sse: Sse, answers: Vec<Answer>, reply: Reply) -> Result<(), Gone> {
    let mut usage = Usage::default();
    let mut offsets = vec![0; reply.n_answers];
    for (index, offset) in offsets.iter_mut().enumerate() {
        let text = reply.echo(index).to_owned();
        *offset = text.len();
        if !text.is_empty() {
            sse.data(&reply.body(vec![CompletionChoice { text, index, ..CompletionChoice::default() }])).await?;
        }
    }
    let mut answers = Answers::new(answers);
    while let Some((index, delta, so_far)) = answers.next().await {
        match delta {
            Delta::Progress(progress) if reply.return_progress => {
                let choice = CompletionChoice { index, ..CompletionChoice::default() };
                let progress = Some(Progress::from(progress));
                sse.data(&CompletionResponse { prompt_progress: progress, ..reply.body(vec![choice]) }).await?;
            }
            Delta::Progress(_) => {}
            Delta::Step(step) => {
                let mut choice = CompletionChoice { index, ..CompletionChoice::default() };
                reply.logprobs(&step.pieces, offsets[index], &mut choice.logprobs);
                choice.text = joined(step.events);
                offsets[index] += choice.text.len();
                if !choice.text.is_empty() || choice.logprobs.is_some() {
                    let timings = reply.timings_per_token.then(|| TimingsBody::from(&so_far));
                    sse.data(&CompletionResponse { timings, ..reply.body(vec![choice]) }).await?;
                }
            }
            Delta::End(End { reason, events, timings, reasoning_tokens, .. }) => {
                let finish_reason = Some(finish_reason(&reason, false));
                let choice = CompletionChoice { index, text: joined(events), finish_reason, logprobs: None };
                usage.add(&timings, reasoning_tokens, index % reply.n != 0);
                let timings = Some(TimingsBody::from(&timings));
                sse.data(&CompletionResponse { timings, ..reply.body(vec![choice]) }).await?;
            }
            Delta::Failed(error) => {
                sse.data(&error.body()).await?;
                return sse.done().await;
            }
        }
    }
    if reply.include_usage {
        sse.data(&CompletionResponse { usage: Some(usage), ..reply.body(Vec::new()) }).await?;
    }
    sse.done().await
}

/// Prompts of one request at most.
const MAX_PROMPTS: usize = 64;
