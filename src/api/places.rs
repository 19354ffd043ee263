//! Places for connections: so many at a time, and so many of them for one address.
//! Knows addresses and numbers, no sockets.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The network that stands for one client. Who has an IPv6 address has 2^64 of them, so they count as one.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

/// All places of a server.
#[derive(Debug)]
pub(crate) struct Places {
    n: usize,
    n_each: usize,
    free: Arc<Semaphore>,
    /// Connections that may wait for a place.
    queue: Semaphore,
    shares: Mutex<HashMap<IpAddr, usize>>,
}

impl Places {
    /// `n` places, `n_each` of them for one address at most. One that may have them all may wait for them too.
    pub(crate) fn new(n: usize, n_each: usize) -> Arc<Self> {
        Arc::new(Self {
            n,
            n_each: if n_each < n { n_each } else { usize::MAX },
            free: Arc::new(Semaphore::new(n)),
            queue: Semaphore::new(MAX_WAITING),
            shares: Mutex::default(),
        })
    }

    /// Counts a connection from this address; `None` when it has all that it may have.
    pub(crate) fn share(self: &Arc<Self>, address: IpAddr) -> Option<Share> {
        let network = network_of(address);
        let mut shares = self.lock();
        let taken = shares.entry(network).or_insert(0);
        if *taken >= self.n_each {
            return None;
        }
        *taken += 1;
        Some(Share { places: Arc::clone(self), network })
    }

    /// A place, waited for if there is none; `None` when none came free within `patience`, or too many wait already.
    pub(crate) async fn take(&self, patience: Duration) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(place);
        }
        let _waiting = self.queue.try_acquire().ok()?;
        tokio::time::timeout(patience, Arc::clone(&self.free).acquire_owned()).await.ok()?.ok()
    }

    /// Waits until all places are free.
    pub(crate) async fn all_free(&self) {
        // It is never closed.
        drop(self.free.acquire_many(self.n as u32).await);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection counted to its address, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    places: Arc<Places>,
    network: IpAddr,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = self.places.lock();
        if let Some(taken) = shares.get_mut(&self.network) {
            *taken -= 1;
            if *taken == 0 {
                shares.remove(&self.network);
            }
        }
    }
}

/// Each is a socket that is open and does nothing.
const MAX_WAITING: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_a_64_bit_network() {
        assert_eq!(network_of(ip("2001:db8:1:2:aaaa::1")), network_of(ip("2001:db8:1:2:bbbb::2")));
        assert_ne!(network_of(ip("2001:db8:1:2::1")), network_of(ip("2001:db8:1:3::1")));
        assert_eq!(network_of(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_ne!(network_of(ip("10.0.0.1")), network_of(ip("10.0.0.2")));
    }

    #[tokio::test]
    async fn what_is_given_back_can_be_taken_again_and_leaves_nothing_behind() {
        let places = Places::new(2, 1);
        let first = places.share(ip("10.0.0.1")).unwrap();
        assert!(places.share(ip("10.0.0.1")).is_none());
        let second = places.share(ip("10.0.0.2")).unwrap();
        drop(first);
        drop(places.share(ip("10.0.0.1")).unwrap());
        drop(second);
        assert!(places.lock().is_empty());

        let taken = [places.take(Duration::ZERO).await.unwrap(), places.take(Duration::ZERO).await.unwrap()];
        assert!(places.take(Duration::ZERO).await.is_none());
        drop(taken);
        places.all_free().await;
    }
}
