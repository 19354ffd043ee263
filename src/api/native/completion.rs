//! `/completion`: llama.cpp's own form of continuing a text.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use engine::{FinishReason, PromptProgress, Timings};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use text::TokenId;
use utoipa::ToSchema;

use super::props::generation_settings;
use crate::error::ApiError;
use crate::form;
use crate::json::Input;
use crate::params::{Params, Wanted};
use crate::prompt::Prompts;
use crate::registry::Served;
use crate::respond::{Wire, respond};
use crate::running_reply::RunningReply;
use crate::state::AppState;
use crate::stream::Events;
use crate::wire::{CANCELLED, Logprob, Progress, TimingsBody, TopLogprob, text_in};
use crate::work::{Caller, Work, WorkKind};
use session::{End, Step};

/// The fields of a request, beside [`crate::Params`].
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct NativeRequest {
    /// The model's name.
    pub(crate) model: Option<String>,
    /// A text, a list of tokens, a list of both, or a list of such prompts.
    #[schema(value_type = Value)]
    pub(crate) prompt: Prompts,
    /// Give these fields of a whole reply and no others; `a/b` is the field `b` of `a`.
    pub(crate) response_fields: Option<Vec<String>>,
}

/// A whole reply, or the last part of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NativeResponse {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    /// The slot that served it.
    id_slot: usize,
    stop: bool,
    model: String,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    #[schema(value_type = Object)]
    generation_settings: Value,
    prompt: String,
    has_new_line: bool,
    /// The context was full: the reply ended, or went on without its middle.
    truncated: bool,
    /// `eos`, `word`, `limit` or `abort`.
    stop_type: &'static str,
    stopping_word: String,
    tokens_cached: usize,
    timings: TimingsBody,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completion_probabilities: Vec<Probability>,
}

/// A part of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NativeChunk {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    stop: bool,
    /// -1: the last part names it.
    id_slot: i64,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completion_probabilities: Vec<Probability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<TimingsBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<Progress>,
}

/// `POST /completion`.
pub(crate) async fn completion(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Response, ApiError> {
    let body: NativeRequest = input.read().await?;
    let params = Params::read(&input).await?;
    let form = form::form_of(&input).await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let n = params.n_replies()? * body.prompt.count("prompt")?;
    let body_fields = body.response_fields;
    let kind = WorkKind::of(&served, body.prompt.have_images());
    let work = move |work: &mut Work| {
        let served = Arc::clone(work.served());
        let mut wanted = params.wanted(&served)?;
        wanted.options.grammar = served.grammar(form.as_ref())?;
        let prepared = body.prompt.prepared(work, "prompt", &wanted.options)?;
        let shown = prepared.iter().map(|one| served.text_of_tokens(one.request.prompt())).collect();
        Ok((work.submit(&prepared, wanted.n)?, wanted, shown))
    };
    let (replies, wanted, shown) = state.work_at(kind, &served, caller, n, work).await?;
    drop(input);
    let fields = body_fields.unwrap_or_default();
    respond_to(&state, &served, replies, Asked { wanted, fields }, shown).await
}

/// Gives replies, `n` to each prompt: as a list if there are several. `shown`: the prompts as they are repeated.
pub(crate) async fn respond_to(
    state: &AppState,
    served: &Arc<Served>,
    replies: Vec<RunningReply>,
    asked: Asked,
    shown: Vec<String>,
) -> Result<Response, ApiError> {
    let Asked { wanted, fields } = asked;
    let stream = wanted.stream;
    let part = |index| Part::new(served, &wanted, index, &shown[index / wanted.n]);
    let parts = (0..replies.len()).map(part).collect();
    respond(state, replies, Reply { parts, wanted, fields, done: Vec::new() }, stream).await
}

/// What a request wants to see.
pub(crate) struct Asked {
    pub(crate) wanted: Wanted,
    /// Of a whole reply; none are all.
    pub(crate) fields: Vec<String>,
}

/// One reply as it grows.
#[derive(Debug)]
pub(crate) struct Part {
    served: Arc<Served>,
    index: usize,
    prompt: String,
    settings: Value,
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Probability>,
    n_tokens: usize,
}

impl Part {
    pub(crate) fn new(served: &Arc<Served>, wanted: &Wanted, index: usize, prompt: &str) -> Self {
        Self {
            served: Arc::clone(served),
            index,
            prompt: prompt.to_owned(),
            settings: settings_of(wanted, served),
            content: String::new(),
            tokens: Vec::new(),
            probabilities: Vec::new(),
            n_tokens: 0,
        }
    }

    fn chunk(&self, content: String, n_prompt: usize) -> NativeChunk {
        NativeChunk {
            index: self.index,
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

    /// More of a reply that another endpoint gives.
    pub(crate) fn take(&mut self, step: &Step) {
        self.tokens.extend(step.pieces().map(|piece| piece.token.0));
    }

    /// All that is known of such a reply, its text with all tags and marks.
    pub(crate) fn told(&mut self, end: &End) -> NativeResponse {
        let tokens: Vec<TokenId> = self.tokens.iter().map(|&id| TokenId(id)).collect();
        let n_text =
            tokens.len() - usize::from(matches!(end.reason, FinishReason::EndOfGeneration(_)) && !tokens.is_empty());
        self.whole(self.served.text_of_tokens(&tokens[..n_text]), end)
    }

    /// The last word; in a stream all but the rest of the content went before.
    fn complete(&mut self, mut end: End) -> NativeResponse {
        let content = std::mem::take(&mut self.content) + &text_in(std::mem::take(&mut end.events));
        self.whole(content, &end)
    }

    fn whole(&mut self, content: String, end: &End) -> NativeResponse {
        let (t, n_ctx) = (&end.timings, self.served.engine().limits().n_ctx);
        let (stop_type, stopping_word) = match &end.reason {
            FinishReason::EndOfGeneration(_) | FinishReason::Complete => ("eos", String::new()),
            FinishReason::Stop(word) => ("word", word.clone()),
            FinishReason::Length | FinishReason::Context => ("limit", String::new()),
            FinishReason::Cancelled => (CANCELLED, String::new()),
        };
        NativeResponse {
            index: self.index,
            has_new_line: content.contains('\n'),
            content,
            tokens: std::mem::take(&mut self.tokens),
            id_slot: end.slot,
            stop: true,
            model: self.served.id.clone(),
            tokens_predicted: t.generated_tokens,
            tokens_evaluated: t.prompt_tokens,
            generation_settings: self.settings.take(),
            prompt: std::mem::take(&mut self.prompt),
            // The last token is in no context yet.
            truncated: end.reason == FinishReason::Context || t.prompt_tokens + t.generated_tokens > n_ctx + 1,
            stop_type,
            stopping_word,
            tokens_cached: t.prompt_tokens + t.generated_tokens.saturating_sub(1),
            timings: TimingsBody::from(t),
            completion_probabilities: std::mem::take(&mut self.probabilities),
        }
    }
}

/// All replies.
struct Reply {
    parts: Vec<Part>,
    wanted: Wanted,
    fields: Vec<String>,
    done: Vec<(usize, Whole)>,
}

impl Reply {
    /// The fields that were asked for.
    fn shown(&self, body: NativeResponse) -> Whole {
        if self.fields.is_empty() {
            return Whole::All(Box::new(body));
        }
        let body = serde_json::to_value(&body).unwrap_or_default();
        let find = |path: &String| {
            let found = path.split('/').try_fold(&body, |value, name| value.get(name))?;
            Some((path.clone(), found.clone()))
        };
        Whole::Some(self.fields.iter().filter_map(find).collect())
    }
}

impl Wire for Reply {
    type Body = OneOrList;

    fn progress(&mut self, i: usize, progress: PromptProgress, so_far: &Timings, events: &mut Events) {
        if self.wanted.return_progress {
            let chunk = self.parts[i].chunk(String::new(), progress.total);
            let timings = self.wanted.timings_so_far(so_far);
            events.data(&NativeChunk { prompt_progress: Some(progress.into()), timings, ..chunk });
        }
    }

    fn step(&mut self, i: usize, step: Step, so_far: &Timings, events: &mut Events) {
        let part = &mut self.parts[i];
        let vocab = part.served.vocab();
        let post_sampling = self.wanted.post_sampling_probs;
        let logprobs = step.pieces().filter_map(|piece| Logprob::of(piece, vocab));
        let probabilities: Vec<Probability> = logprobs.map(|logprob| Probability::of(logprob, post_sampling)).collect();
        // A stream has the tokens always, as llama.cpp's.
        let ids = step.pieces().map(|piece| piece.token.0).filter(|_| self.wanted.return_tokens || events.are_read());
        let tokens: Vec<u32> = ids.collect();
        part.n_tokens += step.tokens.len();
        let content = text_in(step.events());
        if !events.are_read() {
            part.content += &content;
            part.tokens.extend(tokens);
            part.probabilities.extend(probabilities);
        } else if !(content.is_empty() && tokens.is_empty() && probabilities.is_empty()) {
            let timings = self.wanted.timings_so_far(so_far);
            let chunk = part.chunk(content, so_far.prompt_tokens);
            events.data(&NativeChunk { tokens, completion_probabilities: probabilities, timings, ..chunk });
        }
    }

    fn end(&mut self, i: usize, end: End, events: &mut Events) {
        let timings = self.wanted.timings_of(&end.timings);
        let body = NativeResponse { timings, ..self.parts[i].complete(end) };
        let body = self.shown(body);
        events.data(&body);
        if !events.are_read() {
            self.done.push((i, body));
        }
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.data(&error.body());
    }

    fn finish(&mut self, _events: &mut Events) {}

    fn body(mut self) -> OneOrList {
        self.done.sort_by_key(|(index, _)| *index);
        let mut all: Vec<Whole> = self.done.into_iter().map(|(_, body)| body).collect();
        match all.pop() {
            Some(one) if all.is_empty() => OneOrList::One(one),
            last => OneOrList::List(all.into_iter().chain(last).collect()),
        }
    }
}

/// The reply, or several.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum OneOrList {
    One(Whole),
    List(Vec<Whole>),
}

/// A whole reply, or the fields of it that were asked for.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Whole {
    All(Box<NativeResponse>),
    Some(Map<String, Value>),
}

/// A token's probability: the model's, or what the sampler drew by.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Probability {
    Model(Logprob),
    Sampler(SamplerProbability),
}

/// The probability of a token after all stages of the sampler.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SamplerProbability {
    id: u32,
    token: String,
    bytes: Vec<u8>,
    /// 0 for a token that a grammar or the end of thinking forced.
    prob: f32,
    /// The likeliest tokens that the sampler might have picked.
    top_probs: Vec<TopProbability>,
}

/// One of the likeliest.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TopProbability {
    id: u32,
    token: String,
    bytes: Vec<u8>,
    prob: f32,
}

impl Probability {
    fn of(logprob: Logprob, post_sampling: bool) -> Self {
        if !post_sampling {
            return Self::Model(logprob);
        }
        let (TopLogprob { id, token, bytes, logprob }, top) = logprob.into_parts();
        let one = |top: TopLogprob| TopProbability {
            id: top.id,
            token: top.token,
            bytes: top.bytes,
            prob: top.logprob.exp(),
        };
        Self::Sampler(SamplerProbability {
            id,
            token,
            bytes,
            prob: logprob.exp(),
            top_probs: top.into_iter().map(one).collect(),
        })
    }
}

/// The settings of a request, with the tokens that it forbids.
fn settings_of(wanted: &Wanted, served: &Served) -> Value {
    let mut settings = generation_settings(&wanted.options);
    settings["stream"] = json!(wanted.stream);
    settings["timings_per_token"] = json!(wanted.timings_per_token);
    if let (true, Some(bias)) = (wanted.options.ignore_eos, settings["logit_bias"].as_array_mut()) {
        let vocab = served.vocab();
        let ends = (0..vocab.len() as u32).map(TokenId).filter(|id| vocab.is_eog(*id));
        // JSON has no infinity; llama.cpp writes null.
        bias.extend(ends.map(|id| json!({ "token": id.0, "bias": null })));
    }
    settings
}
