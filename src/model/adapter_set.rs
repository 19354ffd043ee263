//! Which adapters a pass is computed with, and with which factors. A value that can be compared: equal sets make equal states.

use std::sync::Arc;

/// Some of a model's adapters by their numbers, each with its factor. Those left out, or with a factor of 0, take no part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AdapterSet(Option<Arc<[(usize, u32)]>>);

/// Why adapters cannot be used so.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum AdapterSetError {
    /// There is no such adapter.
    #[error("adapter {id} does not exist: {n_adapters} are loaded, numbered from 0")]
    Unknown {
        /// The number asked for.
        id: usize,
        /// How many there are.
        n_adapters: usize,
    },
    /// A factor that is no number.
    #[error("the scale of adapter {id} is {scale}, a finite number is expected")]
    Scale {
        /// The adapter's number.
        id: usize,
        /// What was given.
        scale: f32,
    },
    /// One adapter with two factors.
    #[error("adapter {id} is named twice: give it one scale")]
    Twice {
        /// The adapter's number.
        id: usize,
    },
}

impl AdapterSet {
    /// The set of these adapters and factors, for a model of `n_adapters`.
    ///
    /// # Errors
    /// [`AdapterSetError`].
    pub fn new(scales: impl IntoIterator<Item = (usize, f32)>, n_adapters: usize) -> Result<Self, AdapterSetError> {
        let mut seen = vec![false; n_adapters];
        let mut set = Vec::new();
        for (id, scale) in scales {
            let seen = seen.get_mut(id).ok_or(AdapterSetError::Unknown { id, n_adapters })?;
            if std::mem::replace(seen, true) {
                return Err(AdapterSetError::Twice { id });
            }
            if !scale.is_finite() {
                return Err(AdapterSetError::Scale { id, scale });
            }
            if scale != 0.0 {
                set.push((id, scale.to_bits()));
            }
        }
        set.sort_unstable();
        Ok(if set.is_empty() { Self(None) } else { Self(Some(set.into())) })
    }

    /// True when the model computes as it does without adapters.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Numbers and factors, in ascending order of the numbers.
    pub fn scales(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        self.0.iter().flat_map(|set| set.iter()).map(|&(id, bits)| (id, f32::from_bits(bits)))
    }

    /// The factor of an adapter; 0 for those that take no part.
    pub fn scale(&self, id: usize) -> f32 {
        self.scales().find(|&(other, _)| other == id).map_or(0.0, |(_, scale)| scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_equal_when_they_compute_the_same() {
        let set = |scales: &[(usize, f32)]| AdapterSet::new(scales.iter().copied(), 3).unwrap();
        assert_eq!(set(&[(2, 0.5), (0, 1.0)]), set(&[(0, 1.0), (1, 0.0), (2, 0.5)]));
        assert_eq!(set(&[(1, 0.0), (0, -0.0)]), AdapterSet::default());
        assert_ne!(set(&[(0, 1.0)]), set(&[(1, 1.0)]));
        assert_ne!(set(&[(0, 1.0)]), set(&[(0, -1.0)]));
        assert_eq!((set(&[(2, 0.5)]).scale(2), set(&[(2, 0.5)]).scale(1)), (0.5, 0.0));
    }

    #[test]
    fn unknown_adapters_repeated_ones_and_scales_that_are_no_numbers_are_refused() {
        let error = |scales: &[(usize, f32)]| AdapterSet::new(scales.iter().copied(), 2).unwrap_err();
        assert_eq!(error(&[(2, 1.0)]), AdapterSetError::Unknown { id: 2, n_adapters: 2 });
        assert_eq!(error(&[(1, 0.0), (1, 1.0)]), AdapterSetError::Twice { id: 1 });
        assert!(matches!(error(&[(0, f32::NAN)]), AdapterSetError::Scale { id: 0, .. }));
        assert!(matches!(error(&[(0, f32::INFINITY)]), AdapterSetError::Scale { id: 0, .. }));
    }
}
