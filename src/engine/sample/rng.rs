//! The random stream of one request.
//! Owns the mapping from a seed to a stream and from the stream to numbers in [0, 1). Knows nothing of tokens.

use std::hash::{BuildHasher, RandomState};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

/// ChaCha with 8 rounds: the same numbers for a seed on every platform and in every later version of this crate.
#[derive(Clone, Debug)]
pub(super) struct Rng(ChaCha8Rng);

impl Rng {
    /// The seed fills the first eight key bytes, little-endian; the rest of the key is zero.
    /// Not `seed_from_u64`: that mapping belongs to the library and may change with it.
    pub fn new(seed: u64) -> Self {
        let mut key = [0_u8; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * 2.0_f64.powi(-53)
    }
}

/// A seed that differs from call to call, for requests that name none.
/// The standard library seeds its hash maps from the system's entropy; one hash of nothing hands that on.
pub(super) fn fresh_seed() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_numbers_forever() {
        let mut rng = Rng::new(0);
        // ChaCha8, all-zero key: first block starts 3e00ef2f895f40d6 7f5bb8e81f09a5a1 (published test vector).
        let words = [0x3e00_ef2f_895f_40d6_u64, 0x7f5b_b8e8_1f09_a5a1].map(u64::swap_bytes);
        for word in words {
            assert_eq!(rng.uniform(), (word >> 11) as f64 / 9_007_199_254_740_992.0);
        }
        assert_ne!(Rng::new(1).uniform(), Rng::new(2).uniform());
    }

    #[test]
    fn fresh_seeds_differ() {
        assert_ne!(fresh_seed(), fresh_seed());
    }
}
