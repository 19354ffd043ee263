//! Why a model of a hub cannot be had, in words for the user.

use std::io;
use std::path::Path;

/// Why a model cannot be had, or not be taken out of the cache.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Not the name of a model.
    #[error(
        "`{name}`: {why}; USER/REPO, USER/REPO:QUANT or USER/REPO:FILE.gguf expected, such as someone/model-GGUF:Q4_K_M"
    )]
    Name {
        /// As given.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The hub did not answer as it should; asking again would not help.
    #[error("{url}: {what}")]
    Http {
        /// What was asked for.
        url: String,
        /// What went wrong.
        what: String,
    },
    /// The hub cannot be reached, or is busy.
    #[error("{url}: {what}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// What went wrong.
        what: String,
    },
    /// The repository's list of files cannot be used.
    #[error("{repo}: {what}")]
    Listing {
        /// The repository.
        repo: String,
        /// What is wrong with it.
        what: String,
    },
    /// The cache cannot be used.
    #[error("{path}: {error}")]
    Cache {
        /// The file.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// The disk is too small.
    #[error(
        "{path}: {needed} are to be fetched and {free} are free: remove files, or set HF_HUB_CACHE to a folder on another disk"
    )]
    NoRoom {
        /// The folder.
        path: String,
        /// Bytes to be fetched, for people.
        needed: String,
        /// Bytes that are free, for people.
        free: String,
    },
    /// There is no such file.
    #[error("{repo}: no model file for `{wanted}`; there are: {found}")]
    NoFile {
        /// The repository.
        repo: String,
        /// What was asked for.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// A part of a model was asked for by its file's name.
    #[error("{repo}: {file} is {role}, not a model; there are: {found}")]
    NoModel {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// What it is.
        role: &'static str,
        /// The models.
        found: String,
    },
    /// Shards are missing.
    #[error("{repo}: {file} is one of {count} shards, and number {missing} is not there")]
    Shards {
        /// The repository.
        repo: String,
        /// The first file.
        file: String,
        /// How many there should be.
        count: u32,
        /// The first that is missing.
        missing: u32,
    },
    /// Nothing was fetched before.
    #[error("{name} is not in the cache {cache}: fetch it once without --offline")]
    NotCached {
        /// The model.
        name: String,
        /// Where it was looked for.
        cache: String,
    },
    /// What was given as a file may be meant as a model's name, and is neither.
    #[error(
        "{name}: there is no such file, and no such model in the cache {cache}; `-hf {name}` downloads it from the hub"
    )]
    NoFileNorModel {
        /// As given.
        name: String,
        /// Where it was looked for.
        cache: String,
    },
    /// Other files of the repository were fetched before.
    #[error("{error} (in the cache; without --offline the hub is asked)")]
    OtherCached {
        /// What is missing.
        error: Box<HubError>,
    },
    /// What came is not what was promised.
    #[error("{path}: the hub promises sha256 {expected}, the bytes have {found}; they were thrown away, try again")]
    Checksum {
        /// The file.
        path: String,
        /// The hub's.
        expected: String,
        /// Ours.
        found: String,
    },
    /// What is to be removed is in use.
    #[error("{what} is being fetched by another program: try again when it is done")]
    Locked {
        /// The file.
        what: String,
    },
    /// A folder of the cache is a link to another place.
    #[error("{path} leads out of the cache, and nothing is removed there: remove it by hand")]
    Outside {
        /// The folder.
        path: String,
    },
    /// Whoever asked wants it no more.
    #[error("the download was stopped; what came is kept, and the next one goes on from there")]
    Cancelled,
}

pub(crate) fn in_cache<T>(path: &Path, done: io::Result<T>) -> Result<T, HubError> {
    done.map_err(|error| HubError::Cache { path: path.display().to_string(), error })
}
