//! What stands before every handler: request ids, names and keys, rate limits, the log line of a request.
//! Knows paths only where they are open to everybody.

use std::net::IpAddr;
use std::time::Instant;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::Scope;
use hyper::header::{AUTHORIZATION, CONNECTION, HeaderMap, HeaderName, HeaderValue};
use subtle::{Choice, ConstantTimeEq};
use tracing::Instrument;

use crate::error::ApiError;
use crate::hosts::check_site;
use crate::ids;
use crate::metrics::{HttpLabels, tenths};
use crate::rate::Client;
use crate::serve::Peer;
use crate::settings::CacheScope;
use crate::state::{AppState, Course};
use crate::web;
use crate::work::Caller;

/// Paths for whoever keeps the server alive, by whatever name and without a key.
fn is_health(path: &str) -> bool {
    matches!(path, "/health" | "/v1/health")
}

/// Paths that need no key: pages hold nothing but themselves.
fn is_open(state: &AppState, path: &str) -> bool {
    is_health(path) || state.settings().webui && web::PATHS.contains(&path)
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id of a client's that is taken over.
const MAX_ID: usize = 64;

/// Lets a request in or not, and tells of it.
pub(crate) async fn gate(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = given_id(request.headers()).unwrap_or_else(|| ids::new("req_"));
    let path = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|info| info.0.0);
    let span = tracing::info_span!("request", id = %id);
    let response = async {
        let let_in = admit(&state, &request, &path, peer);
        let mut response = match let_in {
            Ok(client) => {
                request.extensions_mut().insert(caller(&state, client));
                next.run(request).await
            }
            Err(error) => error.into_response(),
        };
        if state.course() != Course::Open {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let status = response.status().as_u16();
        let ms = tenths(start.elapsed().as_secs_f64() * 1e3);
        // What can come as often as anybody likes is not to fill the log.
        match is_open(&state, &path) || status == 429 {
            true => tracing::debug!(%method, %path, status, ms, "answered"),
            false => tracing::info!(%method, %path, status, ms, "answered"),
        }
        response
    }
    .instrument(span)
    .await;
    let response = crate::ollama::in_its_shape(&path, response);
    let mut response = crate::anthropic::in_its_shape(&path, response, &id);
    state.metrics().http.get_or_create(&HttpLabels { path, status: response.status().as_u16() }).inc();
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

fn given_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (!id.is_empty() && id.len() <= MAX_ID && id.chars().all(plain)).then(|| id.to_owned())
}

fn admit(state: &AppState, request: &Request, path: &str, peer: Option<IpAddr>) -> Result<Client, ApiError> {
    if is_health(path) {
        return Ok(Client::Unknown);
    }
    state.hosts().check(request.uri(), request.headers())?;
    check_site(state.settings(), request.method(), request.headers())?;
    if is_open(state, path) {
        return Ok(Client::Unknown);
    }
    let keys = &state.settings().api_keys;
    let now = Instant::now();
    let who = match known_key(keys, request.headers()) {
        _ if keys.is_empty() => Client::at(peer),
        Some(key) => Client::Key(key),
        // A right key is let in at any time: others may be behind the same address.
        None => {
            let wait = state.strangers().take(Client::at(peer), now);
            return Err(wait.map_or_else(ApiError::unauthorised, |wait| ApiError::too_many(wait.as_secs() + 1)));
        }
    };
    match state.rate().and_then(|rate| rate.take(who, now)) {
        Some(wait) => Err(ApiError::too_many(wait.as_secs() + 1)),
        None => Ok(who),
    }
}

/// Each key has a scope of its own, unless all share one; without keys there is one scope.
fn caller(state: &AppState, client: Client) -> Caller {
    let scope = match (client, state.settings().cache_scope) {
        (Client::Key(i), CacheScope::Key) => {
            state.settings().api_keys.get(i).map_or_else(Scope::default, |key| Scope::of_key(key))
        }
        _ => Scope::default(),
    };
    let key = if let Client::Key(i) = client { Some(i) } else { None };
    Caller { scope, key, client }
}

/// The number of the key that was sent. Every key is compared, in a time that does not depend on where they differ.
fn known_key(keys: &[String], headers: &HeaderMap) -> Option<usize> {
    let bearer = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(|v| v.strip_prefix("Bearer "));
    let given = bearer.or_else(|| headers.get("x-api-key").and_then(|v| v.to_str().ok()))?.trim();
    let mut found = None;
    for (i, key) in keys.iter().enumerate() {
        let same: Choice = key.as_bytes().ct_eq(given.as_bytes());
        if bool::from(same) {
            found = Some(i);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_in_either_header_and_have_to_be_whole() {
        let keys = ["alpha".to_owned(), "beta".to_owned()];
        let sent = |name: &'static str, value: &'static str| {
            known_key(&keys, &HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]))
        };
        assert_eq!(sent("authorization", "Bearer beta"), Some(1));
        assert_eq!(sent("x-api-key", "alpha"), Some(0));
        for wrong in ["Bearer bet", "Bearer betaa", "Bearer ", "beta", "Basic beta"] {
            assert_eq!(sent("authorization", wrong), None, "{wrong}");
        }
    }
}
