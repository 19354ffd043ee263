//! The table of towers, by the kind that files name.

use gguf::Metadata;

use super::file::projector_type;
use super::tower::Entry;
use super::{gemma4v, qwen3vl};
use crate::error::LoadError;

/// What `general.architecture` is in a projector's file.
pub(crate) const ARCHITECTURE: &str = "clip";

const TABLE: &[Entry] = &[qwen3vl::ENTRY, gemma4v::ENTRY];

/// The entry for a file's metadata.
pub(crate) fn find(meta: &Metadata<'_>) -> Result<&'static Entry, LoadError> {
    let architecture = meta.require_str("general.architecture")?;
    if architecture != ARCHITECTURE {
        let what =
            format!("the file is a model of architecture `{architecture}`; a projector is a file like mmproj-*.gguf");
        return Err(LoadError::Projector(what));
    }
    let found = projector_type(meta)?.unwrap_or("");
    TABLE.iter().find(|entry| entry.name == found).ok_or_else(|| {
        let known: Vec<&str> = TABLE.iter().map(|entry| entry.name).collect();
        LoadError::Projector(format!("projectors of type `{found}` are not known; known are: {}", known.join(", ")))
    })
}
