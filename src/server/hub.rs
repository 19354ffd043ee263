//! Model files from a hub, in the cache that other programs of the hub share.
//! Owns finding, fetching, resuming and checking. Knows nothing of models.
//!
//! Layout of the cache: `models--USER--REPO/blobs/SHA256` holds the bytes, `snapshots/COMMIT/PATH` leads there, and
//! `refs/main` names the commit.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Where models come from, and where they are kept.
#[derive(Clone, Debug)]
pub struct Hub {
    /// The hub's address.
    pub endpoint: String,
    /// The directory of all repositories.
    pub cache: PathBuf,
    /// For repositories that are not open to everybody.
    pub token: Option<String>,
    /// Use what is there and ask nobody.
    pub offline: bool,
}

/// Why a model cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Not of the form that is expected.
    #[error("`{0}`: USER/REPO or USER/REPO:QUANT expected, for example someone/model-GGUF:Q4_K_M")]
    Name(String),
    /// The hub did not answer as it should.
    #[error("{url}: {what}")]
    Http {
        /// What was asked for.
        url: String,
        /// What went wrong.
        what: String,
    },
    /// The hub cannot be reached.
    #[error("{url}: {what}")]
    Silent {
        /// What was asked for.
        url: String,
        /// What went wrong.
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
    /// There is no such file.
    #[error("{repo}: no GGUF file for `{wanted}`; there are: {found}")]
    NoFile {
        /// The repository.
        repo: String,
        /// What was asked for.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// Nothing was fetched before.
    #[error("{repo} is not in {cache}: run without --offline once")]
    NotThere {
        /// The repository.
        repo: String,
        /// Where it was looked for.
        cache: String,
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
}

#[derive(Debug, Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Entry {
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Clone, Debug, Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// A repository, and which of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    repo: String,
    /// A part of the file's name; empty takes the usual one.
    quant: String,
}

impl Wanted {
    fn parse(text: &str) -> Result<Self, HubError> {
        let wrong = || HubError::Name(text.to_owned());
        let (repo, quant) = text.split_once(':').unwrap_or((text, ""));
        let (user, name) = repo.split_once('/').ok_or_else(wrong)?;
        let plain = |part: &str| {
            let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && !part.starts_with('.') && part.chars().all(ok)
        };
        if !plain(user) || !plain(name) || !(quant.is_empty() || plain(quant)) {
            return Err(wrong());
        }
        Ok(Self { repo: repo.to_owned(), quant: quant.to_owned() })
    }

    /// The file, or all shards of it, of these paths.
    fn choose(&self, paths: &[String]) -> Result<Vec<String>, HubError> {
        let is_model = |p: &&String| p.ends_with(".gguf") && !p.contains("mmproj");
        let mut models: Vec<&String> = paths.iter().filter(is_model).collect();
        models.sort();
        let of = |quant: &str| {
            let quant = quant.to_lowercase();
            models.iter().copied().find(|path| path.to_lowercase().contains(&quant))
        };
        let first = match self.quant.as_str() {
            "" => of("q4_k_m").or_else(|| of("q8_0")).or(models.first().copied()),
            quant => of(quant),
        };
        let Some(first) = first else {
            let found = models.iter().map(|p| p.as_str()).collect::<Vec<_>>().join(", ");
            return Err(HubError::NoFile { repo: self.repo.clone(), wanted: self.quant.clone(), found });
        };
        let Some((stem, _)) = first.split_once("-00001-of-") else { return Ok(vec![first.clone()]) };
        let shards = models.iter().filter(|path| path.starts_with(&format!("{stem}-0")));
        Ok(shards.map(|path| (*path).clone()).collect())
    }
}

impl Hub {
    /// As other programs of the hub find it: `HF_ENDPOINT`, `HF_HUB_CACHE` or `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`.
    pub fn from_env(env: impl Fn(&str) -> Option<String>, offline: bool) -> Self {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
            cache
                .unwrap_or_else(|| Path::new(&set("HOME").unwrap_or_else(|| ".".into())).join(".cache"))
                .join("huggingface")
        });
        Self {
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            cache: set("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            token: set("HF_TOKEN"),
            offline: offline || set("HF_HUB_OFFLINE").is_some_and(|on| !matches!(on.as_str(), "0" | "false" | "no")),
        }
    }

    /// The path of a model's (first) file, fetched if it is not there. `progress` is told bytes done and bytes in all.
    ///
    /// # Errors
    /// [`HubError`].
    pub fn file(&self, name: &str, progress: &dyn Fn(&str, u64, u64)) -> Result<PathBuf, HubError> {
        let wanted = Wanted::parse(name)?;
        let place = self.cache.join(format!("models--{}", wanted.repo.replace('/', "--")));
        if self.offline {
            return self.cached(&wanted, &place);
        }
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .build()
            .into();
        let base = format!("{}/api/models/{}", self.endpoint.trim_end_matches('/'), wanted.repo);
        let revision: Revision = match self.json(&agent, &format!("{base}/revision/main")) {
            Ok(revision) => revision,
            Err(error @ HubError::Silent { .. }) => {
                let Ok(path) = self.cached(&wanted, &place) else { return Err(error) };
                tracing::warn!(%error, path = %path.display(), "using the cached file");
                return Ok(path);
            }
            Err(error) => return Err(error),
        };
        let commit = revision.sha;
        if commit.is_empty() || !commit.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(HubError::Http { url: base, what: "the commit's name is none".into() });
        }
        let entries: Vec<Entry> = self.json(&agent, &format!("{base}/tree/{commit}?recursive=true"))?;
        let paths: Vec<String> = entries.iter().map(|e| e.path.clone()).collect();
        let mut files = Vec::new();
        for path in wanted.choose(&paths)? {
            let Some(entry) = entries.iter().find(|e| e.path == path) else { continue };
            files.push(self.fetch(&agent, &wanted.repo, &place, &commit, entry, progress)?);
        }
        let reference = place.join("refs");
        in_cache(&reference, fs::create_dir_all(&reference))?;
        in_cache(&reference, fs::write(reference.join("main"), &commit))?;
        files.into_iter().next().ok_or_else(|| self.not_there(&wanted))
    }

    /// What was fetched before.
    fn cached(&self, wanted: &Wanted, place: &Path) -> Result<PathBuf, HubError> {
        let commit = fs::read_to_string(place.join("refs/main")).map_err(|_| self.not_there(wanted))?;
        let snapshot = place.join("snapshots").join(commit.trim());
        let mut paths = Vec::new();
        list(&snapshot, &snapshot, &mut paths).map_err(|_| self.not_there(wanted))?;
        paths.sort();
        let chosen = wanted.choose(&paths)?;
        chosen.first().map(|path| snapshot.join(path)).ok_or_else(|| self.not_there(wanted))
    }

    fn not_there(&self, wanted: &Wanted) -> HubError {
        HubError::NotThere { repo: wanted.repo.clone(), cache: self.cache.display().to_string() }
    }

    /// One file into the cache, going on where an earlier run stopped.
    fn fetch(
        &self,
        agent: &ureq::Agent,
        repo: &str,
        place: &Path,
        commit: &str,
        entry: &Entry,
        progress: &dyn Fn(&str, u64, u64),
    ) -> Result<PathBuf, HubError> {
        let url = format!("{}/{repo}/resolve/{commit}/{}", self.endpoint.trim_end_matches('/'), entry.path);
        let wrong = |what: &str| HubError::Http { url: url.clone(), what: what.into() };
        let plain = Path::new(&entry.path).components().all(|c| matches!(c, Component::Normal(_)));
        let Some(lfs) = entry.lfs.as_ref().filter(|lfs| plain && is_sha256(&lfs.oid)) else {
            return Err(wrong("the hub gives no checksum or no plain path for this file"));
        };
        let link = place.join("snapshots").join(commit).join(&entry.path);
        let blobs = place.join("blobs");
        in_cache(&blobs, fs::create_dir_all(&blobs))?;
        let blob = blobs.join(&lfs.oid);
        if fs::metadata(&blob).map(|m| m.len()).ok() != Some(lfs.size) {
            let part = blobs.join(format!("{}.incomplete", lfs.oid));
            self.download(agent, &url, &part, lfs.size.max(entry.size), &|n, all| progress(&entry.path, n, all))?;
            let found = in_cache(&part, sha256(&part))?;
            if found != lfs.oid {
                in_cache(&part, fs::remove_file(&part))?;
                let path = entry.path.clone();
                return Err(HubError::Checksum { path, expected: lfs.oid.clone(), found });
            }
            in_cache(&blob, fs::rename(&part, &blob))?;
        }
        if !link.exists() {
            let parent = link.parent().unwrap_or(place);
            in_cache(parent, fs::create_dir_all(parent))?;
            // Up from the file's directory to the repository's.
            let up = "../".repeat(1 + Path::new(&entry.path).components().count());
            // A link that leads nowhere is in the way.
            let _ = fs::remove_file(&link);
            in_cache(&link, std::os::unix::fs::symlink(format!("{up}blobs/{}", lfs.oid), &link))?;
        }
        Ok(link)
    }

    fn download(
        &self,
        agent: &ureq::Agent,
        url: &str,
        part: &Path,
        size: u64,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), HubError> {
        let wrong = |what: String| HubError::Http { url: url.to_owned(), what };
        let mut file = in_cache(part, OpenOptions::new().create(true).append(true).open(part))?;
        if file.try_lock().is_err() {
            return Err(wrong("another program is fetching this file: wait for it".into()));
        }
        let mut done = in_cache(part, file.metadata())?.len();
        if done > size {
            in_cache(part, file.set_len(0))?;
            done = 0;
        }
        if done == size {
            return Ok(());
        }
        let mut request = agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if done > 0 {
            request = request.header("range", format!("bytes={done}-"));
        }
        let mut response = request.call().map_err(|error| wrong(error.to_string()))?;
        match response.status().as_u16() {
            206 => {}
            200 => {
                // All of it comes, whatever was asked for.
                in_cache(part, file.set_len(0))?;
                in_cache(part, file.seek(SeekFrom::Start(0)))?;
                done = 0;
            }
            status => return Err(wrong(told(status))),
        }
        let mut reader = response.body_mut().as_reader();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let n =
                reader.read(&mut buffer).map_err(|error| wrong(format!("{error}; run again to go on from here")))?;
            if n == 0 {
                break;
            }
            in_cache(part, file.write_all(&buffer[..n]))?;
            done += n as u64;
            progress(done, size);
            if done > size {
                return Err(wrong(format!("{size} bytes were promised and more came")));
            }
        }
        if done < size {
            return Err(wrong(format!("{done} of {size} bytes came; run again to go on from here")));
        }
        in_cache(part, file.sync_all())
    }

    fn json<T: for<'de> Deserialize<'de>>(&self, agent: &ureq::Agent, url: &str) -> Result<T, HubError> {
        let wrong = |what: String| HubError::Http { url: url.to_owned(), what };
        let mut request = agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let silent = |error: ureq::Error| HubError::Silent { url: url.to_owned(), what: error.to_string() };
        let mut response = request.call().map_err(silent)?;
        if response.status().as_u16() != 200 {
            return Err(wrong(told(response.status().as_u16())));
        }
        let text = response.body_mut().read_to_string().map_err(|error| wrong(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| wrong(format!("the answer is not what was expected: {error}")))
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

fn told(status: u16) -> String {
    let hint = match status {
        401 | 403 => ": the repository is not open to everybody; HF_TOKEN lets in",
        404 => ": there is no such repository or file",
        _ => "",
    };
    format!("the hub answers {status}{hint}")
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect());
        }
        hash.update(&buffer[..n]);
    }
}

/// Paths of all files below a directory, relative to `root`.
fn list(root: &Path, directory: &Path, into: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            list(root, &path, into)?;
        } else if let Ok(relative) = path.strip_prefix(root) {
            into.push(relative.display().to_string());
        }
    }
    Ok(())
}

fn in_cache<T>(path: &Path, done: io::Result<T>) -> Result<T, HubError> {
    done.map_err(|error| HubError::Cache { path: path.display().to_string(), error })
}

#[cfg(test)]
mod tests;
