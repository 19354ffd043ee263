//! Errors in the shape of Ollama's interface. Every response on its paths is passed through here, whoever made it.

use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;

/// The body of an error, also as the last line of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaError {
    /// For people.
    error: String,
}

impl OllamaError {
    pub(crate) fn new(error: &ApiError) -> Self {
        Self { error: error.message.clone() }
    }
}

/// A response on one of Ollama's paths: errors in its shape. Others are left alone.
pub(crate) fn in_its_shape(path: &str, response: Response) -> Response {
    match response.extensions().get::<ApiError>() {
        Some(error) if path.starts_with("/api/") => error.response_as(&OllamaError::new(error), &response),
        _ => response,
    }
}
