//! Web pages of other origins that may call this server: which they are, and what their browsers are told.

use axum::Router;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HeaderName, HeaderValue,
};
use axum::middleware::map_response;
use axum::response::Response;
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, AllowPrivateNetwork, CorsLayer, ExposeHeaders};

/// Stands for this machine's own pages, at any port.
pub(crate) const LOCALHOST: &str = "localhost";

/// Whether pages of `origin` may call a server that was given these: origins, [`LOCALHOST`], or `*` for all.
pub(crate) fn allows(origins: &[String], origin: &str) -> bool {
    origins.iter().any(|allowed| allowed == "*" || allowed == origin || allowed == LOCALHOST && is_local(origin))
}

/// An origin of this machine: `localhost` or a loop-back address, by HTTP or HTTPS, at any port.
fn is_local(origin: &str) -> bool {
    let Some(rest) = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) else { return false };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|host| match rest.strip_prefix(host) {
        Some("") => true,
        Some(port) => port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok()),
        None => false,
    })
}

/// Answers browsers before anything else does: an allowed origin is granted whatever its preflight asks for, and others are
/// told nothing.
pub(crate) fn layered<S: Clone + Send + Sync + 'static>(routes: Router<S>, origins: &[String]) -> Router<S> {
    if origins.is_empty() {
        return routes;
    }
    let allowed = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::mirror_request(),
        false => {
            let origins = origins.to_vec();
            AllowOrigin::predicate(move |origin, _| origin.to_str().is_ok_and(|origin| allows(&origins, origin)))
        }
    };
    let cors = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods(AllowMethods::mirror_request())
        .allow_headers(AllowHeaders::mirror_request())
        .allow_private_network(AllowPrivateNetwork::yes())
        .expose_headers(ExposeHeaders::any())
        .max_age(MAX_AGE);
    routes.layer(cors).layer(map_response(without_crumbs))
}

/// A response that allows no origin does not say what else it would allow; others allow all methods that there are.
async fn without_crumbs(mut response: Response) -> Response {
    let headers = response.headers_mut();
    if let Some(methods) = headers.get_mut(ACCESS_CONTROL_ALLOW_METHODS) {
        *methods = METHODS;
    }
    if !headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        for name in [
            ACCESS_CONTROL_ALLOW_HEADERS,
            ACCESS_CONTROL_ALLOW_METHODS,
            PRIVATE_NETWORK,
            ACCESS_CONTROL_EXPOSE_HEADERS,
            ACCESS_CONTROL_MAX_AGE,
        ] {
            headers.remove(name);
        }
    }
    response
}

/// Of all paths.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");

/// Allows pages of the internet to call an address that is not.
const PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// So long a browser need not ask again.
const MAX_AGE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_any_port_of_this_machine_and_nothing_else() {
        let given = [LOCALHOST.to_owned(), "https://a.example".to_owned()];
        for right in [
            "http://localhost",
            "https://localhost:8443",
            "http://127.0.0.1:3000",
            "http://[::1]:5173",
            "https://a.example",
        ] {
            assert!(allows(&given, right), "{right}");
        }
        for wrong in [
            "null",
            "http://localhost.evil.example",
            "http://localhost:",
            "http://localhost:80.evil.example",
            "http://127.0.0.1.evil.example",
            "http://localhost@evil.example",
            "ftp://localhost",
            "https://b.example",
            "http://a.example",
        ] {
            assert!(!allows(&given, wrong), "{wrong}");
        }
        assert!(!allows(&["http://localhost".to_owned()], "http://localhost:3000"), "a whole origin is itself only");
        assert!(allows(&["*".to_owned()], "https://b.example"));
    }
}
