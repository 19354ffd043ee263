//! `/v1/messages` as JSON: what is read and what is written.

use engine::Timings;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::blocks::{Block, Kind};
use crate::wire::TimingsBody;

/// The fields of a request, beside [`crate::Params`].
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    /// The model's name; a server of one model answers to any.
    pub(crate) model: Option<String>,
    /// The conversation.
    pub(crate) messages: Vec<InputMessage>,
    /// What the model is told before: a text, or blocks of text.
    #[schema(value_type = Option<Value>)]
    pub(crate) system: Option<Content>,
    /// Texts that end the reply.
    pub(crate) stop_sequences: Option<Vec<String>>,
    /// Tools that may be called.
    pub(crate) tools: Option<Vec<InputTool>>,
    /// Which of them.
    pub(crate) tool_choice: Option<InputToolChoice>,
    /// Whether to think; left out is no.
    pub(crate) thinking: Option<Thinking>,
    /// The form of the reply.
    pub(crate) output_config: Option<OutputConfig>,
    /// What of earlier turns stays: of `edits` those of a type `clear_thinking_*` with `keep: "all"` leave their thinking in the
    /// prompt, where the template knows how.
    pub(crate) context_management: Option<Value>,
}

/// One turn of the conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct InputMessage {
    /// `user` or `assistant`.
    pub(crate) role: String,
    /// A text, or blocks: `text`, `thinking`, `tool_use`, `tool_result`, `document` and `search_result` with their texts, others as a
    /// note.
    #[schema(value_type = Value)]
    pub(crate) content: Content,
}

/// A text or a list of blocks.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of blocks expected")]
pub(crate) enum Content {
    /// A text.
    Text(String),
    /// Blocks.
    Blocks(Vec<Value>),
}

/// A tool that the client has.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct InputTool {
    /// `custom`, or left out; `bash_*`, `text_editor_*` and `memory_*`, which the client runs. Others are left out with a warning.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// The JSON schema of its arguments.
    #[schema(value_type = Option<Object>)]
    pub(crate) input_schema: Option<Value>,
}

/// Which tools may be called.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct InputToolChoice {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// With `tool`: this one.
    pub(crate) name: Option<String>,
    /// At most one call.
    pub(crate) disable_parallel_tool_use: Option<bool>,
}

/// Whether to think.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct Thinking {
    /// `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Most tokens of thinking.
    pub(crate) budget_tokens: Option<i64>,
}

/// The form of the reply, and how hard to think.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct OutputConfig {
    /// `low`, `medium`, `high`, `xhigh` or `max`, where thinking is on.
    pub(crate) effort: Option<String>,
    /// `{"type": "json_schema", "schema": ...}`.
    pub(crate) format: Option<Value>,
}

/// A whole reply.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageBody {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) role: &'static str,
    pub(crate) model: String,
    pub(crate) content: Vec<ContentBlock>,
    /// `end_turn`, `max_tokens`, `model_context_window_exceeded`, `stop_sequence` or `tool_use`.
    pub(crate) stop_reason: Option<&'static str>,
    pub(crate) stop_sequence: Option<String>,
    pub(crate) usage: MessageUsage,
    /// What of the request was left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<TimingsBody>,
}

/// A part of a reply.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentBlock {
    /// What it says.
    Text { text: String },
    /// What it thinks; not signed.
    Thinking { thinking: String, signature: &'static str },
    /// What it calls.
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = Object)]
        input: Value,
    },
}

impl From<&Block> for ContentBlock {
    fn from(block: &Block) -> Self {
        match &block.kind {
            Kind::Text => Self::Text { text: block.text.clone() },
            Kind::Reasoning => Self::Thinking { thinking: block.text.clone(), signature: "" },
            Kind::Call(name) => {
                // The parser writes whole objects; while one is open there is none yet.
                let input = serde_json::from_str(&block.text).unwrap_or_else(|_| Value::Object(Default::default()));
                Self::ToolUse { id: block.id.clone(), name: name.clone(), input }
            }
        }
    }
}

/// Counts of tokens: those of the prompt are `input_tokens` and `cache_read_input_tokens` together.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct MessageUsage {
    /// Of the prompt, computed.
    pub(crate) input_tokens: usize,
    /// Of the prompt, known already but kept anew: always 0.
    pub(crate) cache_creation_input_tokens: usize,
    /// Of the prompt, from cached state.
    pub(crate) cache_read_input_tokens: usize,
    /// Generated.
    pub(crate) output_tokens: usize,
}

impl MessageUsage {
    /// Of a prompt.
    pub(crate) fn of_prompt(n_prompt: usize, n_cached: usize) -> Self {
        Self { input_tokens: n_prompt - n_cached, cache_read_input_tokens: n_cached, ..Self::default() }
    }

    /// Of a whole reply.
    pub(crate) fn of(timings: &Timings) -> Self {
        let prompt = Self::of_prompt(timings.prompt_tokens, timings.cached_tokens);
        Self { output_tokens: timings.generated_tokens, ..prompt }
    }
}

/// The response of `/v1/messages/count_tokens`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    /// Tokens of the prompt that the request would make.
    pub(crate) input_tokens: usize,
}
