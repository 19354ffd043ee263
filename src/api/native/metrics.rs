//! `/metrics`: all metrics as OpenMetrics text, or in the older format of Prometheus for those who do not ask for it.

use std::collections::HashSet;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use hyper::header::{ACCEPT, CONTENT_TYPE};
use serde::Deserialize;

use crate::blocking::blocking;
use crate::error::ApiError;
use crate::query::Query;
use crate::state::AppState;
use crate::vllm_names;

/// Whose names the metrics have.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Names {
    #[default]
    Own,
    Vllm,
}

/// What stands behind the `?`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MetricsQuery {
    names: Names,
}

/// `GET /metrics`.
pub(crate) async fn metrics(
    State(state): State<AppState>,
    Query(query): Query<MetricsQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if !state.settings().metrics {
        return Err(ApiError::not_supported("this server was started without metrics: start it with --metrics"));
    }
    let started = state.metrics().started_unix();
    let text = blocking(move || Ok(state.metrics().text(state.registry()))).await?;
    let text = match query.names {
        Names::Own => text,
        Names::Vllm => vllm_names::renamed(&text),
    };
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // Prometheus asks for the newer format by its name.
    let (media, text) = match !accepted.is_empty() && !accepted.contains("openmetrics") {
        true => ("text/plain; version=0.0.4; charset=utf-8", plain(&text)),
        false => ("application/openmetrics-text; version=1.0.0; charset=utf-8", text),
    };
    let started = (HeaderName::from_static("process-start-time-unix"), started.to_string());
    Ok(([(CONTENT_TYPE, media.to_owned()), started], text).into_response())
}

/// The older format of Prometheus, which names counters by what stands before their numbers, and has no end.
fn plain(text: &str) -> String {
    let counters: HashSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut out = String::with_capacity(text.len() + 16 * counters.len());
    for line in text.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
        let about = line.strip_prefix("# TYPE ").or(line.strip_prefix("# HELP "));
        let name = about.and_then(|rest| rest.split(' ').next()).filter(|name| counters.contains(name));
        match name {
            Some(name) => out.push_str(&line.replacen(name, &format!("{name}_total"), 1)),
            None if line == MAXIMUM => out.push_str("# TYPE llamacpp:n_tokens_max counter"),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// It only grows: llama.cpp calls it a counter, which OpenMetrics would give another name.
const MAXIMUM: &str = "# TYPE llamacpp:n_tokens_max gauge";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_names_counters_by_their_lines() {
        let maximum = "# TYPE llamacpp:n_tokens_max gauge\nllamacpp:n_tokens_max 2\n";
        assert_eq!(plain(maximum), "# TYPE llamacpp:n_tokens_max counter\nllamacpp:n_tokens_max 2\n");
        let text = "# HELP a Some.\n# TYPE a counter\na_total 1\n# TYPE ab gauge\n# UNIT ab bytes\nab 2\n# EOF\n";
        assert_eq!(plain(text), "# HELP a_total Some.\n# TYPE a_total counter\na_total 1\n# TYPE ab gauge\nab 2\n");
    }
}
