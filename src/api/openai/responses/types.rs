//! `/v1/responses` as JSON: what is read and what is written.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::tools::{Origin, ToolMap, custom_input};
use crate::blocks::{Block, Kind};
use crate::wire::{Logprob, TimingsBody};

/// The fields of a request, beside [`crate::Params`].
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ResponsesRequest {
    /// The model's name; a server of one model answers to any.
    pub(crate) model: Option<String>,
    /// A text, or items: messages, reasoning, and the calls and outputs of functions, custom tools and the client's shell. Items of
    /// tools that a server brings are passed over.
    #[serde(default)]
    pub(crate) input: Value,
    /// What the model is told before all of `input`.
    pub(crate) instructions: Option<String>,
    /// Most tokens to generate, thinking included.
    pub(crate) max_output_tokens: Option<i64>,
    /// Functions that may be called, alone or in namespaces, and custom tools. Others are left out with a warning.
    pub(crate) tools: Option<Vec<Value>>,
    /// `none`, `auto`, `required`, or a function.
    pub(crate) tool_choice: Option<Value>,
    /// More than one call in a response.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// The form of the text.
    pub(crate) text: Option<TextOptions>,
    /// How to think.
    pub(crate) reasoning: Option<ReasoningOptions>,
    /// `message.output_text.logprobs` gives log probabilities; other words are left alone.
    pub(crate) include: Option<Vec<String>>,
    /// Log probabilities of so many of the likeliest tokens, 0 to 20.
    pub(crate) top_logprobs: Option<i64>,
    /// Given back with the response.
    pub(crate) metadata: Option<Map<String, Value>>,
    /// Given back with the response.
    pub(crate) user: Option<String>,
    /// Goes on with the conversation of this response, which the server has kept. `instructions` and tools are those of this request.
    pub(crate) previous_response_id: Option<String>,
    /// Keep the response, so that others can go on with it; true by default.
    pub(crate) store: Option<bool>,
    /// Not served: conversations that a server keeps under names of their own.
    pub(crate) conversation: Option<Value>,
    /// Not served: stored prompts.
    pub(crate) prompt: Option<Value>,
    /// Not served: responses that are fetched later.
    pub(crate) background: Option<bool>,
}

/// The form of the text.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct TextOptions {
    /// `{"type": "text"}`, `{"type": "json_object"}` or `{"type": "json_schema", "schema": ...}`.
    pub(crate) format: Option<Value>,
}

/// How to think.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct ReasoningOptions {
    /// `none`, `minimal`, `low`, `medium` or `high`.
    pub(crate) effort: Option<String>,
}

/// A response, whole or on its way.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ResponseBody {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created_at: u64,
    /// `in_progress`, `completed`, `incomplete` or `failed`.
    pub(crate) status: &'static str,
    pub(crate) background: bool,
    pub(crate) error: Option<ResponseError>,
    pub(crate) incomplete_details: Option<Incomplete>,
    pub(crate) instructions: Option<String>,
    pub(crate) max_output_tokens: Option<usize>,
    pub(crate) model: String,
    pub(crate) output: Vec<OutputItem>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) previous_response_id: Option<String>,
    #[schema(value_type = Object)]
    pub(crate) reasoning: Value,
    /// It is kept, for as long as there is room.
    pub(crate) store: bool,
    pub(crate) temperature: f32,
    #[schema(value_type = Object)]
    pub(crate) text: Value,
    pub(crate) tool_choice: Value,
    pub(crate) tools: Vec<Value>,
    pub(crate) top_logprobs: usize,
    pub(crate) top_p: f32,
    /// `disabled`: an input that does not fit is an error.
    pub(crate) truncation: &'static str,
    pub(crate) usage: Option<ResponseUsage>,
    pub(crate) user: Option<String>,
    #[schema(value_type = Object)]
    pub(crate) metadata: Map<String, Value>,
    /// What of the request was left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<TimingsBody>,
}

/// Why a response failed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ResponseError {
    pub(crate) code: String,
    pub(crate) message: String,
}

/// Why a response is not whole.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Incomplete {
    /// `max_output_tokens`: as many tokens as were asked for, or as fit.
    pub(crate) reason: &'static str,
}

/// Counts of tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ResponseUsage {
    pub(crate) input_tokens: usize,
    pub(crate) input_tokens_details: InputDetails,
    pub(crate) output_tokens: usize,
    pub(crate) output_tokens_details: OutputDetails,
    pub(crate) total_tokens: usize,
}

/// Parts of the input.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InputDetails {
    /// From cached state.
    pub(crate) cached_tokens: usize,
}

/// Parts of the output.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OutputDetails {
    /// Thinking.
    pub(crate) reasoning_tokens: usize,
}

/// A part of a response.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// What it thinks.
    Reasoning { id: String, summary: Vec<Value>, content: Vec<Part>, status: &'static str },
    /// What it says.
    Message { id: String, status: &'static str, role: &'static str, content: Vec<Part> },
    /// What it calls.
    FunctionCall {
        id: String,
        status: &'static str,
        call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        arguments: String,
    },
    /// A call of a tool whose input is a text.
    CustomToolCall { id: String, status: &'static str, call_id: String, name: String, input: String },
}

/// The content of an item.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Part {
    /// Of a message.
    OutputText { text: String, annotations: Vec<Value>, logprobs: Vec<Logprob> },
    /// Of reasoning.
    ReasoningText { text: String },
}

impl Part {
    /// `None` for calls, which have none.
    pub(crate) fn of(block: &Block, logprobs: Vec<Logprob>) -> Option<Self> {
        let text = block.text.clone();
        match block.kind {
            Kind::Text => Some(Self::OutputText { text, annotations: Vec::new(), logprobs }),
            Kind::Reasoning => Some(Self::ReasoningText { text }),
            Kind::Call(_) => None,
        }
    }
}

impl OutputItem {
    /// An item that has begun.
    pub(super) fn begun(block: &Block, tools: &ToolMap) -> Self {
        Self::new(block, tools, "in_progress", Vec::new(), None)
    }

    /// An item as it stands in the end.
    pub(super) fn ended(block: &Block, tools: &ToolMap, status: &'static str, logprobs: Vec<Logprob>) -> Self {
        Self::new(block, tools, status, Part::of(block, logprobs).into_iter().collect(), Some(&block.text))
    }

    fn new(block: &Block, tools: &ToolMap, status: &'static str, content: Vec<Part>, arguments: Option<&str>) -> Self {
        let id = block.id.clone();
        match &block.kind {
            Kind::Reasoning => Self::Reasoning { id, summary: Vec::new(), content, status },
            Kind::Text => Self::Message { id, status, role: "assistant", content },
            Kind::Call(name) => {
                let call_id = id.replacen(CALL_ITEM, "call_", 1);
                match tools.origin(name) {
                    Origin::Custom => {
                        let input = arguments.map(custom_input).unwrap_or_default();
                        Self::CustomToolCall { id, status, call_id, name: name.clone(), input }
                    }
                    Origin::Function { namespace, name } => {
                        let arguments = arguments.unwrap_or_default().to_owned();
                        Self::FunctionCall { id, status, call_id, namespace, name, arguments }
                    }
                }
            }
        }
    }
}

impl ResponsesRequest {
    /// The text's options as they are given back.
    pub(super) fn text_given(&self) -> Value {
        let format = self.text.as_ref().and_then(|text| text.format.clone());
        json!({ "format": format.unwrap_or_else(|| json!({ "type": "text" })) })
    }
}

/// What the names of calls begin with, as items.
pub(super) const CALL_ITEM: &str = "fc_";
