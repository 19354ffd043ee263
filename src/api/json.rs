//! Bodies in and out: JSON with limits on size, depth, number of values and time.
//! Owns the reading of a request's body. Knows no endpoint's fields.

use std::sync::Arc;

use axum::extract::{FromRequest, OptionalFromRequest, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::blocking::blocking;
use crate::bodies::{self, Held};
use crate::error::ApiError;
use crate::hosts;
use crate::state::AppState;
use crate::whole::Whole;

/// The body of a request: a JSON object, or a list where an endpoint takes one. Endpoints read their own fields and the common
/// ones from the same bytes, without a tree of values in between; what they do not know is passed over.
///
/// It has a share of the memory for bodies until it is dropped: drop it when the response begins.
#[derive(Clone, Debug)]
pub struct Input {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl Input {
    /// The fields that `T` knows.
    ///
    /// # Errors
    /// 400 with the words of what was expected and found.
    pub async fn read<T: DeserializeOwned + Send + 'static>(&self) -> Result<T, ApiError> {
        self.read_as(b'{', "object").await
    }

    /// The values of a body that is a list.
    ///
    /// # Errors
    /// As [`Input::read`].
    pub async fn read_list<T: DeserializeOwned + Send + 'static>(&self) -> Result<Vec<T>, ApiError> {
        self.read_as(b'[', "array").await
    }

    /// A body that begins with `first`: a list would do for the fields of an object otherwise, in their order.
    async fn read_as<T: DeserializeOwned + Send + 'static>(
        &self,
        first: u8,
        kind: &'static str,
    ) -> Result<T, ApiError> {
        let bytes = self.bytes.clone();
        let read = move || match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(&found) if found == first => parse(&bytes),
            _ => Err(not_json(&bytes, kind)),
        };
        where_it_may(self.bytes.len(), read).await
    }

    /// `None`: there is no body.
    async fn receive(request: Request, state: &AppState) -> Result<Option<Self>, ApiError> {
        let limits = &state.settings().limits;
        let (parts, body) = request.into_parts();
        check_headers(&parts.headers, limits.max_body)?;
        let (bytes, mut held) = state.bodies().receive(body, limits.body_timeout).await?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let to_check = bytes.clone();
        let n_values = where_it_may(bytes.len(), move || check(&to_check)).await?;
        state.bodies().prepare(&mut held, bytes.len(), n_values, limits.body_timeout).await?;
        Ok(Some(Self { bytes, _held: Arc::new(held) }))
    }
}

impl FromRequest<AppState> for Input {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let input = Self::receive(request, state).await?;
        input.ok_or_else(|| ApiError::invalid("the request has no body: JSON is expected"))
    }
}

/// For endpoints that can do without a body. Browsers have to declare its type all the same.
impl OptionalFromRequest<AppState> for Input {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Option<Self>, ApiError> {
        Self::receive(request, state).await
    }
}

/// Does work on a body of so many bytes here if it is short, else where it holds up nobody.
async fn where_it_may<T: Send + 'static>(
    n_bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if n_bytes <= bodies::SMALL { work() } else { blocking(work).await }
}

/// What `T` knows of a JSON text.
///
/// # Errors
/// As [`Input::read`].
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut track = serde_path_to_error::Track::new();
    let read = T::deserialize(serde_path_to_error::Deserializer::new(Whole(&mut json), &mut track));
    let error = match read.and_then(|value| json.end().map(|()| value)) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    // A number that its field cannot hold is not called data, and is JSON all the same.
    if !error.is_data() && !error.to_string().starts_with("number out of range") {
        return Err(ApiError::invalid(format!("the request's body is not JSON: {error}")));
    }
    // The path says where it is.
    let what = error.to_string();
    let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
    let missing = what.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    let path = track.path().to_string();
    Err(match (path.as_str(), missing) {
        (".", Some(name)) => ApiError::field(name, format!("{name}: this field is expected")),
        (".", None) => ApiError::invalid(what),
        _ => ApiError::field(path.clone(), format!("{path}: {what}")),
    })
}

/// Holds a body to its limits before anything is made of it: each value takes memory, and each level stack. Gives the
/// number of values.
fn check(bytes: &[u8]) -> Result<usize, ApiError> {
    let (mut n_values, mut depth, mut in_text, mut escaped) = (0_usize, 0_usize, false, false);
    for &byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => (n_values, depth) = (n_values + 1, depth + 1),
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => n_values += 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(ApiError::invalid(format!("the request's body is nested more than {MAX_DEPTH} levels deep")));
        }
    }
    if n_values > MAX_VALUES {
        let message = format!("the request's body has more than {MAX_VALUES} values, which is this server's limit");
        return Err(ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{' | b'[') => Ok(n_values),
        _ => Err(not_json(bytes, "object")),
    }
}

/// Why a body is not what is expected: no JSON at all, or JSON of another kind.
fn not_json(bytes: &[u8], kind: &str) -> ApiError {
    let other = ApiError::invalid(format!("the request's body has to be a JSON {kind}"));
    parse::<IgnoredAny>(bytes).err().unwrap_or(other)
}

/// A web page of another origin can send any content type but JSON without asking first: browsers have to declare JSON. Other
/// programs often declare a form (`curl -d`) or nothing, and mean JSON.
fn check_headers(headers: &HeaderMap, max_body: usize) -> Result<(), ApiError> {
    let given = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let media = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = media == "application/json" || media.starts_with("application/") && media.ends_with("+json");
    if !is_json && hosts::is_from_browser(headers) {
        let found = if media.is_empty() {
            "no content type is given".to_owned()
        } else {
            format!("the content type is `{media}`")
        };
        let message = format!("{found}: send JSON with `Content-Type: application/json`");
        return Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    if headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING) {
        return Err(ApiError::invalid("Content-Length and Transfer-Encoding together: send one of them"));
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    match length {
        Some(n) if n > max_body as u64 => Err(ApiError::too_large(max_body)),
        _ => Ok(()),
    }
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

/// Levels of lists and objects, which is the JSON reader's own limit too.
const MAX_DEPTH: usize = 128;

/// Values of a body: more than any context has tokens.
const MAX_VALUES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_levels_are_counted_outside_of_texts_only() {
        let zeros = |n: usize| format!("{{\"prompt\":[{}0]}}", "0,".repeat(n));
        assert_eq!(check(zeros(MAX_VALUES - 2).as_bytes()).unwrap(), MAX_VALUES);
        let error = check(zeros(MAX_VALUES).as_bytes()).expect_err("too many");
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE, "{error}");
        assert_eq!(check(b"[1, 2]").unwrap(), 2, "whoever reads it says whether it may be a list");
        let text = format!("{{\"prompt\":\"{}\\\"{}\"}}", ",".repeat(2 * MAX_VALUES), "[".repeat(1000));
        assert_eq!(check(text.as_bytes()).unwrap(), 1);
        assert!(check(format!("{{\"x\":{}", "[".repeat(MAX_DEPTH)).as_bytes()).is_err());
        for (body, words) in [("7", "object"), ("x", "not JSON"), ("\"", "not JSON"), (" ", "not JSON")] {
            let error = check(body.as_bytes()).expect_err(body);
            assert!(error.message.contains(words), "{body}: {error}");
        }
    }
}
