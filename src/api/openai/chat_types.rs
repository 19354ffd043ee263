//! `/v1/chat/completions` as JSON: what is read and what is written.

use engine::Timings;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use text::Vocab;
use utoipa::ToSchema;

use super::parts::Part;
use crate::wire::Logprob;
use session::{Span, Step};

/// The fields of a request, beside [`crate::Params`].
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    /// The model's name; a server of one model answers to any.
    pub(crate) model: Option<String>,
    /// The conversation.
    pub(crate) messages: Vec<Value>,
    /// Tools that may be called.
    pub(crate) tools: Option<Vec<Value>>,
    /// `none`, `auto`, `required`, or a function.
    pub(crate) tool_choice: Option<Value>,
    /// More than one call in a reply.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// Give log probabilities.
    pub(crate) logprobs: Option<bool>,
    /// Of so many of the likeliest tokens, 0 to 20.
    pub(crate) top_logprobs: Option<i64>,
    /// Whether to think; as the template's variable of this name.
    pub(crate) enable_thinking: Option<bool>,
    /// Leave the thinking of earlier turns in the prompt, where the template knows how.
    pub(crate) preserve_thinking: Option<bool>,
    /// Variables for the template; `enable_thinking` is one.
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// `auto`, `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`: told to templates that know it, else a number of tokens.
    pub(crate) reasoning_effort: Option<String>,
    /// `none` leaves thinking in the text; `auto` and `deepseek` split it out.
    pub(crate) reasoning_format: Option<String>,
    /// Most tokens of thinking; -1 is without limit.
    pub(crate) thinking_budget_tokens: Option<i64>,
    /// Another name of `thinking_budget_tokens`.
    pub(crate) thinking_token_budget: Option<i64>,
    /// A last message of the assistant is continued; true by default.
    pub(crate) continue_final_message: Option<bool>,
    /// `false`: the prompt ends with the last message, without the opening of a reply.
    pub(crate) add_generation_prompt: Option<bool>,
    /// Tell in a stream which tokens were drafted.
    pub(crate) return_drafts: Option<bool>,
    /// Not taken from requests: a template is a program.
    pub(crate) chat_template: Option<Value>,
}

/// A whole reply.
pub(crate) type ChatResponse = Part<'static, Choice>;

/// One of the replies.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) message: Message,
    pub(crate) logprobs: Option<Logprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub(crate) finish_reason: &'static str,
}

/// Log probabilities of a reply's tokens, thinking included.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Logprobs {
    pub(crate) content: Vec<Logprob>,
}

impl Logprobs {
    /// `None` where a step has none.
    pub(crate) fn of(step: &Step, vocab: &Vocab) -> Option<Self> {
        let content: Vec<Logprob> = step.pieces().filter_map(|piece| Logprob::of(piece, vocab)).collect();
        (!content.is_empty()).then_some(Self { content })
    }
}

/// What the assistant says.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Message {
    pub(crate) role: &'static str,
    /// The text; null when there are only calls.
    pub(crate) content: Option<String>,
    /// The thinking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: Function,
}

/// Which tool, and with what.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// JSON text of an object.
    pub(crate) arguments: String,
}

/// A part of a streamed reply, and what drafting had to do with it.
#[derive(Debug, Serialize)]
pub(crate) struct Chunk<'a> {
    #[serde(flatten)]
    pub(crate) part: Part<'a, ChunkChoice>,
    /// With `return_drafts`: on every chunk of an engine step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drafts: Option<Drafts>,
}

/// What drafting had to do with a chunk.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Drafts {
    /// Number of the engine step in this reply; a step may have several chunks, 0 is the prompt's last forward pass.
    cycle: usize,
    /// Tokens that were drafted in the step.
    n_drafted: usize,
    /// Those of them that were accepted.
    n_accepted: usize,
    /// The chunk's text by its tokens.
    pub(crate) parts: Vec<DraftPart>,
}

/// A part of a text.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct DraftPart {
    text: String,
    /// Place in the draft of the token that completed it, from 1; 0: it was not drafted.
    depth: usize,
}

impl Drafts {
    pub(crate) fn of(step: &Step, so_far: &Timings) -> Self {
        Self {
            cycle: so_far.steps,
            n_drafted: step.pieces().next().map_or(0, |piece| piece.draft.n_drafted),
            n_accepted: step.pieces().filter(|piece| piece.draft.depth > 0).count(),
            parts: Vec::new(),
        }
    }
}

impl From<Span> for DraftPart {
    fn from(Span { text, depth }: Span) -> Self {
        Self { text, depth }
    }
}

/// A part of one of the replies.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: ChunkDelta,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// What is new.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// More of the text; null in the first part, which has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<Vec<ToolCallDelta>>,
}

/// What is new of a call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolCallDelta {
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: FunctionDelta,
}

/// What is new of its function.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}
