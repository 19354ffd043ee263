//! A GGUF file, or the shards of one, as a model to be typed anew.

use std::path::Path;

use crate::error::Error;
use crate::model::Model;
use crate::source::Source;

/// Reads the headers; data stays where it is. The keys that tell of shards are left out: one file comes of them.
///
/// # Errors
/// As for [`Source::open`]; or a type that ggml does not know.
pub fn open(path: &Path) -> Result<Model, Error> {
    let source = Source::open(path)?;
    let tensors = source.tensors.iter().map(|t| t.plan(0)).collect::<Result<_, _>>()?;
    let keys = source.keys.into_iter().filter(|(key, _)| !key.starts_with("split.")).collect();
    Ok(Model { keys, tensors, inputs: source.inputs })
}
