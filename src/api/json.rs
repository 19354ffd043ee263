//! Bodies in and out: JSON with limits on size, depth and time.
//! Owns the reading of a request's body. Knows no endpoint's fields.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::ApiError;
use crate::state::AppState;

/// The JSON value of a request's body. Nesting ends at 128 levels, which is the reader's own limit.
#[derive(Clone, Debug)]
pub struct Input(pub Value);

impl Input {
    /// One reading of the body; endpoints read their own fields and the common ones from the same value. Unknown fields
    /// are left alone.
    ///
    /// # Errors
    /// 400 with the words of what was expected and found.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_path_to_error::deserialize(&self.0).map_err(|error| {
            let (path, what) = (error.path().to_string(), error.inner().to_string());
            let missing = what.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
            match (path.as_str(), missing) {
                (".", Some(name)) => ApiError::field(name, format!("{name}: this field is expected")),
                (".", None) => ApiError::invalid(what),
                _ => ApiError::field(path.clone(), format!("{path}: {what}")),
            }
        })
    }
}

impl FromRequest<AppState> for Input {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let limits = &state.settings().limits;
        let (parts, body) = request.into_parts();
        check_headers(&parts.headers, limits.max_body)?;
        let bytes = read_body(body, limits.max_body, limits.body_timeout).await?;
        if bytes.is_empty() {
            return Err(ApiError::invalid("the request has no body: a JSON object is expected"));
        }
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::invalid(format!("the request's body is not JSON: {error}")))?;
        if !value.is_object() {
            return Err(ApiError::invalid("the request's body has to be a JSON object"));
        }
        Ok(Self(value))
    }
}

/// A web page of another origin can send any content type but JSON without asking first: JSON only.
fn check_headers(headers: &HeaderMap, max_body: usize) -> Result<(), ApiError> {
    let given = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let media = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media != "application/json" && !(media.starts_with("application/") && media.ends_with("+json")) {
        let message = format!("the content type is `{media}`: send JSON with `Content-Type: application/json`");
        return Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    if headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING) {
        return Err(ApiError::invalid("Content-Length and Transfer-Encoding together: send one of them"));
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    match length {
        Some(n) if n > max_body as u64 => Err(too_large(max_body)),
        _ => Ok(()),
    }
}

/// The whole body, within `max` bytes and `timeout`.
///
/// # Errors
/// 413, 408, or 400 when the connection breaks.
pub(crate) async fn read_body(body: Body, max: usize, timeout: Duration) -> Result<bytes::Bytes, ApiError> {
    match tokio::time::timeout(timeout, Limited::new(body, max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(max)),
        Ok(Err(error)) => Err(ApiError::invalid(format!("the request's body could not be read: {error}"))),
        Err(_) => {
            let message = format!("the request's body was not complete after {} s", timeout.as_secs());
            Err(ApiError::refused(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

fn too_large(max: usize) -> ApiError {
    let message = format!("the request's body is larger than {max} bytes, which is this server's limit");
    ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message)
}

/// A JSON response.
#[derive(Clone, Debug)]
pub struct Output<T>(pub T);

impl<T: Serialize> IntoResponse for Output<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
            Err(error) => ApiError::server(format!("the answer has no JSON form: {error}")).into_response(),
        }
    }
}
