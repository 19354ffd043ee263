//! `/` as Ollama answers it: clients ask for it to find out whether there is a server.

use hyper::header::{ACCEPT, HeaderMap};

/// `GET /` and `HEAD /` where no page is there.
pub(crate) async fn probe() -> &'static str {
    "Ollama is running"
}

/// A program asks, and no browser: it names what it takes, and pages are not among it.
pub(crate) fn probes(headers: &HeaderMap) -> bool {
    let accepts = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    !accepts.contains("text/html") && (accepts.contains("application/json") || accepts.contains("text/plain"))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn browsers_and_those_who_take_anything_get_the_page() {
        let asks = |accept: &'static str| probes(&HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]));
        assert!(!probes(&HeaderMap::new()));
        assert!(!asks("*/*") && !asks("text/html,application/xhtml+xml,*/*;q=0.8") && !asks("text/html, text/plain"));
        assert!(asks("application/json") && asks("application/json, text/plain, */*"));
    }
}
