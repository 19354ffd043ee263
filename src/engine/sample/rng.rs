//! The random numbers of one request: noise for each pick and each token, known in advance.
//! Owns the mapping from a seed to numbers. Knows nothing of logits.
//!
//! A token is picked where its exponential number, divided by its probability, is smallest; the chance of that is the
//! probability. The number depends on the seed, on how many tokens were picked before, and on the token: on nothing that a
//! draft could change. So a draft picked with the noise of its position mostly picks what the model will, and the generation to
//! a seed is the same with drafts and without.
//! Source: Gumbel 1954 for the rule, in the form of Maddison et al. 2014; Daliri et al. 2024 for drafts.

use std::hash::{BuildHasher, RandomState};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

/// The noise of one pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GumbelNoise(u64);

impl GumbelNoise {
    /// The noise of the `n`-th pick of a seed: ChaCha with 8 rounds, the same on every platform and in every later version.
    /// The seed fills the first eight key bytes, little-endian; the rest of the key is zero. Not `seed_from_u64`: that
    /// mapping belongs to the library and may change with it.
    pub(super) fn new(seed: u64, n: u64) -> Self {
        let mut key = [0_u8; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut stream = ChaCha8Rng::from_seed(key);
        stream.set_word_pos(2 * u128::from(n));
        Self(stream.next_u64())
    }

    /// Uniform in (0, 1), an odd multiple of 2^-53. Neither end occurs, so that its logarithm is finite and not zero.
    #[inline]
    pub(super) fn uniform(self, id: u64) -> f64 {
        ggml::uniform(self.0, id)
    }

    /// Exponential with mean 1, for token `id`.
    pub(super) fn exponential(self, id: u32) -> f64 {
        -ln(self.uniform(u64::from(id)))
    }

    /// What to add to the logit of token `id` of a draft, divided by its temperature, so that the largest sum is the draft.
    /// The logarithms are good for 3 digits: a draft may be wrong.
    #[inline]
    pub fn for_draft(self, id: u32) -> f32 {
        ggml::gumbel(self.0, id)
    }

    /// What it is made from, for a device that makes that of drafts by itself.
    pub fn key(self) -> u64 {
        self.0
    }

    /// A number in (0, 1) apart from those of the tokens.
    pub(super) fn apart(self) -> f64 {
        self.uniform(1 << 32)
    }
}

/// A seed that differs from call to call, for requests that name none.
/// The standard library seeds its hash maps from the system's entropy; one hash of nothing hands that on.
pub(super) fn fresh_seed() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Natural logarithm of a positive normal number, within 4e-16 of it or of 1, whichever is more. Written out, since the
/// system's differs between platforms.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
    let e = (bits.wrapping_sub(SQRT_HALF_BITS) as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub((e as u64) << 52));
    // ln m = 2 artanh s, a series in s^2 <= 0.0295.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = (0..11).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    e as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

const SQRT_HALF_BITS: u64 = 0x3fe6_a09e_667f_3bcd;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_numbers_forever() {
        // ChaCha8, all-zero key: first block starts 3e00ef2f895f40d6 7f5bb8e81f09a5a1 (published test vector).
        let words = [0x3e00_ef2f_895f_40d6_u64, 0x7f5b_b8e8_1f09_a5a1].map(u64::swap_bytes);
        assert_eq!([0, 1].map(|n| GumbelNoise::new(0, n).0), words);
        assert_ne!(GumbelNoise::new(1, 0), GumbelNoise::new(2, 0));
    }

    #[test]
    fn logarithms_are_as_good_as_they_say() {
        for i in 0..200_000 {
            let x = (f64::from(i) * 1e-3 - 100.0).exp();
            let want = x.ln();
            assert!((ln(x) - want).abs() <= 4e-16 * want.abs().max(1.0), "ln({x:e}) = {:e}, {want:e}", ln(x));
        }
        let half_step = 1.0 / (1_u64 << 53) as f64;
        for u in [half_step, 1.0 - half_step] {
            assert!((ln(u) - u.ln()).abs() <= 4e-16 * u.ln().abs(), "{u:e}: {:e}", ln(u));
        }
    }

    #[test]
    fn the_noise_of_drafts_is_that_of_picks() {
        for id in 0..2000 {
            let (exact, rough) = (-GumbelNoise(3).exponential(id).ln() as f32, GumbelNoise(3).for_draft(id));
            assert!((exact - rough).abs() < 2e-2, "{id}: {exact}, {rough}");
        }
    }

    #[test]
    fn fresh_seeds_differ() {
        assert_ne!(fresh_seed(), fresh_seed());
    }
}
