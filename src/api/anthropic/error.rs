//! Errors in the shape of Anthropic's interface. Every response on its paths is passed through here, whoever made it.

use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;

/// The body of an error, also as an event of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnthropicError {
    /// `error`.
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicErrorDetail,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

/// The object within.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnthropicErrorDetail {
    /// The class of errors.
    #[serde(rename = "type")]
    kind: &'static str,
    /// For people.
    message: String,
}

impl AnthropicError {
    pub(crate) fn new(error: &ApiError, request_id: Option<String>) -> Self {
        let kind = match error.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "api_error",
        };
        let error = AnthropicErrorDetail { kind, message: error.message.clone() };
        Self { kind: "error", error, request_id }
    }
}

/// A response on one of Anthropic's paths: errors in its shape, the request's id under its name. Others are left alone.
pub(crate) fn in_its_shape(path: &str, response: Response, request_id: &str) -> Response {
    if !path.starts_with("/v1/messages") {
        return response;
    }
    let mut response = match response.extensions().get::<ApiError>() {
        Some(error) => error.response_as(&AnthropicError::new(error, Some(request_id.to_owned())), &response),
        None => response,
    };
    if let Ok(id) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert(HeaderName::from_static("request-id"), id);
    }
    response
}
