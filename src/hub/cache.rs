//! The cache of one repository, in the layout that other programs of the hub share.
//!
//! `models--USER--REPO/blobs/SHA256` holds the bytes, `snapshots/COMMIT/PATH` leads there, `refs/main` names the newest commit;
//! `.locks/models--USER--REPO/SHA256.lock` is held by the program that fetches a file.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::choose::{Choice, RepoFile};
use crate::error::{HubError, in_cache};
use crate::name::is_plain_path;
use crate::watch::{Event, Watch};

/// The folders of a repository.
pub(crate) struct RepoCache {
    /// `models--USER--REPO`.
    pub(crate) folder: PathBuf,
    pub(crate) locks: PathBuf,
}

impl RepoCache {
    pub(crate) fn new(cache: &Path, repo: &str) -> Self {
        let name = format!("models--{}", repo.replace('/', "--"));
        Self { locks: cache.join(".locks").join(&name), folder: cache.join(name) }
    }

    pub(crate) fn blob(&self, sha256: &str) -> PathBuf {
        self.folder.join("blobs").join(sha256)
    }

    /// A file that has not come whole.
    pub(crate) fn part(&self, sha256: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{sha256}.incomplete"))
    }

    pub(crate) fn lock(&self, sha256: &str) -> PathBuf {
        self.locks.join(format!("{sha256}.lock"))
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.folder.join("snapshots")
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    /// The revisions that are there, that of `refs/main` first.
    pub(crate) fn commits(&self) -> Vec<String> {
        let main = fs::read_to_string(self.folder.join("refs/main")).unwrap_or_default();
        let entries = fs::read_dir(self.snapshots()).into_iter().flatten().flatten();
        let mut commits: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        commits.sort_by_key(|commit| (commit != main.trim(), commit.clone()));
        commits
    }

    /// The GGUF files of a revision whose bytes are there.
    pub(crate) fn files(&self, commit: &str) -> Vec<RepoFile> {
        let root = self.snapshot(commit);
        let mut files = Vec::new();
        // A folder that cannot be read has no files for us.
        let _ = walk(&root, &mut |path| {
            let relative = relative(&root, path)?;
            let size = fs::metadata(path).ok().filter(fs::Metadata::is_file)?.len();
            files.push(RepoFile { path: relative, size, sha256: None });
            Some(())
        });
        files
    }

    /// # Errors
    /// [`HubError::NoRoom`].
    pub(crate) fn check_room(&self, choice: &Choice<'_>) -> Result<(), HubError> {
        in_cache(&self.folder, fs::create_dir_all(&self.folder))?;
        let Some(free) = free_bytes(&self.folder) else { return Ok(()) };
        let needed = choice.files().fold(0_u64, |sum, file| sum.saturating_add(self.missing(file)));
        if needed <= free {
            return Ok(());
        }
        Err(HubError::NoRoom { path: self.folder.display().to_string(), needed: gib(needed), free: gib(free) })
    }

    /// Bytes of a file that are not there.
    fn missing(&self, file: &RepoFile) -> u64 {
        let Some(sha256) = &file.sha256 else { return 0 };
        let len = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
        if len(&self.blob(sha256)) == file.size { 0 } else { file.size.saturating_sub(len(&self.part(sha256))) }
    }

    /// Puts a file whose bytes are there into a revision.
    pub(crate) fn link(&self, commit: &str, file: &RepoFile) -> Result<(), HubError> {
        let Some(sha256) = &file.sha256 else { return Ok(()) };
        let (blob, link) = (self.blob(sha256), self.snapshot(commit).join(&file.path));
        let folder = link.parent().unwrap_or(&self.folder);
        in_cache(folder, fs::create_dir_all(folder))?;
        // Up from the file's folder to the repository's.
        let up = "../".repeat(1 + file.path.split('/').count());
        let target = PathBuf::from(format!("{up}blobs/{sha256}"));
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        // What leads elsewhere is in the way, and so is a copy, which may be of other bytes.
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return in_cache(&link, Err(error)),
            _ => {}
        }
        in_cache(&link, link_or_copy(&target, &blob, &link))
    }

    /// Notes the newest revision.
    pub(crate) fn set_main(&self, commit: &str) -> Result<(), HubError> {
        let folder = self.folder.join("refs");
        in_cache(&folder, fs::create_dir_all(&folder))?;
        let (new, main) = (folder.join(format!("main.{}.new", std::process::id())), folder.join("main"));
        in_cache(&new, fs::write(&new, commit))?;
        in_cache(&main, fs::rename(&new, &main))
    }
}

/// A link to the bytes; where the file system has none a second name for them, else a copy.
fn link_or_copy(target: &Path, blob: &Path, link: &Path) -> io::Result<()> {
    let made = symlink(target, link).or_else(|error| match error.kind() {
        // Another program made it a moment ago.
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => fs::hard_link(blob, link),
    });
    made.or_else(|_| {
        let part = link.with_extension("incomplete");
        fs::copy(blob, &part)?;
        fs::rename(&part, link)
    })
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The bytes that may still be written where `folder` is; `None` where the system does not say.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let facts = rustix::fs::statvfs(folder).ok()?;
    Some(facts.f_bavail.saturating_mul(facts.f_frsize))
}

/// The bytes that may still be written where `folder` is; `None` where the system does not say.
#[cfg(not(unix))]
pub fn free_bytes(_: &Path) -> Option<u64> {
    None
}

fn gib(n_bytes: u64) -> String {
    format!("{:.2} GiB", n_bytes as f64 / f64::from(1 << 30))
}

/// Held while a file is fetched; other programs of the hub look at it too.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing the file gives the lock back")] File);

impl Lock {
    /// Waits until no other program has it.
    ///
    /// # Errors
    /// A cache that cannot be written; [`HubError::Cancelled`].
    pub(crate) fn wait(path: &Path, file: &str, watch: &Watch<'_>) -> Result<Self, HubError> {
        let mut told = false;
        loop {
            if let Some(lock) = Self::take(path)? {
                return Ok(lock);
            }
            if !std::mem::replace(&mut told, true) {
                watch.tell(Event::Waiting { file });
            }
            watch.wait(LOCK_CHECK)?;
        }
    }

    /// `None` where another program has it.
    ///
    /// # Errors
    /// A cache that cannot be written.
    pub(crate) fn take(path: &Path) -> Result<Option<Self>, HubError> {
        if let Some(folder) = path.parent() {
            in_cache(folder, fs::create_dir_all(folder))?;
        }
        let file = in_cache(path, OpenOptions::new().create(true).append(true).open(path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            // Some file systems have no locks. The bytes are checked before they are used.
            Err(TryLockError::Error(error)) => {
                tracing::debug!(path = %path.display(), %error, "going on without a lock");
                Ok(Some(Self(file)))
            }
        }
    }
}

/// Calls `visit` with every file below a folder; links to folders are not followed.
pub(crate) fn walk(folder: &Path, visit: &mut dyn FnMut(&Path) -> Option<()>) -> io::Result<()> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                visit(&entry.path());
            }
        }
    }
    Ok(())
}

/// A path below `root` as the hub writes it.
pub(crate) fn relative(root: &Path, path: &Path) -> Option<String> {
    let parts: Option<Vec<&str>> = path.strip_prefix(root).ok()?.iter().map(|part| part.to_str()).collect();
    Some(parts?.join("/")).filter(|path| is_plain_path(path))
}

const LOCK_CHECK: Duration = Duration::from_millis(200);
