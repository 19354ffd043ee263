//! By which names a request may call this server, and from which web pages it may come.
//!
//! A page of another origin can have its own name lead to this machine, and is of one origin with the server then: the
//! browser lets it read everything. The `Host` that it sends is that name, so names are let in only where they are known.
//! An address as `Host` says that no name was resolved, and `localhost` is resolved by no server. Where keys are needed
//! the page has none, and any name will do.

use axum::http::{Method, Uri};
use hyper::StatusCode;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};

use crate::cors;
use crate::error::{ApiError, shortened};
use crate::settings::Settings;

/// Names of this server.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// `None`: any will do.
    names: Option<Vec<String>>,
}

impl Hosts {
    pub(crate) fn new(settings: &Settings) -> Self {
        let any = !settings.api_keys.is_empty() || settings.allowed_hosts.iter().any(|name| name == "*");
        if any {
            return Self { names: None };
        }
        let names = settings.allowed_hosts.iter().cloned().chain(own_name());
        Self { names: Some(names.map(|name| name.to_ascii_lowercase()).collect()) }
    }

    /// Lets in what calls the server by a name of its own, or by none: such a client is no browser.
    ///
    /// # Errors
    /// 403 with the name and the option that lets it in.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(names) = &self.names else { return Ok(()) };
        let given = headers.get_all(HOST).into_iter().map(|value| value.to_str().unwrap_or_default());
        for authority in uri.authority().map(|authority| authority.as_str()).into_iter().chain(given) {
            let name = name_in(authority);
            if !is_local(&name) && !names.contains(&name) {
                let name = shortened(&name);
                let message = format!(
                    "this server does not go by the name `{name}`: call it by its address, or start it with \
                     `--allowed-host {name}`"
                );
                let error = ApiError::refused(StatusCode::FORBIDDEN, message);
                return Err(ApiError { code: Some("host_not_allowed"), ..error });
            }
        }
        Ok(())
    }
}

/// What this machine calls itself.
#[cfg(unix)]
fn own_name() -> Option<String> {
    Some(rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// What this machine calls itself.
#[cfg(windows)]
fn own_name() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

/// The host of `host:port` in the one way of writing it.
fn name_in(authority: &str) -> String {
    let end = match authority.rfind(']') {
        Some(bracket) => bracket + 1,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let host = authority[..end].trim_start_matches('[').trim_end_matches(']');
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// What nobody else's name server can lead here.
fn is_local(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost") || name.parse::<std::net::IpAddr>().is_ok()
}

/// Refuses what a browser says to be sent by a page of another site that was not let in by name. Such a page could not
/// read the response, but what it asks for would be done.
///
/// # Errors
/// 403 with the origin and the option that lets it in.
pub(crate) fn check_site(settings: &Settings, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    if !matches!(*method, Method::POST | Method::DELETE)
        || headers.get(SITE).map(HeaderValue::as_bytes) != Some(&b"cross-site"[..])
    {
        return Ok(());
    }
    let origin = headers.get(ORIGIN).and_then(|value| value.to_str().ok()).unwrap_or("null");
    // Extensions of a browser and programs built around one have schemes of their own, and rights that the user gave.
    let is_page = origin == "null" || origin.starts_with("http://") || origin.starts_with("https://");
    if !is_page || cors::allows(&settings.cors_origins, origin) {
        return Ok(());
    }
    let origin = shortened(origin);
    let message = format!("web pages of `{origin}` may not call this server: `--cors-origin {origin}` lets them");
    Err(ApiError { code: Some("origin_not_allowed"), ..ApiError::refused(StatusCode::FORBIDDEN, message) })
}

/// Whether a browser sent this for a page: it says from where, in one of two ways, with every request that can change something.
pub(crate) fn is_from_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) || headers.contains_key(SITE)
}

/// Sent by browsers, and not to be set by pages.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_known_names_are_let_in() {
        let hosts = Hosts { names: Some(vec!["server.lan".into()]) };
        let check = |uri: &str, host: &'static str| {
            hosts.check(&uri.parse().unwrap(), &HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]))
        };
        for right in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "[::1]",
            "192.168.1.5",
            "localhost",
            "LOCALHOST:1",
            "app.localhost:80",
            "server.lan",
            "Server.lan.:8080",
        ] {
            assert!(check("/", right).is_ok(), "{right}");
        }
        for wrong in
            ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1", "x"]
        {
            let error = check("/", wrong).expect_err(wrong);
            assert!(
                error.status == StatusCode::FORBIDDEN && error.message.contains("--allowed-host"),
                "{wrong}: {error}"
            );
        }
        assert!(check("http://evil.example/", "localhost").is_err(), "the request's line goes before the header");
        assert!(hosts.check(&Uri::from_static("/"), &HeaderMap::new()).is_ok());
    }

    #[test]
    fn keys_and_a_star_take_any_name() {
        for settings in [
            Settings { api_keys: vec!["key".into()], ..Settings::default() },
            Settings { allowed_hosts: vec!["*".into()], ..Settings::default() },
        ] {
            assert!(Hosts::new(&settings).names.is_none());
        }
    }

    #[test]
    fn pages_of_other_sites_do_nothing_here() {
        let settings = Settings { cors_origins: vec!["https://friend.example".into()], ..Settings::default() };
        let check = |method: Method, site: &'static str, origin: &'static str| {
            let headers = [(SITE, HeaderValue::from_static(site)), (ORIGIN, HeaderValue::from_static(origin))];
            check_site(&settings, &method, &HeaderMap::from_iter(headers)).is_ok()
        };
        assert!(!check(Method::POST, "cross-site", "https://evil.example"));
        assert!(!check(Method::POST, "cross-site", "null"));
        assert!(!check(Method::DELETE, "cross-site", "https://evil.example"));
        assert!(check(Method::POST, "cross-site", "https://friend.example"));
        assert!(check(Method::POST, "cross-site", "chrome-extension://abc"));
        assert!(check(Method::POST, "same-origin", "https://behind-a-proxy.example"));
        assert!(check(Method::GET, "cross-site", "https://evil.example"), "a link to a page");
    }
}
