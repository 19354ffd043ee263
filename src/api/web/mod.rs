//! The web pages: a chat at `/`, figures at `/dashboard`, and the files that they are made of.
//! Owns their bytes and the headers that keep them to themselves. What they do they do through the other endpoints.

use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

use crate::error::ApiError;
use crate::ollama;
use crate::state::AppState;

/// The routes of all pages. They hold nothing of anybody's, so they need no key.
pub(crate) const PATHS: [&str; 3] = ["/", "/dashboard", "/assets/{name}"];

/// Adds the pages.
pub(crate) fn routes(router: Router<AppState>) -> Router<AppState> {
    let [chat, dashboard, assets] = PATHS;
    router
        .route(chat, get(front))
        .route(dashboard, get(async || page(include_str!("dashboard.html"), SELF)))
        .route(assets, get(asset))
}

/// The chat, unless the client is a program that looks for Ollama.
async fn front(headers: HeaderMap) -> Response {
    match ollama::probes(&headers) {
        true => ollama::probe().await.into_response(),
        false => page(include_str!("chat.html"), ANY),
    }
}

/// The files that pages load.
const ASSETS: &[(&str, &str)] = &[
    ("style.css", include_str!("style.css")),
    ("common.js", include_str!("common.js")),
    ("chat.js", include_str!("chat.js")),
    ("attachments.js", include_str!("attachments.js")),
    ("code.js", include_str!("code.js")),
    ("connection.js", include_str!("connection.js")),
    ("conversation.js", include_str!("conversation.js")),
    ("history.js", include_str!("history.js")),
    ("markdown.js", include_str!("markdown.js")),
    ("maths.js", include_str!("maths.js")),
    ("mcp.js", include_str!("mcp.js")),
    ("models.js", include_str!("models.js")),
    ("presets.js", include_str!("presets.js")),
    ("speculation.js", include_str!("speculation.js")),
    ("store.js", include_str!("store.js")),
    ("tools.js", include_str!("tools.js")),
    ("dashboard.js", include_str!("dashboard.js")),
    ("metrics.js", include_str!("metrics.js")),
    ("icon.svg", include_str!("icon.svg")),
];

/// A page whose scripts may call `connect`.
fn page(html: &'static str, connect: &str) -> Response {
    let policy = format!("{POLICY}; connect-src {connect}");
    let mut response = file("text/html; charset=utf-8", html);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::try_from(policy).expect("it is ASCII"));
    response
}

async fn asset(Path(name): Path<String>) -> Result<Response, ApiError> {
    let (_, text) = ASSETS
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| ApiError::not_found("there is nothing at this path"))?;
    let media = match name.rsplit('.').next() {
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    };
    Ok(file(media, text))
}

fn file(media: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, media),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        // A new program has new pages.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

/// Everything from here, images of the user's own beside it, nothing from elsewhere, no code or style within the page, and no frames around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// Calls of this server alone.
const SELF: &str = "'self'";

/// Calls of MCP servers too, whose addresses the user gives the page: no list of them is known here. Scripts still come
/// from here alone.
const ANY: &str = "'self' http: https:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_model_can_become_code() {
        let ways =
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"];
        for (name, text) in
            ASSETS.iter().chain(&[("", include_str!("chat.html")), ("", include_str!("dashboard.html"))])
        {
            for way in ways {
                assert!(!text.contains(way), "{name}: {way}");
            }
            assert!(!text.contains(" style=") && !text.contains(" onclick="), "{name}: the policy forbids it");
        }
    }

    #[test]
    fn every_file_that_is_named_is_there() {
        let pages = [("", include_str!("chat.html")), ("", include_str!("dashboard.html"))];
        let mut n_named = 0;
        for (from, text) in ASSETS.iter().chain(&pages) {
            for (at, _) in text.match_indices("/assets/").chain(text.match_indices("from \"./")) {
                let rest = text[at..].trim_start_matches("/assets/").trim_start_matches("from \"./");
                let name = rest.split('"').next().unwrap_or_default();
                assert!(ASSETS.iter().any(|(known, _)| *known == name), "{from} names {name}");
                n_named += 1;
            }
        }
        assert!(n_named >= ASSETS.len(), "{n_named} names were found");
    }
}
