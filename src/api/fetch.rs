//! Images from the web, for servers that are told to fetch them.
//! Owns what may be reached: public addresses only, at every redirect, checked where a name has become an address, so that no
//! client looks into the server's own network through it. Knows nothing of conversations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

/// Fetches images. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Fetcher {
    agent: Agent,
}

impl Fetcher {
    /// One that reaches public addresses.
    pub fn new() -> Self {
        Self::that_reaches(is_public)
    }

    fn that_reaches(may: fn(IpAddr) -> bool) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .max_redirects(MAX_REDIRECTS)
            // It would look names up itself.
            .proxy(None)
            .user_agent(concat!("nextn/", env!("CARGO_PKG_VERSION")));
        Self { agent: Agent::with_parts(config.build(), DefaultConnector::default(), Checked { may }) }
    }

    /// The bytes at an address. Blocks.
    ///
    /// # Errors
    /// In words for the client: an address that is not public, one that does not answer with a success in time, or more than
    /// [`MAX_BYTES`].
    pub(crate) fn get(&self, url: &str) -> Result<Arc<[u8]>, String> {
        let fail = |error: Error| match error {
            Error::BodyExceedsLimit(_) => format!("the image at the URL has more than {} MiB", MAX_BYTES >> 20),
            error => format!("the image's URL cannot be fetched: {error}"),
        };
        let mut response = self.agent.get(url).call().map_err(fail)?;
        let bytes = response.body_mut().with_config().limit(MAX_BYTES).read_to_vec().map_err(fail)?;
        Ok(bytes.into())
    }
}

impl Default for Fetcher {
    fn default() -> Self {
        Self::new()
    }
}

/// Looks names up, and gives those of their addresses that may be reached.
#[derive(Debug)]
struct Checked {
    may: fn(IpAddr) -> bool,
}

impl Resolver for Checked {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let found = DefaultResolver::default().resolve(uri, config, timeout)?;
        let mut allowed = self.empty();
        for address in found.iter().filter(|address| (self.may)(address.ip())) {
            allowed.push(*address);
        }
        match allowed.is_empty() {
            true => Err(Error::Other("its host has no public address".into())),
            false => Ok(allowed),
        }
    }
}

/// Whether an address belongs to the public internet, by IANA's registries of special addresses.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(v4: Ipv4Addr) -> bool {
    let [a, b, c, _] = v4.octets();
    let is_own = matches!(
        (a, b),
        (0 | 10 | 127, _) | (169, 254) | (172, 16..=31) | (192, 168) | (100, 64..=127) | (198, 18..=19)
    );
    let is_reserved =
        matches!((a, b, c), (192, 0, 0 | 2) | (192, 88, 99) | (198, 51, 100) | (203, 0, 113) | (224.., ..));
    !is_own && !is_reserved
}

fn is_public_v6(v6: Ipv6Addr) -> bool {
    let s = v6.segments();
    let inner = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match s {
        // IPv4 in IPv6: mapped, translated, 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            is_public_v4(inner(high, low))
        }
        // Teredo, documentation, benchmarks, ORCHID.
        [0x2001, 0 | 0xdb8, ..] | [0x2001, 2, 0, ..] | [0x2001, 0x10..=0x3f, ..] | [0x3fff, 0..=0xfff, ..] => false,
        [first, ..] => (0x2000..=0x3fff).contains(&first),
    }
}

/// For a whole image.
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_REDIRECTS: u32 = 5;
/// Of one image.
const MAX_BYTES: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// The address of a server that gives each connection one of these replies.
    fn serving(replies: Vec<Vec<u8>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/image.png", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for reply in replies {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(&reply);
            }
        });
        url
    }

    fn reply(body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    #[test]
    fn bytes_come_from_where_they_may_come_from() {
        let url = serving(vec![reply(b"picture")]);
        assert_eq!(&Fetcher::that_reaches(|_| true).get(&url).unwrap()[..], b"picture");
        let error = Fetcher::new().get(&url).unwrap_err();
        assert!(error.contains("no public address"), "{error}");
        assert!(Fetcher::new().get("http://localhost/").unwrap_err().contains("no public address"));
    }

    #[test]
    fn what_is_no_success_or_too_long_is_refused() {
        let missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec();
        let url = serving(vec![missing]);
        assert!(Fetcher::that_reaches(|_| true).get(&url).unwrap_err().contains("404"));
        let long = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", MAX_BYTES + 1).into_bytes();
        let url = serving(vec![[long, vec![0; 1 << 20]].concat()]);
        let error = Fetcher::that_reaches(|_| true).get(&url).unwrap_err();
        assert!(error.contains("URL"), "{error}");
        let loops =
            b"HTTP/1.1 302 Found\r\nLocation: /image.png\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec();
        let url = serving(vec![loops; 10]);
        assert!(Fetcher::that_reaches(|_| true).get(&url).is_err());
    }

    #[test]
    fn addresses_of_networks_of_ones_own_are_not_public() {
        for special in [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
        ] {
            assert!(!is_public(special.parse().unwrap()), "{special}");
        }
        for public in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "2606:4700::1111",
            "64:ff9b::101:101",
            "2001:4860::8888",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }
}
