//! Requests to the hub: redirects, who may see the token, which failures are tried again.
//! Knows no files and no models.

use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::http::header::{AUTHORIZATION, LINK, LOCATION, RANGE, RETRY_AFTER};
use ureq::http::{Response, Uri};
use ureq::{Agent, Body};

use crate::Hub;
use crate::error::HubError;
use crate::watch::{Event, Watch};

/// How often a request is repeated that may succeed later.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Repetitions without any progress.
    pub n: u32,
    /// Before the first one; doubled for each further one.
    pub pause: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { n: 4, pause: Duration::from_secs(1) }
    }
}

/// Asks one hub.
pub(crate) struct Client {
    agent: Agent,
    token: Option<String>,
    /// Who may see the token.
    origin: Origin,
    pub(crate) retry: Retry,
}

/// Why a request was in vain.
pub(crate) enum Fault {
    /// It may succeed later, at the earliest after so long.
    Again(String, Option<Duration>),
    /// As above, and the hub was not even reached.
    Silent(String),
    /// It will not.
    Final(HubError),
}

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let of_scheme = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
        Some(Self { port: uri.port_u16().unwrap_or(of_scheme), scheme, host })
    }
}

impl Client {
    /// # Errors
    /// The hub's address is none.
    pub(crate) fn new(hub: &Hub) -> Result<Self, HubError> {
        let origin = hub.endpoint.parse::<Uri>().ok().as_ref().and_then(Origin::of).ok_or_else(|| HubError::Http {
            url: hub.endpoint.clone(),
            what: "the hub's address (HF_ENDPOINT, MODEL_ENDPOINT) is to be like https://example.org".into(),
        })?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed here, where it is known who may see the token.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .user_agent(concat!("nextn/", env!("CARGO_PKG_VERSION")));
        Ok(Self { agent: config.build().into(), token: hub.token.clone(), origin, retry: hub.retry })
    }

    /// Asks for a URL of the hub, from byte `from` on, and follows redirects. Only the hub itself sees the token. The response's
    /// status is 200, 206 or 416.
    pub(crate) fn get(&self, url: &str, from: u64) -> Result<Response<Body>, Fault> {
        let wrong = |what: String| Fault::Final(HubError::Http { url: url.to_owned(), what });
        let mut at: Uri = url.parse().map_err(|_| wrong("this is no address".into()))?;
        for _ in 0..MAX_REDIRECTS {
            let origin =
                Origin::of(&at).ok_or_else(|| wrong("the hub leads to an address that is not of the web".into()))?;
            if self.origin.scheme == "https" && origin.scheme != "https" {
                return Err(wrong(format!("the hub leads to {} without TLS", origin.host)));
            }
            let mut request = self.agent.get(at.clone());
            if let Some(token) = self.token.as_ref().filter(|_| origin == self.origin) {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            let response = request.call().map_err(|error| fault(url, &error))?;
            match response.status().as_u16() {
                200 | 206 | 416 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => {
                    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
                    at = location
                        .and_then(|to| resolve(&at, to))
                        .ok_or_else(|| wrong("a redirect leads nowhere".into()))?;
                }
                status => return Err(self.refused(url, status, &response)),
            }
        }
        Err(wrong(format!("more than {MAX_REDIRECTS} redirects")))
    }

    /// What a status means.
    fn refused(&self, url: &str, status: u16, response: &Response<Body>) -> Fault {
        let token = match &self.token {
            Some(_) => "the token is not accepted, or its owner was not let into this repository",
            None => "it is closed, or there is no such repository; set HF_TOKEN or --hf-token to a token that opens it",
        };
        let what = match status {
            401 | 403 => token,
            404 => "there is no such repository or file",
            429 => "too many requests: wait, or set HF_TOKEN",
            _ => "try again later",
        };
        let what = format!("the hub answers {status}: {what}");
        if matches!(status, 408 | 429 | 500 | 502 | 503 | 504) {
            let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
            return Fault::Again(what, after);
        }
        Fault::Final(HubError::Http { url: url.to_owned(), what })
    }

    /// A small JSON document, and the page that follows it.
    ///
    /// # Errors
    /// [`HubError::Unreachable`] where the hub does not answer, or is busy for long; [`HubError::Http`] otherwise.
    pub(crate) fn json<T: DeserializeOwned>(
        &self,
        url: &str,
        watch: &Watch<'_>,
    ) -> Result<(T, Option<String>), HubError> {
        let mut tries = Tries::new(self.retry);
        loop {
            watch.check()?;
            match self.json_once(url) {
                Ok(done) => return Ok(done),
                Err(Fault::Final(error)) => return Err(error),
                Err(Fault::Silent(what)) => return Err(HubError::Unreachable { url: url.to_owned(), what }),
                Err(Fault::Again(what, after)) => tries.pause(url, what, after, watch)?,
            }
        }
    }

    fn json_once<T: DeserializeOwned>(&self, url: &str) -> Result<(T, Option<String>), Fault> {
        let wrong = |what: String| Fault::Final(HubError::Http { url: url.to_owned(), what });
        let mut response = self.get(url, 0)?;
        let links = response.headers().get_all(LINK).iter().filter_map(|value| value.to_str().ok());
        let next = links.flat_map(|links| links.split(',')).find_map(next_page).map(str::to_owned);
        // The next page comes from the hub too: its address has the token.
        let next = next.and_then(|next| resolve(&url.parse().ok()?, &next));
        let next = next.filter(|next| Origin::of(next).as_ref() == Some(&self.origin)).map(|next| next.to_string());
        let text = response.body_mut().with_config().limit(MAX_JSON).read_to_string().map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(_) => wrong(format!("the list is longer than {} MiB", MAX_JSON >> 20)),
            error => fault(url, &error),
        })?;
        let value = serde_json::from_str(&text);
        Ok((value.map_err(|error| wrong(format!("not the JSON that was expected: {error}")))?, next))
    }
}

/// How often something was tried without progress.
pub(crate) struct Tries {
    retry: Retry,
    n: u32,
}

impl Tries {
    pub(crate) fn new(retry: Retry) -> Self {
        Self { retry, n: 0 }
    }

    /// Something came: it starts to count anew.
    pub(crate) fn progressed(&mut self) {
        self.n = 0;
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// [`HubError::Unreachable`] with `what` after the last one, or where the hub wants to be left alone for long.
    pub(crate) fn pause(
        &mut self,
        url: &str,
        what: String,
        after: Option<Duration>,
        watch: &Watch<'_>,
    ) -> Result<(), HubError> {
        let own = self.retry.pause * (1 << self.n.min(6));
        let after = after.map_or(own, |after| after.max(own));
        if self.n >= self.retry.n || after > MAX_PAUSE {
            let what = if after > MAX_PAUSE { format!("{what} (for {} s)", after.as_secs()) } else { what };
            return Err(HubError::Unreachable { url: url.to_owned(), what });
        }
        self.n += 1;
        tracing::debug!(url, what, after_ms = after.as_millis() as u64, "asking again");
        watch.tell(Event::Again { why: &what, after });
        watch.wait(after)
    }
}

/// What became of a request that has no answer.
fn fault(url: &str, error: &ureq::Error) -> Fault {
    use ureq::{Error, Timeout};
    let what = error.to_string();
    match error {
        Error::HostNotFound | Error::ConnectionFailed | Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
            Fault::Silent(what)
        }
        Error::Io(io) if matches!(io.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NetworkUnreachable) => {
            Fault::Silent(what)
        }
        Error::Timeout(_) | Error::Io(_) | Error::Protocol(_) => Fault::Again(what, None),
        _ => Fault::Final(HubError::Http { url: url.to_owned(), what }),
    }
}

/// A `Location` or a link, as an address.
fn resolve(base: &Uri, to: &str) -> Option<Uri> {
    if to.contains("://") {
        return to.parse().ok();
    }
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    match to {
        to if to.starts_with("//") => format!("{scheme}:{to}"),
        to if to.starts_with('/') => format!("{scheme}://{authority}{to}"),
        to => {
            let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{to}")
        }
    }
    .parse()
    .ok()
}

/// The address in `<ADDRESS>; rel="next"`.
fn next_page(link: &str) -> Option<&str> {
    let (address, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
    rest.contains("rel=\"next\"").then_some(address)
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Silence within a response.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// A hub that wants more patience is not waited for.
const MAX_PAUSE: Duration = Duration::from_secs(300);
const MAX_REDIRECTS: usize = 10;
const MAX_JSON: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_resolved_as_browsers_do() {
        let base: Uri = "https://hub.example/a/b?c=d".parse().unwrap();
        for (to, found) in [
            ("/x/y?z", "https://hub.example/x/y?z"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("http://cdn.example:81/x", "http://cdn.example:81/x"),
            ("x", "https://hub.example/a/x"),
        ] {
            assert_eq!(resolve(&base, to).unwrap().to_string(), found);
        }
        let origin = |text: &str| Origin::of(&text.parse().unwrap());
        assert_eq!(origin("https://Hub.example/x"), origin("https://hub.example:443"));
        assert_ne!(origin("https://hub.example"), origin("http://hub.example"));
        assert_ne!(origin("https://hub.example"), origin("https://hub.example.evil"));
        assert_eq!(origin("ftp://hub.example"), None);
    }

    #[test]
    fn pages_are_followed_by_their_links() {
        assert_eq!(next_page(r#"<https://h/x?cursor=a>; rel="next""#), Some("https://h/x?cursor=a"));
        assert_eq!(next_page(r#"<https://h/x>; rel="prev""#), None);
    }
}
