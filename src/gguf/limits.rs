//! What a file may ask for: the caps on its counts and lengths, and what its names must be like.

use crate::error::{Error, Place, quoted};

/// Caps on what a file may ask for; everything is compared with the bytes left besides.
/// The defaults are far above every published model and keep what parsing allocates within about 150 MB for any file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Metadata keys; 65,536.
    pub max_keys: u64,
    /// Tensors; 1,048,576.
    pub max_tensors: u64,
    /// Bytes of a key; 65,535, as the format's description says.
    pub max_key_bytes: u64,
    /// Bytes of a string; 1 GiB, as in ggml.
    pub max_string_bytes: u64,
    /// Elements of an array; 2^30, as in ggml.
    pub max_array_len: u64,
    /// Arrays within arrays, the outermost counted; 8. Walking them recurses this deep.
    pub max_depth: u32,
}

impl Limits {
    /// For bytes that were checked before.
    pub(crate) const NONE: Limits = Limits {
        max_keys: u64::MAX,
        max_tensors: u64::MAX,
        max_key_bytes: u64::MAX,
        max_string_bytes: u64::MAX,
        max_array_len: u64::MAX,
        max_depth: u32::MAX,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_keys: 1 << 16,
            max_tensors: 1 << 20,
            max_key_bytes: (1 << 16) - 1,
            max_string_bytes: 1 << 30,
            max_array_len: 1 << 30,
            max_depth: 8,
        }
    }
}

/// Keys and tensor names: something, in UTF-8, without NUL (C would see another name than we do).
pub(crate) fn check_name<'a>(bytes: &'a [u8], place: Place<'_>) -> Result<&'a str, Error> {
    if bytes.is_empty() {
        return Err(place.rule("empty name", "at least one byte"));
    }
    if bytes.contains(&0) {
        return Err(place.rule(format!("name {} with a NUL byte", quoted(bytes)), "none"));
    }
    std::str::from_utf8(bytes).map_err(|_| place.rule(format!("name {}", quoted(bytes)), "UTF-8"))
}
