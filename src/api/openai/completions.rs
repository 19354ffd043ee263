//! `/v1/completions`: texts or tokens continued as they stand.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use engine::{PromptProgress, Timings};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::parts::{Frame, Part};
use crate::error::ApiError;
use crate::form;
use crate::json::Input;
use crate::params::{Params, range};
use crate::prompt::Prompts;
use crate::respond::{Wire, respond};
use crate::state::AppState;
use crate::stream::Events;
use crate::wire::{Logprob, finish_reason, text_in};
use crate::work::{Caller, Work, WorkKind};
use session::{End, Step};

/// The fields of a request, beside [`crate::Params`].
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// The model's name.
    pub(crate) model: Option<String>,
    /// A text, a list of tokens, a list of both, or a list of such prompts.
    #[schema(value_type = Value)]
    pub(crate) prompt: Prompts,
    /// Begin the reply with the prompt.
    pub(crate) echo: Option<bool>,
    /// What follows the gap that the reply fills.
    pub(crate) suffix: Option<String>,
    /// Log probabilities of so many of the likeliest tokens, 0 to 20.
    pub(crate) logprobs: Option<Value>,
    /// Not served beyond `n`.
    pub(crate) best_of: Option<i64>,
}

/// A whole reply, or a part of one.
pub(crate) type CompletionResponse = Part<'static, CompletionChoice>;

/// One of the replies; those to the first prompt come first.
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

    fn append(&mut self, more: Self) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
    }
}

/// `POST /v1/completions`.
pub(crate) async fn completions(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Response, ApiError> {
    let body: CompletionRequest = input.read().await?;
    let params = Params::read(&input).await?;
    let form = form::form_of(&input).await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let n_logprobs = logprobs(body.logprobs.as_ref())?;
    let n = params.n_replies()?;
    if body.best_of.is_some_and(|best_of| best_of != n as i64) {
        return Err(ApiError::field("best_of", "best_of: only the same number as `n` is served"));
    }
    let echo = body.echo.unwrap_or(false);
    let suffix = body.suffix.filter(|suffix| !suffix.is_empty());
    let n_prompts = if suffix.is_some() { 1 } else { body.prompt.count("prompt")? };
    let kind = WorkKind::of(&served, body.prompt.have_images());
    let work = move |work: &mut Work| {
        let served = Arc::clone(work.served());
        let mut wanted = params.wanted(&served)?;
        wanted.options.grammar = served.grammar(form.as_ref())?;
        wanted.options.logprobs = n_logprobs.or(wanted.options.logprobs);
        let prepared = match suffix {
            Some(suffix) => {
                let tokens = {
                    let before = body.prompt.single("prompt")?.tokens(served.vocab());
                    served.fill_in(&before, &suffix)?
                };
                vec![served.prepare_text(tokens, wanted.options.clone())?]
            }
            None => body.prompt.prepared(work, "prompt", &wanted.options)?,
        };
        let echoed = prepared.iter().filter(|_| echo);
        let echoes: Vec<String> = echoed.map(|one| served.text_of_tokens(one.request.prompt())).collect();
        let shown = work.shown(&wanted, &prepared);
        Ok((work.submit(&prepared, n)?, wanted, echoes, shown))
    };
    let (replies, wanted, echoes, shown) = state.work_at(kind, &served, caller, n * n_prompts, work).await?;
    drop(input);
    let stream = wanted.stream;
    let frame = Frame::new(&state, served, wanted, "cmpl-", OBJECT).telling(&shown);
    let reply = Reply::new(frame, replies.len(), echoes);
    respond(&state, replies, reply, stream).await
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

/// The replies as they grow.
struct Reply {
    frame: Frame,
    /// In a stream their texts hold what went out before.
    choices: Vec<CompletionChoice>,
}

impl Reply {
    /// `echoes`: the prompts' texts, where they are wanted.
    fn new(frame: Frame, n_replies: usize, echoes: Vec<String>) -> Self {
        let n = frame.wanted.n;
        let choice = |index| CompletionChoice {
            index,
            text: echoes.get(index / n).cloned().unwrap_or_default(),
            ..CompletionChoice::default()
        };
        Self { frame, choices: (0..n_replies).map(choice).collect() }
    }
}

impl Wire for Reply {
    type Body = CompletionResponse;

    fn id(&self) -> Option<&str> {
        Some(self.frame.id())
    }

    fn begin(&mut self, events: &mut Events) {
        for choice in self.choices.iter().filter(|choice| !choice.text.is_empty()) {
            events.data(&self.frame.part(vec![choice]));
        }
    }

    fn progress(&mut self, index: usize, progress: PromptProgress, so_far: &Timings, events: &mut Events) {
        self.frame.progress(CompletionChoice { index, ..CompletionChoice::default() }, progress, so_far, events);
    }

    fn step(&mut self, index: usize, step: Step, so_far: &Timings, events: &mut Events) {
        self.frame.take(index, &step);
        let mut new = CompletionChoice { index, ..CompletionChoice::default() };
        let mut offset = self.choices[index].text.len();
        for piece in step.pieces() {
            if let Some(logprob) = Logprob::of(piece, self.frame.served.vocab()) {
                new.logprobs.get_or_insert_default().push(&logprob, offset);
            }
            offset += piece.bytes.len();
        }
        new.text = text_in(step.events());
        let all = &mut self.choices[index];
        all.text += &new.text;
        if !events.are_read() {
            if let Some(more) = new.logprobs {
                all.logprobs.get_or_insert_default().append(more);
            }
        } else if !new.text.is_empty() || new.logprobs.is_some() {
            events.data(&self.frame.more(new, so_far));
        }
    }

    fn end(&mut self, index: usize, mut end: End, events: &mut Events) {
        let text = text_in(std::mem::take(&mut end.events));
        let finish_reason = Some(finish_reason(&end.reason, false));
        let choice = &mut self.choices[index];
        choice.text += &text;
        choice.finish_reason = finish_reason;
        let last = CompletionChoice { index, text, finish_reason, logprobs: None };
        self.frame.end(index, &end, last, events);
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        Frame::failed(error, events);
    }

    fn finish(&mut self, events: &mut Events) {
        self.frame.finish::<CompletionChoice>(events);
    }

    fn body(self) -> CompletionResponse {
        self.frame.whole(OBJECT, self.choices)
    }
}

/// What a response is, whole or in parts.
const OBJECT: &str = "text_completion";
