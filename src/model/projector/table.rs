//! The table of towers, by the kind that files name.

use gguf::Metadata;

use super::file::projector_type;
use super::tower::Entry;
use super::{gemma3, gemma4v, qwen3vl};
use crate::error::LoadError;
use crate::keys::PROJECTOR;

const TABLE: &[Entry] = &[qwen3vl::ENTRY, gemma4v::ENTRY, gemma3::ENTRY];

/// What towers are called.
pub(crate) fn kinds() -> Vec<&'static str> {
    TABLE.iter().map(|entry| entry.name).collect()
}

/// The entry for a file's metadata.
pub(crate) fn find(meta: &Metadata<'_>) -> Result<&'static Entry, LoadError> {
    let architecture = meta.require_str("general.architecture")?;
    if architecture != PROJECTOR {
        let what =
            format!("the file is a model of architecture `{architecture}`; a projector is a file like mmproj-*.gguf");
        return Err(LoadError::Projector(what));
    }
    let found = projector_type(meta)?.unwrap_or("");
    TABLE.iter().find(|entry| entry.name == found).ok_or_else(|| {
        let known = kinds();
        LoadError::Projector(format!("projectors of type `{found}` are not known; known are: {}", known.join(", ")))
    })
}
