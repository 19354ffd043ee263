//! What tells models apart whose saved state must not be mixed up.
//! Owns what counts: everything in the headers of the files, a sample of every tensor, and what the user says of the
//! rotation of positions.

use std::sync::Arc;

use ggml::Mapping;
use gguf::Header;
use sha2::{Digest, Sha256};

use crate::error::LoadError;
use crate::rope_options::RopeOptions;

/// A digest over a model file.
pub type Fingerprint = [u8; 32];

/// Bytes of each tensor that count: other training under the same header changes them, and few pages are read for them.
const SAMPLE: usize = 64;

/// The fingerprint of a model that lies in these files and rotates positions so: keys in a cache are rotated ones.
pub(crate) fn digest(files: &[Arc<Mapping>], rope: &RopeOptions) -> Result<Fingerprint, LoadError> {
    let mut digest = Sha256::new();
    for file in files {
        let bytes = file.bytes();
        let header = Header::parse(bytes)?;
        digest.update(&bytes[..bytes.len().min(header.data_start() as usize)]);
        for tensor in header.tensors() {
            let data = bytes.get(tensor.range()).unwrap_or_default();
            let middle = &data[data.len() / 2..];
            digest.update(&middle[..middle.len().min(SAMPLE)]);
        }
    }
    digest.update(rope.identity());
    Ok(digest.finalize().into())
}

/// That of a model whose positions are rotated as in long contexts, of the model's own.
pub(crate) fn in_long_context(of: &Fingerprint) -> Fingerprint {
    let mut digest = Sha256::new_with_prefix(of);
    digest.update(b"long context");
    digest.finalize().into()
}
