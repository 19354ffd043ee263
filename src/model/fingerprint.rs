//! What tells models apart whose saved state must not be mixed up.
//! Owns what counts: everything in the headers of the files, and a sample of every tensor.

use std::sync::Arc;

use ggml::Mapping;
use gguf::Header;
use sha2::{Digest, Sha256};

use crate::error::LoadError;
use crate::model::Model;

/// A digest over a model file.
pub type Fingerprint = [u8; 32];

/// Bytes of each tensor that count: other training under the same header changes them, and few pages are read for them.
const SAMPLE: usize = 64;

impl Model {
    /// SHA-256 over the model's file: its metadata, names, types and shapes of its tensors, and a few bytes of each. It is
    /// computed when it is first asked for: a large vocabulary takes some tens of milliseconds.
    ///
    /// # Errors
    /// [`LoadError`]: the file has changed since it was opened.
    pub fn fingerprint(&self) -> Result<Fingerprint, LoadError> {
        self.fingerprints().map(|(of_model, _)| of_model)
    }

    /// As [`Model::fingerprint`], over the file that the NextN head comes from.
    ///
    /// # Errors
    /// As [`Model::fingerprint`].
    pub fn head_fingerprint(&self) -> Result<Fingerprint, LoadError> {
        self.fingerprints().map(|(_, of_head)| of_head)
    }

    fn fingerprints(&self) -> Result<(Fingerprint, Fingerprint), LoadError> {
        if let Some(known) = self.fingerprints.get() {
            return Ok(*known);
        }
        let (of_model, of_head) = self.files();
        let model = digest(of_model)?;
        let head = if of_head.is_empty() { model } else { digest(of_head)? };
        Ok(*self.fingerprints.get_or_init(|| (model, head)))
    }
}

fn digest(files: &[Arc<Mapping>]) -> Result<Fingerprint, LoadError> {
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
    Ok(digest.finalize().into())
}
