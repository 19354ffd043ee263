//! What the programs share beside the model: exit codes, signals, the terminal, short names of options, completions, the
//! version, numbers in sentences, how far a download is, the model that is part of them. Knows no conversation.
#![forbid(unsafe_code)]

pub mod choices;
pub mod download;
pub mod embedded;
pub mod exit;
pub mod logging;
pub mod sanitize;
pub mod shell;
pub mod short_names;
pub mod signals;
pub mod terminal;
pub mod version;
pub mod words;

pub use hub::free_bytes;

use std::path::Path;

use session::ModelSource;

/// The file of `path`, or the model inside the programs.
pub fn source(path: Option<&Path>) -> ModelSource {
    match path {
        Some(path) => ModelSource::File(path.to_owned()),
        None => ModelSource::Embedded(embedded::model_bytes()),
    }
}
