//! The files of a repository as the hub lists them. Bounded: a list may be hostile, and so may be every line of it.

use serde::Deserialize;

use crate::Hub;
use crate::choose::RepoFile;
use crate::error::HubError;
use crate::http::Client;
use crate::name::{ModelName, is_plain_path};
use crate::watch::Watch;

/// A revision and its files.
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<RepoFile>,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Asks for the newest revision and its GGUF files.
///
/// # Errors
/// What the client says; a list that is too long, or names no revision.
pub(crate) fn read(client: &Client, hub: &Hub, name: &ModelName, watch: &Watch<'_>) -> Result<Listing, HubError> {
    let base = format!("{}/api/models/{}", hub.base(), name.repo());
    let (revision, _) = client.json::<Revision>(&format!("{base}/revision/main"), watch)?;
    let commit = revision.sha;
    if commit.is_empty() || commit.len() > MAX_COMMIT || !commit.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(HubError::Http { url: base, what: "the newest revision has no name of letters and digits".into() });
    }
    let wrong = |what: String| HubError::Listing { repo: name.repo().to_owned(), what };
    let mut files = Vec::new();
    let mut next = Some(format!("{base}/tree/{commit}?recursive=true"));
    for _ in 0..MAX_PAGES {
        let Some(url) = next else { return Ok(Listing { commit, files }) };
        let (entries, more) = client.json::<Vec<Entry>>(&url, watch)?;
        files.extend(entries.into_iter().filter_map(file));
        if files.len() > MAX_FILES {
            return Err(wrong(format!("the hub lists more than {MAX_FILES} model files")));
        }
        next = more;
    }
    Err(wrong(format!("the hub's list of files has more than {MAX_PAGES} pages")))
}

/// A GGUF file whose path stays in the repository.
fn file(entry: Entry) -> Option<RepoFile> {
    if !entry.path.ends_with(".gguf") || !is_plain_path(&entry.path) {
        return None;
    }
    let lfs = entry.lfs.filter(|lfs| is_sha256(&lfs.oid));
    let size = lfs.as_ref().map_or(entry.size, |lfs| lfs.size);
    Some(RepoFile { path: entry.path, size, sha256: lfs.map(|lfs| lfs.oid.to_ascii_lowercase()) })
}

pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

const MAX_COMMIT: usize = 64;
/// The hub's pages have up to a thousand entries.
const MAX_PAGES: usize = 100;
const MAX_FILES: usize = 20_000;
