//! JSON files: read up to a limit, and refused in few words.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::io::Input;

/// Tokenizers of a quarter million entries have 20 MB.
pub(crate) const MAX_JSON_BYTES: u64 = 256 << 20;

/// What a file of at most `most` bytes holds.
///
/// # Errors
/// The file is missing, larger, or no JSON of this form.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, most: u64) -> Result<T, Error> {
    let bytes = Input::read_small(path, most)?;
    serde_json::from_slice(&bytes).map_err(|e| Error::input(path, json_error(&e)))
}

/// As [`read_json`], or `None` when there is no such file.
pub(crate) fn find_json(path: &Path, most: u64) -> Result<Option<serde_json::Value>, Error> {
    if path.exists() { read_json(path, most).map(Some) } else { Ok(None) }
}

/// Why JSON is refused, in few words: serde repeats what it found, which may be a string as long as the file.
pub(crate) fn json_error(e: &serde_json::Error) -> String {
    let whole = e.to_string();
    match whole.char_indices().nth(MAX_WORDS) {
        Some((end, _)) => format!("{}.. at line {} column {}", &whole[..end], e.line(), e.column()),
        None => whole,
    }
}

/// Characters of a message of serde's.
const MAX_WORDS: usize = 200;
