//! Parts of replies that several families share: usage, timings, log probabilities, names of endings.

use engine::{FinishReason, Piece, PromptProgress, Timings};
use serde::Serialize;
use session::Rendered;
use session::dialect::ReplyEvent;
use text::{TokenId, Vocab};
use utoipa::ToSchema;

/// OpenAI's count of tokens.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Tokens of the prompts.
    pub(crate) prompt_tokens: usize,
    /// Tokens generated.
    pub(crate) completion_tokens: usize,
    /// Both.
    pub(crate) total_tokens: usize,
    /// Of the prompt's.
    pub(crate) prompt_tokens_details: PromptDetails,
    /// Of the reply's.
    pub(crate) completion_tokens_details: CompletionDetails,
}

/// Parts of the prompt.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct PromptDetails {
    /// Taken from cached state.
    pub(crate) cached_tokens: usize,
}

/// Parts of the reply.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionDetails {
    /// Thinking.
    pub(crate) reasoning_tokens: usize,
    /// Drafted and accepted.
    pub(crate) accepted_prediction_tokens: usize,
    /// Drafted and thrown away.
    pub(crate) rejected_prediction_tokens: usize,
}

/// The tokens of the prompt that a request would make.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct InputTokens {
    object: &'static str,
    input_tokens: usize,
}

impl InputTokens {
    /// Of a prompt.
    pub(crate) fn of(prompt: &Rendered) -> Self {
        Self { object: "response.input_tokens", input_tokens: prompt.tokens.len() }
    }
}

impl Usage {
    /// Adds a reply; replies to one prompt count it once.
    pub(crate) fn add(&mut self, timings: &Timings, reasoning_tokens: usize, same_prompt: bool) {
        if !same_prompt {
            self.prompt_tokens += timings.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += timings.cached_tokens;
        }
        self.completion_tokens += timings.generated_tokens;
        self.completion_tokens_details.reasoning_tokens += reasoning_tokens;
        self.completion_tokens_details.accepted_prediction_tokens += timings.accepted;
        self.completion_tokens_details.rejected_prediction_tokens += timings.drafted - timings.accepted;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

/// llama.cpp's timings of one reply, and ours of its engine steps.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TimingsBody {
    /// Prompt tokens from cached state.
    cache_n: usize,
    /// Prompt tokens computed.
    prompt_n: usize,
    /// Time for them.
    prompt_ms: f64,
    /// One of them.
    prompt_per_token_ms: f64,
    /// Of them a second.
    prompt_per_second: f64,
    /// Tokens generated.
    predicted_n: usize,
    /// Time for them.
    predicted_ms: f64,
    /// One of them.
    predicted_per_token_ms: f64,
    /// Of them a second.
    predicted_per_second: f64,
    /// Tokens drafted.
    draft_n: usize,
    /// Drafted tokens accepted.
    draft_n_accepted: usize,
    /// Engine steps after the prompt.
    cycles: usize,
    /// Share of drafts accepted at each depth; told with `timings_per_token`, since clients take the others for numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    acceptance_by_depth: Vec<f64>,
}

impl From<&Timings> for TimingsBody {
    fn from(t: &Timings) -> Self {
        let prompt_n = t.prompt_tokens.saturating_sub(t.cached_tokens);
        Self {
            cache_n: t.cached_tokens,
            prompt_n,
            prompt_ms: t.prompt_ms,
            prompt_per_token_ms: t.prompt_ms / prompt_n.max(1) as f64,
            prompt_per_second: if t.prompt_ms > 0.0 { prompt_n as f64 * 1e3 / t.prompt_ms } else { 0.0 },
            predicted_n: t.generated_tokens,
            predicted_ms: t.generated_ms,
            predicted_per_token_ms: t.generated_ms / t.generated_tokens.saturating_sub(1).max(1) as f64,
            predicted_per_second: t.tokens_per_second(),
            draft_n: t.drafted,
            draft_n_accepted: t.accepted,
            cycles: t.steps,
            acceptance_by_depth: t.acceptance_by_depth(),
        }
    }
}

impl TimingsBody {
    /// Numbers only.
    pub(crate) fn without_list(self) -> Self {
        Self { acceptance_by_depth: Vec::new(), ..self }
    }
}

/// How far the prompt is, as llama.cpp says it.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct Progress {
    /// Tokens of the prompt.
    total: usize,
    /// Of those, from cached state.
    cache: usize,
    /// Done, those from cached state included.
    processed: usize,
}

impl From<PromptProgress> for Progress {
    fn from(p: PromptProgress) -> Self {
        Self { total: p.total, cache: p.cached, processed: p.done }
    }
}

/// The log probability of one token.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Logprob {
    /// Its id.
    id: u32,
    /// Its text; U+FFFD for a part of a character.
    token: String,
    /// Its bytes.
    bytes: Vec<u8>,
    /// Natural logarithm of its probability; -9999 for a token that cannot be.
    logprob: f32,
    /// The likeliest tokens at its place.
    top_logprobs: Vec<TopLogprob>,
}

/// One of the likeliest tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TopLogprob {
    /// Its id.
    pub(crate) id: u32,
    /// Its text.
    pub(crate) token: String,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// As with the token itself.
    pub(crate) logprob: f32,
}

impl Logprob {
    /// `None` without log probabilities.
    pub(crate) fn of(piece: &Piece, vocab: &Vocab) -> Option<Self> {
        let all = piece.logprob.as_ref()?;
        let TopLogprob { id, token, bytes, logprob } = TopLogprob::new(all.token, all.logprob, vocab);
        let top_logprobs = all.top.iter().map(|&(id, logprob)| TopLogprob::new(id, logprob, vocab)).collect();
        Some(Self { id, token, bytes, logprob, top_logprobs })
    }

    /// The token itself, and the likeliest at its place.
    pub(crate) fn into_parts(self) -> (TopLogprob, Vec<TopLogprob>) {
        let Self { id, token, bytes, logprob, top_logprobs } = self;
        (TopLogprob { id, token, bytes, logprob }, top_logprobs)
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    pub(crate) fn logprob(&self) -> f32 {
        self.logprob
    }

    pub(crate) fn top(&self) -> &[TopLogprob] {
        &self.top_logprobs
    }
}

impl TopLogprob {
    fn new(id: TokenId, logprob: f32, vocab: &Vocab) -> Self {
        let bytes = vocab.bytes(id).unwrap_or_default().to_vec();
        // JSON has no infinity; -9999 is what OpenAI gives.
        let logprob = if logprob.is_finite() { logprob } else { -9999.0 };
        Self { id: id.0, token: String::from_utf8_lossy(&bytes).into_owned(), bytes, logprob }
    }
}

/// OpenAI's name of an ending.
pub(crate) fn finish_reason(reason: &FinishReason, called_tools: bool) -> &'static str {
    match reason {
        FinishReason::Length | FinishReason::Context => "length",
        FinishReason::Cancelled => CANCELLED,
        FinishReason::EndOfGeneration(_) | FinishReason::Stop(_) | FinishReason::Complete if called_tools => {
            "tool_calls"
        }
        FinishReason::EndOfGeneration(_) | FinishReason::Stop(_) | FinishReason::Complete => "stop",
    }
}

/// The ending of a reply that was cancelled, which OpenAI's, Anthropic's and llama.cpp's lists of endings have no word for; it is
/// that of other open servers.
pub(crate) const CANCELLED: &str = "abort";

/// The text of a reply that is nothing else.
pub(crate) fn text_in(events: Vec<ReplyEvent>) -> String {
    let texts = events.into_iter().filter_map(|event| match event {
        ReplyEvent::Text(text) => Some(text),
        _ => None,
    });
    texts.collect()
}
