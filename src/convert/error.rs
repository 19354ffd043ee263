//! What can be wrong when files are read, changed and written.
//! Owns the wording; each message has the file or the tensor, what was found, and what to do.

use std::path::{Path, PathBuf};

/// Everything this crate reports.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on a file.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what is needed.
    #[error("{}: {what}", path.display())]
    Input {
        /// The file or folder.
        path: PathBuf,
        /// What was found, and what to do.
        what: String,
    },
    /// A file is not as the GGUF format says.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: gguf::Error,
    },
    /// The header of the new file would not be readable.
    #[error("the header of the new file: {0}")]
    Header(#[source] gguf::Error),
    /// A tensor is not what is needed.
    #[error("{name}: {what}")]
    Tensor {
        /// Its name.
        name: String,
        /// What was found, and what to do.
        what: String,
    },
    /// A tensor has another shape than it must have.
    #[error("{name}: {found:?} found, {expected:?} expected from config.json")]
    Shape {
        /// Its name.
        name: String,
        /// Fastest dimension first.
        found: Vec<u64>,
        /// Fastest dimension first.
        expected: Vec<u64>,
    },
    /// Safetensors without a head, where one was looked for.
    #[error("{}: no tensor of a NextN head here: names with mtp, or fc.weight and its norms, expected", .0.display())]
    NoHead(PathBuf),
    /// Told to stop; what is done is kept.
    #[error("stopped; {} holds what is done: run the same command again to go on", part.display())]
    Stopped {
        /// The unfinished file.
        part: PathBuf,
    },
    /// Told to stop; nothing is left of what was begun.
    #[error("stopped; nothing was written")]
    Interrupted,
}

impl Error {
    pub(crate) fn io(path: &Path, action: &'static str, source: std::io::Error) -> Error {
        Error::Io { path: path.to_owned(), action, source }
    }

    pub(crate) fn input(path: &Path, what: impl Into<String>) -> Error {
        Error::Input { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn gguf(path: &Path, source: gguf::Error) -> Error {
        Error::Gguf { path: path.to_owned(), source }
    }

    pub(crate) fn tensor(name: &str, what: impl Into<String>) -> Error {
        Error::Tensor { name: name.to_owned(), what: what.into() }
    }
}
