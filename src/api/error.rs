//! Errors as clients see them: a status, a type, a message that says what to do.
//! Owns the shape of OpenAI's error object; other families wrap the same facts in theirs. Knows no endpoint.

use axum::response::{IntoResponse, Response};
use engine::sample::{Parameter, SampleError};
use engine::{RequestError, SubmitError};
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use serde::Serialize;
use session::{FormError, PrepareError, SightError};
use utoipa::ToSchema;

/// Why a request is answered with an error.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// OpenAI's error type.
    pub kind: &'static str,
    /// For machines: what happened; absent where the type says all.
    pub code: Option<&'static str>,
    /// The field of the request that is at fault, as far as it is known.
    pub param: Option<String>,
    /// For people: what happened and what to do.
    pub message: String,
    /// Seconds after which trying again makes sense.
    pub retry_after: Option<u64>,
    /// Of a prompt that is too long: its tokens, and those of the context.
    pub context: Option<Box<(usize, usize)>>,
}

/// The body of an error.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What happened.
    pub error: ErrorDetail,
}

/// The object within.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// For people.
    pub message: String,
    /// The class of errors.
    #[serde(rename = "type")]
    pub kind: String,
    /// The field at fault.
    pub param: Option<String>,
    /// For machines.
    pub code: Option<String>,
    /// Of a prompt that is too long: its tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_prompt_tokens: Option<usize>,
    /// Of a prompt that is too long: tokens that the context has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_ctx: Option<usize>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into(), retry_after: None, context: None }
    }

    /// 400: the request cannot be served as it stands.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, message)
    }

    /// As [`ApiError::invalid`], with the field at fault.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::invalid(message) }
    }

    /// Another status of the client's fault.
    pub fn refused(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, INVALID, message)
    }

    /// 401: no key, or not one of ours.
    pub fn unauthorised() -> Self {
        let message = "this server needs an API key: send `Authorization: Bearer KEY` (or `x-api-key: KEY`)";
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message) }
    }

    /// 404: no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self { code: Some("not_found"), ..Self::new(StatusCode::NOT_FOUND, "not_found_error", message) }
    }

    /// 404: no such model.
    pub fn no_model(name: &str, known: &[String]) -> Self {
        let message = format!("the model `{}` does not exist: this server has {}", shortened(name), known.join(", "));
        Self { code: Some("model_not_found"), param: Some("model".into()), ..Self::not_found(message) }
    }

    /// 429: too many requests from this client.
    pub fn too_many(retry_after: u64) -> Self {
        let message = format!("too many requests from this client: try again in {retry_after} s");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("rate_limit_exceeded"), retry_after: Some(retry_after), ..error }
    }

    /// 429: too many connections from this address.
    pub fn too_many_connections(max: usize) -> Self {
        let message = format!(
            "this address has its {max} connections already: use them again, or start the server with a larger \
             --max-connections-per-address (where a proxy connects for many clients, as large as --max-connections)"
        );
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("too_many_connections"), retry_after: Some(RETRY_WHEN_FULL), ..error }
    }

    /// 503: all connections are taken.
    pub fn no_place() -> Self {
        let error = Self::unavailable("all of --max-connections are taken: try again", Some(RETRY_WHEN_FULL));
        Self { code: Some("too_many_connections"), ..error }
    }

    /// 400: a prompt of `n_prompt` tokens is too long for the context of `n_ctx`. Type and numbers are those of llama.cpp's server,
    /// the code is OpenAI's: clients look at either.
    pub fn context_exceeded(param: &str, message: String, n_prompt: usize, n_ctx: usize) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "exceed_context_size_error", message);
        let (code, param) = (Some("context_length_exceeded"), Some(param.to_owned()));
        Self { code, param, context: Some(Box::new((n_prompt, n_ctx))), ..error }
    }

    /// 413: a body over the limit.
    pub fn too_large(max: usize) -> Self {
        let message = format!("the request's body is larger than {max} bytes, which is this server's limit");
        Self::refused(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// 503: the memory for bodies is taken.
    pub fn too_many_bodies() -> Self {
        let message = "too many large requests are being read and prepared: try again";
        Self { code: Some("too_many_bodies"), ..Self::unavailable(message, Some(RETRY_WHEN_FULL)) }
    }

    /// 501: this server was not started for that.
    pub fn not_supported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// 503: later, perhaps.
    pub fn unavailable(message: impl Into<String>, retry_after: Option<u64>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        Self { retry_after, ..error }
    }

    /// 504: it took longer than this server allows.
    pub fn timeout(seconds: u64) -> Self {
        let message = format!("the answer was not complete after {seconds} s, which is this server's limit");
        Self { code: Some("timeout"), ..Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message) }
    }

    /// 500: our fault.
    pub fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The server ends before the reply did.
    pub fn shutdown() -> Self {
        let error = Self::unavailable("the server is shutting down: this answer is not complete", None);
        Self { code: Some("server_shutdown"), ..error }
    }

    /// The body, in OpenAI's shape.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            error: ErrorDetail {
                message: self.message.clone(),
                kind: self.kind.to_owned(),
                param: self.param.clone(),
                code: self.code.map(str::to_owned),
                n_prompt_tokens: self.context.as_ref().map(|of| of.0),
                n_ctx: self.context.as_ref().map(|of| of.1),
            },
        }
    }

    /// `response`, which tells this error, with a body of another family's shape.
    pub(crate) fn response_as(&self, body: &impl Serialize, response: &Response) -> Response {
        let mut shaped = self.response_with(body);
        // What other layers have added stays.
        for (name, value) in response.headers().iter().filter(|(name, _)| **name != CONTENT_LENGTH) {
            shaped.headers_mut().entry(name).or_insert_with(|| value.clone());
        }
        shaped
    }

    /// A response with this error's status and headers and a body of another family's shape.
    pub fn response_with(&self, body: &impl Serialize) -> Response {
        let text = serde_json::to_vec(body).unwrap_or_default();
        let mut response = (self.status, [(CONTENT_TYPE, "application/json")], text).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }

    /// The response to a probe, which asks whether there is something to be told: the log has no line of it.
    pub(crate) fn into_probe_response(self) -> Response {
        let mut response = self.response_with(&self.body());
        // For the family of endpoints that says it in another shape.
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), message = %self.message, "request not served");
        }
        self.into_probe_response()
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let message = error.to_string();
        let param = match &error {
            RequestError::EmptyPrompt | RequestError::Token { .. } | RequestError::Boundaries { .. } => "prompt",
            RequestError::PromptTooLong { n_prompt, n_ctx } => {
                // Clients know this error by llama.cpp's words.
                let message = format!(
                    "the request exceeds the available context size: its prompt has {n_prompt} tokens, and prompt and \
                     answer together may have {n_ctx}; shorten it, or start the server with a larger --ctx-size"
                );
                return Self::context_exceeded("prompt", message, *n_prompt, *n_ctx);
            }
            RequestError::Logprobs { .. } => "top_logprobs",
            RequestError::Stop(_) => "stop",
            RequestError::Adapters(_) => "lora",
            RequestError::Picture { .. } | RequestError::LongPicture { .. } => "messages",
            RequestError::Sampling(error) => return Self::from(error.clone()),
        };
        Self::field(param, message)
    }
}

impl From<PrepareError> for ApiError {
    fn from(error: PrepareError) -> Self {
        let message = error.to_string();
        match error {
            PrepareError::NoTemplate => {
                Self::invalid("the model file has no chat template: use /v1/completions with a prompt of your own")
            }
            PrepareError::NoInfill => Self::not_supported(message),
            PrepareError::Given { field, .. } => Self::field(field, message),
            PrepareError::Form { error: FormError::Busy, .. } => {
                Self::unavailable(FormError::Busy.to_string(), Some(1))
            }
            PrepareError::Form { error: error @ FormError::Broken(_), .. } => Self::server(error.to_string()),
            PrepareError::Form { field, .. } => Self::field(field, message),
            PrepareError::Picture { error: SightError::Run(_), .. } => Self::server(message),
            PrepareError::Picture { .. } | PrepareError::Places(_) => Self::field("messages", message),
            PrepareError::Request(error) => Self::from(error),
            PrepareError::Abandoned => Self::unavailable(message, None),
        }
    }
}

impl From<SampleError> for ApiError {
    fn from(error: SampleError) -> Self {
        Self { param: sampling_field(&error).map(str::to_owned), ..Self::invalid(error.to_string()) }
    }
}

/// The field of a request that sets what is out of range.
fn sampling_field(error: &SampleError) -> Option<&'static str> {
    let name = match error {
        SampleError::OutOfRange { name: "logit_bias", .. } | SampleError::UnknownToken { .. } => {
            return Some("logit_bias");
        }
        SampleError::OutOfRange { name, .. } => name,
        SampleError::TooMany { name, .. } => return Some(name),
        SampleError::BreakerLength { .. } => "dry_sequence_breakers",
        SampleError::UnknownStage { .. } => "stages",
        SampleError::VocabularySize { .. } => return None,
    };
    Parameter::named(name)?.fields.first().copied()
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Full { .. } => {
                Self { code: Some("queue_full"), ..Self::unavailable(message, Some(RETRY_WHEN_FULL)) }
            }
            SubmitError::TooMany { .. } => Self::field("n", message),
            SubmitError::Sampling(error) => Self::from(error),
            // The model is loaded again by the next request.
            SubmitError::Stopped => Self::unavailable(message, Some(RETRY_WHEN_FULL)),
            SubmitError::OtherLimits { .. } => Self::server(message),
        }
    }
}

/// A text of the client's, short enough to be told back.
pub(crate) fn shortened(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

const INVALID: &str = "invalid_request_error";

/// Seconds: a queue moves on when a reply ends.
const RETRY_WHEN_FULL: u64 = 1;
