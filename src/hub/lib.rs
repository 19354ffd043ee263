//! Models of a hub: a name becomes files in the cache that other programs of the hub share.
//! Owns names, the choice of files, the cache and downloads. Knows no tensors and no terminal; who fetches is told how far it is.
//!
//! | File | Owns |
//! |---|---|
//! | `name` | `USER/REPO[:QUANT]`, `USER/REPO:FILE.gguf` |
//! | `listing` | the files of a repository, as the hub lists them |
//! | `file_name`, `choose` | what the name of a file says; which files a model is made of |
//! | `cache`, `cached` | paths of the cache; what is in it, taking it out |
//! | `http`, `download` | requests that may be repeated; one file, resumed and checked |
//! | `watch`, `error` | progress and cancelling; what can go wrong |
//! | `options`, `source` | the flags; what they and the environment name, as files |
#![forbid(unsafe_code)]

mod cache;
mod cached;
mod choose;
mod download;
mod error;
mod file_name;
mod http;
mod listing;
mod name;
mod options;
mod source;
mod watch;

use std::path::PathBuf;

pub use cache::free_bytes;
pub use cached::{CachedModel, Removed};
pub use choose::{Choice, Parts, RepoFile, choose};
pub use error::HubError;
pub use http::Retry;
pub use name::{ModelName, Part};
pub use options::HubOptions;
pub use source::{ModelFiles, one_source};
pub use watch::{Cancel, Event, Watch};

use cache::RepoCache;

/// A hub, and the cache of what came from it.
#[derive(Clone, Debug)]
pub struct Hub {
    /// The hub's address.
    pub endpoint: String,
    /// The folder of all repositories.
    pub cache: PathBuf,
    /// For repositories that are not open to everybody.
    pub token: Option<String>,
    /// Use what is in the cache and ask nobody.
    pub offline: bool,
    /// What is fetched beside the model.
    pub parts: Parts,
    /// How often requests are repeated.
    pub retry: Retry,
}

impl Hub {
    /// The files of a model: from the cache, or fetched into it. The newest revision counts; where the hub cannot be reached, what
    /// is in the cache does, and the log says so.
    ///
    /// # Errors
    /// [`HubError`]; [`HubError::Cancelled`] where `watch` says so. A part of a file that came stays and is used the next time.
    pub fn fetch(&self, name: &ModelName, watch: &Watch<'_>) -> Result<ModelFiles, HubError> {
        if self.offline {
            return self.cached(name);
        }
        let client = http::Client::new(self)?;
        let listing = match listing::read(&client, self, name, watch) {
            Ok(listing) => listing,
            Err(error @ HubError::Unreachable { .. }) => {
                let Ok(files) = self.cached(name) else { return Err(error) };
                tracing::warn!(%error, model = %name, "using the cached files");
                return Ok(files);
            }
            Err(error) => return Err(error),
        };
        let choice = choose(&listing.files, name)?.only(self.parts);
        let repo = RepoCache::new(&self.cache, name.repo());
        repo.check_room(&choice)?;
        watch.tell(Event::Chosen { files: &choice });
        for file in choice.files() {
            let url = format!("{}/{}/resolve/{}/{}", self.base(), name.repo(), listing.commit, encoded(&file.path));
            download::blob(&client, &repo, &url, file, watch)?;
            repo.link(&listing.commit, file)?;
        }
        repo.set_main(&listing.commit)?;
        Ok(ModelFiles::of(&repo.snapshot(&listing.commit), &listing.files, &choice, name))
    }

    /// The files of a model that were fetched before.
    ///
    /// # Errors
    /// [`HubError::NotCached`], or that the cache has other files of the repository only.
    pub fn cached(&self, name: &ModelName) -> Result<ModelFiles, HubError> {
        let repo = RepoCache::new(&self.cache, name.repo());
        let mut refused = None;
        for commit in repo.commits() {
            let files = repo.files(&commit);
            match choose(&files, name) {
                Ok(choice) => {
                    return Ok(ModelFiles::of(&repo.snapshot(&commit), &files, &choice.only(self.parts), name));
                }
                Err(error) if !files.is_empty() => _ = refused.get_or_insert(error),
                Err(_) => {}
            }
        }
        match refused {
            Some(error) => Err(HubError::OtherCached { error: Box::new(error) }),
            None => Err(HubError::NotCached { name: name.to_string(), cache: self.cache.display().to_string() }),
        }
    }

    /// The models in the cache, by name.
    ///
    /// # Errors
    /// The cache cannot be read. One that is not there is empty.
    pub fn models(&self) -> Result<Vec<CachedModel>, HubError> {
        cached::models(&self.cache)
    }

    /// Takes a model out of the cache: the links of its files in all revisions, and the bytes that no other file needs. A name
    /// without quantisation means the whole repository.
    ///
    /// # Errors
    /// [`HubError::NotCached`]; a file that is being fetched; a cache that leads elsewhere.
    pub fn remove(&self, name: &ModelName) -> Result<Removed, HubError> {
        cached::remove(&self.cache, name)
    }

    fn base(&self) -> &str {
        self.endpoint.trim_end_matches('/')
    }
}

/// A path as it stands in a URL.
fn encoded(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'_' | b'.' | b'~');
    path.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
