//! Names for requests, replies and calls: random enough not to meet, short enough to read.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// `prefix` and 24 letters and digits. Not a secret.
pub(crate) fn new(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Every state has keys of its own.
    let random = RandomState::new();
    let (a, b) = (random.hash_one(count), random.hash_one((count, 1u8)));
    format!("{prefix}{a:016x}{:08x}", b as u32)
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
