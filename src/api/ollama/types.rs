//! Ollama's requests and replies as JSON.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::wire::Logprob;

/// The fields of `/api/chat`, beside [`OllamaFields`]. All of them may be left out or null.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct OllamaChatRequest {
    /// The conversation; without messages the model is loaded, or unloaded where `keep_alive` is 0.
    pub(crate) messages: Option<Vec<Value>>,
    /// Tools that may be called, in OpenAI's shape.
    pub(crate) tools: Option<Vec<Value>>,
}

/// The fields of `/api/generate`, beside [`OllamaFields`]. All of them may be left out or null.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct OllamaGenerateRequest {
    /// What the model is told; without it the model is loaded, or unloaded where `keep_alive` is 0.
    pub(crate) prompt: Option<String>,
    /// The text behind the gap that the reply fills.
    pub(crate) suffix: Option<String>,
    /// What the model is told before.
    pub(crate) system: Option<String>,
    /// Not taken from requests: a template is a program.
    pub(crate) template: Option<String>,
    /// What an earlier reply gave under this name: this prompt follows on it.
    pub(crate) context: Option<Vec<u32>>,
    /// Continue the prompt as it stands, without the template.
    pub(crate) raw: Option<bool>,
    /// Images in base64, which stand before the prompt.
    pub(crate) images: Option<Vec<Value>>,
}

/// The fields that both have.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct OllamaFields {
    /// The model's name, with or without the tag `latest`; a server of one model answers to any.
    pub(crate) model: Option<String>,
    /// `json`, or a JSON schema that the reply follows.
    pub(crate) format: Option<Value>,
    /// Sampling and limits; unknown ones are passed over.
    pub(crate) options: Option<Map<String, Value>>,
    /// Answer in lines; true by default.
    pub(crate) stream: Option<bool>,
    /// Whether to think: true, false, `low`, `medium` or `high`.
    pub(crate) think: Option<Value>,
    /// 0 unloads the model after the reply where the server has several; other times are taken and change nothing.
    pub(crate) keep_alive: Option<Value>,
    /// Give log probabilities.
    pub(crate) logprobs: Option<bool>,
    /// Of so many of the likeliest tokens, 0 to 20.
    pub(crate) top_logprobs: Option<i64>,
}

/// A reply, or a line of one. `/api/chat` has a `message`, `/api/generate` a `response`.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct OllamaReply {
    /// As the request names it.
    pub(crate) model: String,
    pub(crate) created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<OllamaMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) logprobs: Vec<Logprob>,
    /// This is the last line.
    pub(crate) done: bool,
    /// `stop`, `length`, `load`, `unload` or `abort`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) done_reason: Option<&'static str>,
    /// Tokens of the prompt and the reply, for a request that follows on them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<Vec<u32>>,
    #[serde(flatten)]
    #[schema(inline)]
    pub(crate) counts: Option<Counts>,
}

/// Times in nanoseconds, and numbers of tokens.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct Counts {
    /// From the request's arrival.
    #[schema(required = false)]
    pub(crate) total_duration: u64,
    /// Until the model was there.
    #[schema(required = false)]
    pub(crate) load_duration: u64,
    /// Tokens of the prompt, those from cached state included.
    #[schema(required = false)]
    pub(crate) prompt_eval_count: usize,
    #[schema(required = false)]
    pub(crate) prompt_eval_duration: u64,
    /// Tokens generated.
    #[schema(required = false)]
    pub(crate) eval_count: usize,
    #[schema(required = false)]
    pub(crate) eval_duration: u64,
}

/// What the assistant says, or more of it.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct OllamaMessage {
    pub(crate) role: &'static str,
    pub(crate) content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<OllamaCall>,
}

/// A call of a tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OllamaCall {
    pub(crate) id: String,
    pub(crate) function: OllamaFunction,
}

/// Which tool, and with what.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OllamaFunction {
    /// Its place among the calls of the reply.
    pub(crate) index: usize,
    pub(crate) name: String,
    #[schema(value_type = Object)]
    pub(crate) arguments: Value,
}
