//! What is in the cache, by model, and taking a model out. Nothing outside of the cache is touched, and no bytes that another file
//! of the repository needs.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cache::{Lock, RepoCache, relative, walk};
use crate::choose::{RepoFile, choose};
use crate::error::{HubError, in_cache};
use crate::file_name::{FileName, Role};
use crate::name::{ModelName, Part};

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// `USER/REPO:QUANT`, or `USER/REPO:FILE.gguf` where the quantisation names another file.
    pub name: String,
    /// As the file's name has it; empty where it says nothing.
    pub quant: String,
    /// Bytes of the model's files, MTP layer and projector left out.
    pub size: u64,
    /// The model's (first) file.
    pub path: PathBuf,
    /// Its MTP layer's file.
    pub head: Option<PathBuf>,
    /// Its projector's file.
    pub projector: Option<PathBuf>,
    /// When its bytes had come.
    pub downloaded: Option<SystemTime>,
    /// When it was last read, as far as the file system notes that.
    pub used: Option<SystemTime>,
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Paths in the repository.
    pub files: Vec<String>,
    /// Bytes that are free again.
    pub n_bytes: u64,
}

/// The name of a model by its file: with the quantisation where the file says one.
fn name_of(repo: &str, path: &str) -> String {
    match FileName::read(path).and_then(|name| name.quant()) {
        Some(quant) => format!("{repo}:{quant}"),
        None => format!("{repo}:{path}"),
    }
}

/// The shortest name that means this file among these: the quantisation, unless that means another one.
pub(crate) fn name_among(files: &[RepoFile], repo: &ModelName, path: &str) -> String {
    let by_quant = name_of(repo.repo(), path);
    let found = by_quant.parse().ok().and_then(|name| choose(files, &name).ok());
    let is_named = found.is_some_and(|found| found.model[0].path == path);
    if is_named { by_quant } else { format!("{}:{path}", repo.repo()) }
}

/// All models, by name.
pub(crate) fn models(cache: &Path) -> Result<Vec<CachedModel>, HubError> {
    let entries = match fs::read_dir(cache) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => in_cache(cache, entries)?,
    };
    let mut models = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let repo = name.to_str().and_then(|name| name.strip_prefix("models--")?.split_once("--"));
        // What is no repository's folder is somebody else's.
        let repo = repo.and_then(|(user, name)| format!("{user}/{name}").parse::<ModelName>().ok());
        if let Some(name) = repo {
            models.extend(of_repo(cache, &name));
        }
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

fn of_repo(cache: &Path, repo: &ModelName) -> Vec<CachedModel> {
    let folders = RepoCache::new(cache, repo.repo());
    let mut models: Vec<CachedModel> = Vec::new();
    let mut seen = HashSet::new();
    for commit in folders.commits() {
        let (files, snapshot) = (folders.files(&commit), folders.snapshot(&commit));
        for file in &files {
            // A file that is no model, or another shard of one, is not chosen under its own name.
            let chosen = repo.with_file(&file.path).and_then(|name| choose(&files, &name));
            let Some(choice) = chosen.ok().filter(|choice| choice.model[0].path == file.path) else { continue };
            if !seen.insert(file.path.clone()) {
                continue;
            }
            let first = |files: &[&RepoFile]| files.first().map(|file| snapshot.join(&file.path));
            let meta = fs::metadata(snapshot.join(&file.path)).ok();
            models.push(CachedModel {
                name: name_among(&files, repo, &file.path),
                quant: FileName::read(&file.path).and_then(|name| name.quant()).unwrap_or_default().to_owned(),
                size: choice.model.iter().map(|file| file.size).sum(),
                path: snapshot.join(&file.path),
                head: first(&choice.head),
                projector: first(&choice.projector),
                downloaded: meta.as_ref().and_then(|meta| meta.modified().ok()),
                used: meta.as_ref().and_then(|meta| meta.accessed().ok()),
            });
        }
    }
    models
}

/// Removes a model, or a whole repository.
pub(crate) fn remove(cache: &Path, name: &ModelName) -> Result<Removed, HubError> {
    let repo = RepoCache::new(cache, name.repo());
    let missing = || HubError::NotCached { name: name.to_string(), cache: cache.display().to_string() };
    let meta = fs::symlink_metadata(&repo.folder).map_err(|_| missing())?;
    let snapshots = fs::symlink_metadata(repo.snapshots());
    let blobs = fs::symlink_metadata(repo.folder.join("blobs"));
    if let Some(path) =
        [(Some(meta), repo.folder.clone()), (snapshots.ok(), repo.snapshots()), (blobs.ok(), repo.folder.join("blobs"))]
            .into_iter()
            .find_map(|(meta, path)| meta.filter(|meta| !meta.is_dir()).map(|_| path))
    {
        return Err(HubError::Outside { path: path.display().to_string() });
    }
    let links = links(&repo)?;
    let chosen: HashSet<String> = match name.part() {
        Part::Any => links.iter().map(|link| link.path.clone()).collect(),
        _ => parts(&repo, name)?,
    };
    let (going, staying): (Vec<&Link>, Vec<&Link>) = links.iter().partition(|link| chosen.contains(&link.path));
    if going.is_empty() && *name.part() != Part::Any {
        return Err(missing());
    }
    let needed: HashSet<&PathBuf> = staying.iter().filter_map(|link| link.blob.as_ref()).collect();
    let mut blobs: HashSet<PathBuf> = going.iter().filter_map(|link| link.blob.clone()).collect();
    if *name.part() == Part::Any {
        blobs.extend(leftovers(&repo));
    }
    blobs.retain(|blob| !needed.contains(blob));
    // All locks before anything is removed: what is being fetched stays whole.
    let mut locks = Vec::new();
    for blob in &blobs {
        let sha256 = blob.file_stem().unwrap_or_default().to_string_lossy();
        let lock = Lock::take(&repo.lock(&sha256))?;
        locks.push(lock.ok_or_else(|| HubError::Locked { what: format!("{} ({sha256})", name.repo()) })?);
    }
    let mut removed = Removed::default();
    for link in &going {
        let len = fs::symlink_metadata(&link.link).map_or(0, |meta| if meta.is_file() { meta.len() } else { 0 });
        in_cache(&link.link, fs::remove_file(&link.link))?;
        removed.n_bytes += len;
        if !removed.files.contains(&link.path) {
            removed.files.push(link.path.clone());
        }
    }
    for blob in &blobs {
        let len = fs::symlink_metadata(blob).map_or(0, |meta| meta.len());
        match fs::remove_file(blob) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => {
                in_cache(blob, done)?;
                removed.n_bytes += len;
            }
        }
    }
    tidy(&repo, cache, *name.part() == Part::Any);
    removed.files.sort();
    Ok(removed)
}

/// A file of a revision.
struct Link {
    /// Its path in the repository.
    path: String,
    link: PathBuf,
    /// The bytes that it leads to, in the repository's own folder; `None` for a file that holds them itself, or leads elsewhere.
    blob: Option<PathBuf>,
}

fn links(repo: &RepoCache) -> Result<Vec<Link>, HubError> {
    let mut links = Vec::new();
    for commit in repo.commits() {
        let root = repo.snapshot(&commit);
        if !fs::symlink_metadata(&root).is_ok_and(|meta| meta.is_dir()) {
            continue;
        }
        let done = walk(&root, &mut |path| {
            let target = fs::read_link(path).ok();
            let own = target.and_then(|target| {
                let blob = repo.folder.join("blobs").join(target.file_name()?);
                let is_blobs = target.parent().and_then(Path::file_name).is_some_and(|folder| folder == "blobs");
                is_blobs.then_some(blob)
            });
            links.push(Link { path: relative(&root, path)?, link: path.to_owned(), blob: own });
            Some(())
        });
        in_cache(&root, done)?;
    }
    Ok(links)
}

/// The paths of a model in all revisions: its shards, and the layer and projector that no other model there is paired with.
fn parts(repo: &RepoCache, name: &ModelName) -> Result<HashSet<String>, HubError> {
    let mut paths = HashSet::new();
    let mut refused = None;
    for commit in repo.commits() {
        let files = repo.files(&commit);
        let choice = match choose(&files, name) {
            Ok(choice) => choice,
            Err(error) => {
                refused.get_or_insert(error);
                continue;
            }
        };
        let own: HashSet<&str> = choice.model.iter().map(|file| file.path.as_str()).collect();
        let is_model = |file: &&RepoFile| {
            let name = FileName::read(&file.path);
            name.is_some_and(|name| name.role() == Role::Model) && !own.contains(file.path.as_str())
        };
        let others: HashSet<String> = files
            .iter()
            .filter(is_model)
            .filter_map(|file| choose(&files, &name.with_file(&file.path).ok()?).ok())
            .flat_map(|choice| choice.files().map(|file| file.path.clone()).collect::<Vec<_>>())
            .collect();
        paths.extend(choice.files().map(|file| file.path.clone()).filter(|path| !others.contains(path)));
    }
    match refused {
        Some(error) if paths.is_empty() => Err(HubError::OtherCached { error: Box::new(error) }),
        _ => Ok(paths),
    }
}

/// All bytes of a repository, those of files that have not come whole included.
fn leftovers(repo: &RepoCache) -> Vec<PathBuf> {
    let entries = fs::read_dir(repo.folder.join("blobs")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Removes folders that are empty, and with `whole` what else there is of the repository.
fn tidy(repo: &RepoCache, cache: &Path, whole: bool) {
    // Folders that are not empty stay, and an empty one that stays does no harm.
    let entries = fs::read_dir(repo.snapshots()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_empty(&entry.path());
    }
    let is_empty = |folder: PathBuf| fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if whole || (is_empty(repo.snapshots()) && is_empty(repo.folder.join("blobs"))) {
        let _ = fs::remove_dir_all(&repo.folder);
        let _ = fs::remove_dir_all(&repo.locks);
        let _ = fs::remove_dir(cache.join(".locks"));
    }
}

/// Removes a folder with all folders in it, as far as they hold no files.
fn remove_empty(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_empty(&entry.path());
    }
    let _ = fs::remove_dir(folder);
}
