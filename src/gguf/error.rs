//! What can be wrong with a GGUF file, said with the key or tensor, what was found and what was expected.
//! Owns the wording; never the path of the file, which only the caller knows (the writer's own files excepted).

use std::path::PathBuf;

/// Everything this crate reports. Places are spelled as `tensor "blk.0.attn_q.weight"` or
/// `metadata key "general.alignment"`, with names escaped and cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The first four bytes are something else.
    #[error("not a GGUF file: it starts with {found}, \"GGUF\" expected")]
    Magic {
        /// The bytes that were found, escaped.
        found: String,
    },
    /// Every number of the file has its bytes the other way round.
    #[error("this is a big-endian GGUF file (version {version} with swapped bytes); convert it to little endian")]
    BigEndian {
        /// The version after swapping.
        version: u32,
    },
    /// Version 1, or one newer than this crate.
    #[error("GGUF version {found} found, 2 or 3 expected; convert the model again with current tools")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// A length in the header reaches over the end of the file.
    #[error(
        "{place}: {what} takes {need} bytes from byte {at} on, the file has {left} left; \
         it is cut short or this length is damaged"
    )]
    Short {
        /// Key, tensor or part of the header.
        place: String,
        /// What was being read.
        what: &'static str,
        /// Bytes wanted; `u64::MAX` when the count times the size does not fit.
        need: u64,
        /// Offset in the file.
        at: u64,
        /// Bytes from there to the end of the file.
        left: u64,
    },
    /// A count or length is over a cap of [`crate::Limits`].
    #[error("{place}: {what} {found} found, at most {max} allowed")]
    Limit {
        /// Key, tensor or part of the header.
        place: String,
        /// What was counted.
        what: &'static str,
        /// The number in the file.
        found: u64,
        /// The cap.
        max: u64,
    },
    /// A rule of the format is broken.
    #[error("{place}: {found} found, {expected} expected")]
    Rule {
        /// Key, tensor or part of the header.
        place: String,
        /// What the file says.
        found: String,
        /// What it should say.
        expected: String,
    },
    /// Two keys or two tensors of one name.
    #[error("{place} appears twice")]
    Duplicate {
        /// The name that was seen before.
        place: String,
    },
    /// The header is whole, the data behind it is not.
    #[error(
        "{place}: its data ends at byte {end}, the file ends at byte {file_bytes}; {missing} bytes are missing \
         in all, get the file again"
    )]
    DataMissing {
        /// The first tensor that is cut.
        place: String,
        /// Where its data should end.
        end: u64,
        /// Length of the file.
        file_bytes: u64,
        /// Bytes from the end of the file to the end of the last tensor.
        missing: u64,
    },
    /// A key that the caller needs is not in the file.
    #[error("{place} is missing, {expected} expected")]
    MissingKey {
        /// The key.
        place: String,
        /// The type wanted.
        expected: &'static str,
    },
    /// Shards that do not belong together, or a shard opened in place of the first.
    #[error("{what}; {cure}")]
    Split {
        /// What disagrees, with both values.
        what: String,
        /// What to do.
        cure: String,
    },
    /// The caller of the writer broke its order.
    #[error("{place}: {found} found, {expected} expected by the writer")]
    Write {
        /// The tensor.
        place: String,
        /// What the caller did.
        found: String,
        /// What had to come.
        expected: String,
    },
    /// The system refused an operation on the file being written.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Where the reader is; turned into text only when something is wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    Header,
    KeyNo(u64),
    Key(&'a str),
    TensorNo(u64),
    Tensor(&'a str),
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Header => write!(f, "header"),
            Place::KeyNo(i) => write!(f, "metadata key no. {i}"),
            Place::Key(key) => write!(f, "metadata key {}", quoted(key.as_bytes())),
            Place::TensorNo(i) => write!(f, "tensor no. {i}"),
            Place::Tensor(name) => write!(f, "tensor {}", quoted(name.as_bytes())),
        }
    }
}

impl Place<'_> {
    pub(crate) fn rule(self, found: impl Into<String>, expected: impl Into<String>) -> Error {
        Error::Rule { place: self.to_string(), found: found.into(), expected: expected.into() }
    }

    pub(crate) fn duplicate(self) -> Error {
        Error::Duplicate { place: self.to_string() }
    }

    /// # Errors
    /// `found > max`.
    pub(crate) fn limit(self, what: &'static str, found: u64, max: u64) -> Result<(), Error> {
        if found > max { Err(Error::Limit { place: self.to_string(), what, found, max }) } else { Ok(()) }
    }
}

/// Text from a file as it may stand in a message: in quotes, control characters escaped, at most 80 bytes of it.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(MAX_QUOTED)];
    let dots = if cut.len() < bytes.len() { "..." } else { "" };
    // A cut inside a character leaves one replacement character; it is only a message.
    format!("\"{}\"{dots}", String::from_utf8_lossy(cut).escape_debug())
}

const MAX_QUOTED: usize = 80;
