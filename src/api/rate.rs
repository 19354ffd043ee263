//! How often a client may ask: a bucket of requests for each, refilled over time.
//! Owns a table of clients that stays small whoever comes, and is never walked. Knows no HTTP.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::places::network_of;

/// Who asks.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) enum Client {
    /// The key of this number.
    Key(usize),
    /// An address, or the network that stands for it.
    Network(IpAddr),
    /// Not over a socket of ours.
    #[default]
    Unknown,
}

impl Client {
    /// Whoever has this address.
    pub(crate) fn at(peer: Option<IpAddr>) -> Self {
        peer.map_or(Self::Unknown, |address| Self::Network(network_of(address)))
    }
}

/// A limit for each client.
#[derive(Debug)]
pub(crate) struct RateLimit {
    per_minute: f64,
    buckets: Mutex<Buckets>,
}

/// Clients seen lately, in two generations: a full or old one is put aside whole, and takes the place of the one before.
/// Who is forgotten so has a full bucket again, which a minute's rest would have given too.
#[derive(Debug, Default)]
struct Buckets {
    young: HashMap<Client, Bucket>,
    old: HashMap<Client, Bucket>,
    since: Option<Instant>,
}

/// What is left, and since when.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    since: Instant,
}

impl RateLimit {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { per_minute: f64::from(per_minute.max(1)), buckets: Mutex::default() }
    }

    /// Takes a request out of the bucket; how long to wait when it is empty.
    pub(crate) fn take(&self, who: Client, now: Instant) -> Option<Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.of(who, now, self.per_minute);
        let refill = now.duration_since(bucket.since).as_secs_f64() * self.per_minute / MINUTE.as_secs_f64();
        bucket.left = (bucket.left + refill).min(self.per_minute);
        bucket.since = now;
        if bucket.left >= 1.0 {
            bucket.left -= 1.0;
            return None;
        }
        Some(Duration::from_secs_f64((1.0 - bucket.left) * MINUTE.as_secs_f64() / self.per_minute))
    }
}

impl Buckets {
    fn of(&mut self, who: Client, now: Instant, full: f64) -> &mut Bucket {
        let since = *self.since.get_or_insert(now);
        if self.young.len() >= GENERATION || now.duration_since(since) >= MINUTE {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.since = Some(now);
        }
        let before = self.old.remove(&who);
        self.young.entry(who).or_insert(before.unwrap_or(Bucket { left: full, since: now }))
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// Clients of one generation.
const GENERATION: usize = 5000;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn at(i: u32) -> Client {
        Client::at(Some(Ipv4Addr::from_bits(i).into()))
    }

    #[test]
    fn a_bucket_empties_and_fills_again() {
        let rate = RateLimit::new(2);
        let start = Instant::now();
        assert_eq!(rate.take(Client::Key(0), start), None);
        assert_eq!(rate.take(Client::Key(0), start), None);
        assert_eq!(rate.take(Client::Key(0), start), Some(Duration::from_secs(30)));
        assert_eq!(rate.take(Client::Key(1), start), None, "another client has its own");
        assert_eq!(rate.take(Client::Key(0), start + Duration::from_secs(31)), None);
    }

    #[test]
    fn the_table_stays_small_and_knows_who_was_just_here() {
        let rate = RateLimit::new(1);
        let start = Instant::now();
        for i in 0..100_000 {
            assert_eq!(rate.take(at(i), start), None);
            assert!(rate.take(at(i.saturating_sub(1000)), start).is_some(), "{i}");
        }
        let buckets = rate.buckets.lock().unwrap();
        assert!(buckets.young.len() + buckets.old.len() <= 2 * GENERATION);
    }

    #[test]
    fn a_minute_and_another_leave_nobody_behind() {
        let rate = RateLimit::new(1);
        let start = Instant::now();
        for i in 0..100 {
            rate.take(at(i), start);
        }
        for minutes in 1..3 {
            rate.take(Client::Key(0), start + minutes * MINUTE);
        }
        let buckets = rate.buckets.lock().unwrap();
        assert_eq!((buckets.young.len(), buckets.old.len()), (1, 0));
    }
}
