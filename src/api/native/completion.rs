//! `/completion`: llama.cpp's own form of continuing a text.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::{FinishReason, GenerateRequest, Piece};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use text::TokenId;
use text::reply::ReplyEvent;
use utoipa::ToSchema;

use super::props::generation_settings;
use crate::answer::{Answer, Answers, Delta, End};
use crate::constraint;
use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::openai::completions::prompts;
use crate::params::{Params, Wanted};
use crate::prepare::{Prepared, blocking};
use crate::registry::Served;
use crate::state::AppState;
use crate::stream::{self, Gone, Sse};
use crate::wire::{Logprob, Progress, TimingsBody};

/// The fields of a request, beside [`crate::Params`].
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct NativeRequest {
    /// The model's name.
    pub(crate) model: Option<String>,
    /// A text, a list of tokens, a list of both, or a list of such prompts.
    pub(crate) prompt: Value,
}

/// A whole answer, or the last part of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NativeResponse {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    id_slot: i64,
    stop: bool,
    model: String,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    #[schema(value_type = Object)]
    generation_settings: Value,
    prompt: String,
    has_new_line: bool,
    truncated: bool,
    /// `eos`, `word`, `limit` or `none`.
    stop_type: &'static str,
    stopping_word: String,
    tokens_cached: usize,
    timings: TimingsBody,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completion_probabilities: Vec<Logprob>,
}

/// A part of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NativeChunk {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    stop: bool,
    id_slot: i64,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completion_probabilities: Vec<Logprob>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<TimingsBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<Progress>,
}

/// What is repeated of a prompt in its answer.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// Its text.
    pub(crate) prompt: String,
    /// Its number.
    pub(crate) index: usize,
}

/// `POST /completion`.
pub(crate) async fn completion(State(state): State<AppState>, input: Input) -> Result<Response, ApiError> {
    let body: NativeRequest = input.read()?;
    let params: Params = input.read()?;
    let form = constraint::form(&input.0)?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let mut wanted = params.wanted(&served)?;
    wanted.options.grammar = constraint::grammar(&served, form).await?;
    let for_prompts = Arc::clone(&served);
    let (prompts, many) = blocking(move || {
        let vocab = for_prompts.model.vocab();
        let found = prompts(&for_prompts, &body.prompt)?;
        let many = found.len() > 1;
        let shown = |(index, tokens): (usize, Vec<TokenId>)| {
            let bytes: Vec<u8> = tokens.iter().flat_map(|&id| vocab.bytes(id).unwrap_or_default()).copied().collect();
            (tokens, Shown { prompt: String::from_utf8_lossy(&bytes).into_owned(), index })
        };
        Ok((found.into_iter().enumerate().map(shown).collect::<Vec<_>>(), many))
    })
    .await?;
    answer(&state, &served, prompts, wanted, many).await
}

/// Answers prompts, each `n` times; `many`: as a list even if there is one.
pub(crate) async fn answer(
    state: &AppState,
    served: &Arc<Served>,
    prompts: Vec<(Vec<TokenId>, Shown)>,
    wanted: Wanted,
    many: bool,
) -> Result<Response, ApiError> {
    let mut answers = Vec::new();
    let mut parts = Vec::new();
    for (tokens, shown) in prompts {
        let request = GenerateRequest::new(tokens, wanted.options.clone(), served.engine.limits())?;
        let prepared = Prepared { request, reply: None };
        for i in 0..wanted.n {
            answers.push(state.submit(served, prepared.with_choice(i)?)?);
            parts.push(Part { shown: Shown { index: parts.len(), ..shown.clone() }, ..Part::new(served, &wanted) });
        }
    }
    let list = many || wanted.n > 1;
    if wanted.stream {
        return Ok(stream::response(state, |sse| stream_all(sse, answers, parts)));
    }
    let mut bodies = whole(answers, parts).await?;
    if list || bodies.len() != 1 {
        return Ok(Output(bodies).into_response());
    }
    Ok(Output(bodies.remove(0)).into_response())
}

/// One answer as it grows.
struct Part {
    served: Arc<Served>,
    shown: Shown,
    settings: Value,
    return_tokens: bool,
    return_progress: bool,
    timings_per_token: bool,
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Logprob>,
    n_tokens: usize,
}

impl Part {
    fn new(served: &Arc<Served>, wanted: &Wanted) -> Self {
        Self {
            served: Arc::clone(served),
            shown: Shown { prompt: String::new(), index: 0 },
            settings: generation_settings(&wanted.options),
            return_tokens: wanted.return_tokens,
            return_progress: wanted.return_progress,
            timings_per_token: wanted.timings_per_token,
            content: String::new(),
            tokens: Vec::new(),
            probabilities: Vec::new(),
            n_tokens: 0,
        }
    }

    fn probabilities(&self, pieces: &[Piece]) -> Vec<Logprob> {
        pieces.iter().filter_map(|piece| Logprob::of(piece, self.served.model.vocab())).collect()
    }

    fn ids(&self, pieces: &[Piece]) -> Vec<u32> {
        if self.return_tokens { pieces.iter().map(|piece| piece.token.0).collect() } else { Vec::new() }
    }

    fn chunk(&self, content: String, n_prompt: usize) -> NativeChunk {
        NativeChunk {
            index: self.shown.index,
            content,
            tokens: Vec::new(),
            stop: false,
            id_slot: -1,
            tokens_predicted: self.n_tokens,
            tokens_evaluated: n_prompt,
            completion_probabilities: Vec::new(),
            timings: None,
            prompt_progress: None,
        }
    }

    /// The last word; in a stream the content went before.
    fn body(self, end: &End) -> NativeResponse {
        let t = &end.timings;
        let (stop_type, stopping_word) = match &end.reason {
            FinishReason::EndOfGeneration(_) | FinishReason::Complete => ("eos", String::new()),
            FinishReason::Stop(word) => ("word", word.clone()),
            FinishReason::Length | FinishReason::Context => ("limit", String::new()),
        };
        NativeResponse {
            index: self.shown.index,
            has_new_line: self.content.contains('\n'),
            content: self.content,
            tokens: self.tokens,
            id_slot: -1,
            stop: true,
            model: self.served.id.clone(),
            tokens_predicted: t.generated_tokens,
            tokens_evaluated: t.prompt_tokens,
            generation_settings: self.settings,
            prompt: self.shown.prompt,
            truncated: end.reason == FinishReason::Context,
            stop_type,
            stopping_word,
            tokens_cached: t.prompt_tokens + t.generated_tokens.saturating_sub(1),
            timings: TimingsBody::from(t),
            completion_probabilities: self.probabilities,
        }
    }
}

fn joined(events: &[ReplyEvent]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        ReplyEvent::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

async fn whole(answers: Vec<Answer>, parts: Vec<Part>) -> Result<Vec<NativeResponse>, ApiError> {
    let mut parts: Vec<Option<Part>> = parts.into_iter().map(Some).collect();
    let mut bodies = Vec::new();
    let mut answers = Answers::new(answers);
    while let Some((i, delta, _)) = answers.next().await {
        match delta {
            Delta::Progress(_) => {}
            Delta::Step(step) => {
                if let Some(part) = &mut parts[i] {
                    part.content += &joined(&step.events);
                    let (ids, more) = (part.ids(&step.pieces), part.probabilities(&step.pieces));
                    part.tokens.extend(ids);
                    part.probabilities.extend(more);
                }
            }
            Delta::End(end) => {
                if let Some(mut part) = parts[i].take() {
                    part.content += &joined(&end.events);
                    bodies.push(part.body(&end));
                }
            }
            Delta::Failed(error) => return Err(error),
        }
    }
    bodies.sort_by_key(|body| body.index);
    Ok(bodies)
}

async fn stream_all(sse: Sse, answers: Vec<Answer>, parts: Vec<Part>) -> Result<(), Gone> {
    let mut parts: Vec<Option<Part>> = parts.into_iter().map(Some).collect();
    let mut answers = Answers::new(answers);
    while let Some((i, delta, so_far)) = answers.next().await {
        let Some(part) = &mut parts[i] else { continue };
        match delta {
            Delta::Progress(progress) if part.return_progress => {
                let chunk = part.chunk(String::new(), progress.total);
                sse.data(&NativeChunk { prompt_progress: Some(progress.into()), ..chunk }).await?;
            }
            Delta::Progress(_) => {}
            Delta::Step(step) => {
                part.n_tokens += step.pieces.len();
                let content = joined(&step.events);
                let tokens = part.ids(&step.pieces);
                let completion_probabilities = part.probabilities(&step.pieces);
                if content.is_empty() && tokens.is_empty() && completion_probabilities.is_empty() {
                    continue;
                }
                let timings = part.timings_per_token.then(|| TimingsBody::from(&so_far));
                let chunk = part.chunk(content, so_far.prompt_tokens);
                sse.data(&NativeChunk { tokens, completion_probabilities, timings, ..chunk }).await?;
            }
            Delta::End(end) => {
                if let Some(mut part) = parts[i].take() {
                    part.content = joined(&end.events);
                    sse.data(&part.body(&end)).await?;
                }
            }
            Delta::Failed(error) => return sse.data(&json!({ "error": error.body().error })).await,
        }
    }
    Ok(())
}
