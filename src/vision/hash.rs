//! The name of a picture's content: two files with the same bytes are the same picture.

use std::fmt;

use sha2::{Digest, Sha256};

/// SHA-256 of the encoded bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash(pub [u8; 32]);

impl ContentHash {
    /// Of a file's bytes, as they were sent.
    pub fn of(encoded: &[u8]) -> ContentHash {
        ContentHash(Sha256::digest(encoded).into())
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({self})")
    }
}
