//! Sequences on disk, which outlive the program: one file each, in a folder of bounded size.
//! Owns the folder's names, what is dropped for room, and the thread that writes. Whatever is wrong with a file costs that file
//! and nothing else: it is dropped with a line in the log. Knows nothing of slots.
//!
//! A file is whole or not there: it is written under another name, synced, and renamed. Its head says which tokens it is for
//! and is all that is read at the start; head and body have a digest each, and the body is a slot file with all its checks.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use memory::{ByteReader, put_number};
use model::AdapterSet;
use sha2::{Digest, Sha256};
use text::{TokenId, hex};

use crate::private_files::{create, make_folder, remove};
use crate::request::Scope;
use crate::slot_file::{SlotFormat, SlotState};

/// Where sequences are kept, and how much of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The folder, which is made where there is none.
    pub dir: PathBuf,
    /// Bytes of all files in it, those of other models included.
    pub n_bytes: u64,
}

/// A sequence that a file holds.
struct Entry {
    path: PathBuf,
    scope: Scope,
    adapters: AdapterSet,
    tokens: Vec<TokenId>,
    /// Positions of its checkpoints, ascending.
    checkpoints: Vec<usize>,
    /// The sequence itself as long as it is in memory: its file may not be written yet.
    in_memory: Weak<SlotState>,
}

/// What a stored sequence is for, as its head says.
pub(crate) struct OnDisk<'a> {
    pub(crate) scope: Scope,
    pub(crate) adapters: &'a AdapterSet,
    pub(crate) tokens: &'a [TokenId],
    pub(crate) checkpoints: &'a [usize],
}

/// All files of one model.
pub(crate) struct DiskStore {
    dir: PathBuf,
    n_bytes: u64,
    format: Arc<SlotFormat>,
    /// How names of files begin that fit this engine.
    prefix: String,
    entries: Vec<Entry>,
    writer: Option<(SyncSender<Job>, JoinHandle<()>)>,
}

/// What the thread does.
enum Job {
    Write { path: PathBuf, scope: Scope, state: Arc<SlotState> },
    Remove(PathBuf),
}

impl DiskStore {
    /// Opens the folder, reads the heads of the files that fit this engine, and starts the thread.
    ///
    /// # Errors
    /// A sentence: the folder cannot be made or read, or there is no thread.
    pub(crate) fn open(config: &DiskConfig, format: Arc<SlotFormat>) -> Result<Self, String> {
        let dir = config.dir.clone();
        let refuse = |what: &str, error: &dyn std::fmt::Display| {
            format!("--cache-dir {}: {what}: {error}", config.dir.display())
        };
        make_folder(&dir).map_err(|error| refuse("the folder cannot be made", &error))?;
        let prefix = prefix(&format).map_err(|error| refuse("the model has no fingerprint", &error))?;
        let listed = fs::read_dir(&dir).map_err(|error| refuse("the folder cannot be read", &error))?;
        let mut found = Vec::new();
        for path in listed.filter_map(|entry| Some(entry.ok()?.path())) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if is_unfinished(name) && is_older(&path, LONGEST_WRITE) {
                remove(&path);
            } else if name.starts_with(&prefix) && n_tokens_in(name).is_some() {
                match read_head(&path, &format) {
                    Ok(Some(entry)) => found.push((modified(&path), entry)),
                    Ok(None) => {}
                    Err(error) => drop_damaged(&path, &error),
                }
            }
        }
        found.sort_by_key(|(modified, _)| *modified);
        let entries: Vec<_> = found.into_iter().map(|(_, entry)| entry).collect();
        tracing::info!(n_sequences = entries.len(), dir = %dir.display(), "sequences of earlier runs");
        let mut store = Self { dir, n_bytes: config.n_bytes, format, prefix, entries, writer: None };
        let (sender, jobs) = sync_channel::<Job>(MAX_JOBS);
        let (dir, n_bytes, format) = (store.dir.clone(), store.n_bytes, Arc::clone(&store.format));
        let thread = move || {
            let _ = make_room(&dir, n_bytes, 0, None);
            for job in jobs {
                work(&dir, n_bytes, &format, job);
            }
        };
        let thread = std::thread::Builder::new().name("nextn-cache".into()).spawn(thread);
        let thread = thread.map_err(|error| refuse("no thread was started", &error))?;
        store.writer = Some((sender, thread));
        Ok(store)
    }

    /// The sequence of which `usable` says most, with what it says.
    pub(crate) fn best(&self, usable: impl Fn(&OnDisk<'_>) -> usize) -> Option<(usize, usize)> {
        let weighed = self.entries.iter().enumerate().map(|(i, e)| {
            let Entry { scope, adapters, tokens, checkpoints, .. } = e;
            (usable(&OnDisk { scope: *scope, adapters, tokens, checkpoints }), i)
        });
        weighed.max().map(|(n, i)| (i, n))
    }

    /// Tokens of a sequence.
    pub(crate) fn n_tokens(&self, index: usize) -> usize {
        self.entries[index].tokens.len()
    }

    /// Gives a sequence, which stays on disk. `None`, and it is dropped, where the file is gone or not what it was.
    pub(crate) fn read(&mut self, index: usize) -> Option<Arc<SlotState>> {
        let entry = &self.entries[index];
        if let Some(state) = entry.in_memory.upgrade() {
            return Some(state);
        }
        match read_body(entry, &self.format) {
            Ok(state) => {
                // It was of use just now. Where the time cannot be set it only goes sooner.
                let _ = File::options().append(true).open(&entry.path).and_then(|f| f.set_modified(SystemTime::now()));
                Some(Arc::new(state))
            }
            Err(error) => {
                drop_damaged(&entry.path, &error);
                self.entries.remove(index);
                None
            }
        }
    }

    /// Hands a sequence to the thread that writes. One that begins as it does and is no longer is dropped. Without `waits` it is
    /// not kept where the disk is slower than sequences come.
    pub(crate) fn put(&mut self, scope: Scope, state: Arc<SlotState>, waits: bool) {
        let name = format!("{}{}-{}{SUFFIX}", self.prefix, name_of(scope, &state), state.tokens.len());
        let path = self.dir.join(name);
        let Some((writer, _)) = &self.writer else { return };
        let entry = Entry {
            path: path.clone(),
            scope,
            adapters: state.adapters.clone(),
            tokens: state.tokens.clone(),
            checkpoints: state.checkpoints.iter().map(|kept| kept.state.position()).collect(),
            in_memory: Arc::downgrade(&state),
        };
        let job = Job::Write { path, scope, state };
        let sent = if waits { writer.send(job).is_ok() } else { writer.try_send(job).is_ok() };
        if !sent {
            tracing::debug!("a sequence was not kept on disk: others are being written");
            return;
        }
        let covered = |old: &mut Entry| {
            old.scope == scope && old.adapters == entry.adapters && entry.tokens.starts_with(&old.tokens)
        };
        for old in self.entries.extract_if(.., covered) {
            // Where there is no room in the queue the file stays until the folder is full.
            if old.path != entry.path && writer.try_send(Job::Remove(old.path)).is_err() {
                tracing::debug!("a shorter sequence stays on disk");
            }
        }
        self.entries.push(entry);
    }
}

impl Drop for DiskStore {
    /// Waits until all is written.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            if thread.join().is_err() {
                tracing::error!("the thread that keeps sequences on disk has panicked");
            }
        }
    }
}

fn work(dir: &Path, n_bytes: u64, format: &Arc<SlotFormat>, job: Job) {
    match job {
        Job::Remove(path) => remove(&path),
        Job::Write { path, scope, state } => {
            if let Err(error) = write(dir, n_bytes, format, &path, scope, &state) {
                tracing::warn!(%error, path = %path.display(), "a sequence was not kept on disk");
            }
        }
    }
}

fn write(
    dir: &Path,
    n_bytes: u64,
    format: &Arc<SlotFormat>,
    path: &Path,
    scope: Scope,
    state: &Arc<SlotState>,
) -> io::Result<()> {
    let refused = |error: crate::SlotError| io::Error::other(error.to_string());
    let mut head = format.fingerprint().map_err(refused)?.to_vec();
    head.extend_from_slice(&scope.0.to_le_bytes());
    put_number(&mut head, usize::from(!state.adapters.is_empty()));
    format.put_adapters(&mut head, &state.adapters).map_err(refused)?;
    put_number(&mut head, state.tokens.len());
    state.tokens.iter().for_each(|id| head.extend_from_slice(&id.0.to_le_bytes()));
    put_number(&mut head, state.checkpoints.len());
    state.checkpoints.iter().for_each(|kept| put_number(&mut head, kept.state.position()));
    let body = format.write(state).map_err(refused)?;
    let of_file = (MAGIC.len() + 2 * PART_BYTES + head.len() + body.len()) as u64;
    if of_file > n_bytes {
        return Err(io::Error::other(format!("it takes {} MiB, --cache-disk is {} MiB", of_file >> 20, n_bytes >> 20)));
    }
    make_room(dir, n_bytes, of_file, Some(path))?;
    let unfinished = PathBuf::from(format!("{}{UNFINISHED}{}", path.display(), std::process::id()));
    let mut file = create(&unfinished, File::options().write(true).create(true).truncate(true))?;
    let mut write = || {
        file.write_all(MAGIC)?;
        for part in [&head, &body] {
            file.write_all(&(part.len() as u64).to_le_bytes())?;
            file.write_all(&digest_of(part))?;
            file.write_all(part)?;
        }
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    let written = write();
    if written.is_err() {
        remove(&unfinished);
    }
    written
}

/// Removes files until `more` bytes fit; those first that were unused for long and take much for each token that they save.
fn make_room(dir: &Path, n_bytes: u64, more: u64, except: Option<&Path>) -> io::Result<()> {
    let now = SystemTime::now();
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let Some(n_tokens) = n_tokens_of(&path) else { continue };
        // Another program may have removed it.
        let Ok(meta) = fs::metadata(&path) else { continue };
        let age = meta.modified().ok().and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
        let price = meta.len() as f64 / n_tokens.max(1) as f64;
        files.push(((age.as_secs_f64() + 1.0) * price, meta.len(), path));
    }
    files.sort_by(|a, b| a.0.total_cmp(&b.0));
    let replaced = |path: &Path| Some(path) == except;
    let mut all: u64 = files.iter().filter(|(.., path)| !replaced(path)).map(|(_, n, _)| n).sum();
    while all.saturating_add(more) > n_bytes
        && let Some((_, n, path)) = files.pop()
    {
        if !replaced(&path) {
            remove(&path);
            all -= n;
        }
    }
    Ok(())
}

/// Tokens that a file saves, as its name says; `None` for files of others, which are left alone.
fn n_tokens_of(path: &Path) -> Option<u64> {
    n_tokens_in(path.file_name()?.to_str()?)
}

/// The same of a name: two digests, the number, the suffix.
fn n_tokens_in(name: &str) -> Option<u64> {
    let mut parts = name.strip_suffix(SUFFIX)?.splitn(3, '-');
    let is_digest = |part: &str| part.len() == 16 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let digests = is_digest(parts.next()?) && is_digest(parts.next()?);
    parts.next()?.parse().ok().filter(|_| digests)
}

/// True for a file of ours that is being written, or whose writer has ended.
fn is_unfinished(name: &str) -> bool {
    name.split_once(UNFINISHED).is_some_and(|(name, _)| n_tokens_in(name).is_some())
}

/// What the head of a file says; `None` where it is sound and does not fit: longer than the context, or of adapters that are
/// not loaded.
fn read_head(path: &Path, format: &Arc<SlotFormat>) -> io::Result<Option<Entry>> {
    let mut file = File::open(path)?;
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(damaged("it does not begin as one"));
    }
    let head = read_part(&mut file, MAX_HEAD)?;
    let mut bytes = ByteReader::new(&head);
    let refused = |error: memory::Error| damaged(&error.to_string());
    let fingerprint = bytes.take(size_of::<model::Fingerprint>()).map_err(refused)?;
    if format.fingerprint().map_err(|error| damaged(&error.to_string()))? != fingerprint {
        return Ok(None);
    }
    let scope: [u8; 8] = bytes.take(8).map_err(refused)?.try_into().map_err(|_| damaged("it is cut off"))?;
    let scope = Scope(u64::from_le_bytes(scope));
    let adapters = match bytes.number().map_err(refused)? {
        0 => AdapterSet::default(),
        _ => match format.read_adapters(&mut bytes) {
            Ok(adapters) => adapters,
            Err(_) => return Ok(None),
        },
    };
    let n_tokens = bytes.number().map_err(refused)?;
    let words = bytes.words(n_tokens).map_err(refused)?;
    let tokens: Vec<TokenId> = words.iter().map(|&word| TokenId(u32::from_le_bytes(word))).collect();
    let n_checkpoints = bytes.number().map_err(refused)?;
    if n_checkpoints > crate::slot_file::MAX_CHECKPOINTS {
        return Err(damaged("it has too many checkpoints"));
    }
    let checkpoints = (0..n_checkpoints).map(|_| bytes.number()).collect::<Result<Vec<_>, _>>().map_err(refused)?;
    let fits = tokens.len() <= format.limits.n_ctx;
    Ok(fits.then(|| Entry { path: path.to_owned(), scope, adapters, tokens, checkpoints, in_memory: Weak::new() }))
}

fn read_body(entry: &Entry, format: &Arc<SlotFormat>) -> io::Result<SlotState> {
    let mut file = File::open(&entry.path)?;
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic)?;
    read_part(&mut file, MAX_HEAD)?;
    let body = read_part(&mut file, format.max_bytes() as u64)?;
    let state = format.read(&body).map_err(|error| damaged(&error.to_string()))?.state;
    let positions = state.checkpoints.iter().map(|kept| kept.state.position());
    if state.tokens != entry.tokens
        || state.adapters != entry.adapters
        || !positions.eq(entry.checkpoints.iter().copied())
    {
        return Err(damaged("head and body do not agree"));
    }
    Ok(state)
}

/// A length, a digest, and as many bytes.
fn read_part(file: &mut File, most: u64) -> io::Result<Vec<u8>> {
    let (mut length, mut digest) = ([0; 8], [0; 32]);
    file.read_exact(&mut length)?;
    file.read_exact(&mut digest)?;
    let length = u64::from_le_bytes(length);
    if length > most || length > file.metadata()?.len() {
        return Err(damaged(&format!("a part of {length} bytes, {most} at most expected")));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact(&mut bytes)?;
    if digest_of(&bytes) != digest {
        return Err(damaged("its digest is another"));
    }
    Ok(bytes)
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

/// Of what fits this engine: its model, the rotation of positions, and the types of its cells.
fn prefix(format: &SlotFormat) -> Result<String, crate::SlotError> {
    let mut digest = Sha256::new_with_prefix(format.fingerprint()?);
    format.shape.identity().iter().for_each(|word| digest.update(word.to_le_bytes()));
    Ok(format!("{}-", hex(&<[u8; 32]>::from(digest.finalize())[..8])))
}

/// Of a sequence: whose it is, and its tokens. The same sequence is written over.
fn name_of(scope: Scope, state: &SlotState) -> String {
    let mut digest = Sha256::new_with_prefix(scope.0.to_le_bytes());
    state.adapters.scales().for_each(|(id, scale)| {
        digest.update((id as u64).to_le_bytes());
        digest.update(scale.to_le_bytes());
    });
    state.tokens.iter().for_each(|id| digest.update(id.0.to_le_bytes()));
    hex(&<[u8; 32]>::from(digest.finalize())[..8])
}

fn digest_of(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn is_older(path: &Path, than: Duration) -> bool {
    SystemTime::now().duration_since(modified(path)).is_ok_and(|age| age > than)
}

fn drop_damaged(path: &Path, error: &io::Error) {
    if error.kind() != ErrorKind::NotFound {
        let error = match error.kind() {
            ErrorKind::UnexpectedEof => "it is cut off".into(),
            _ => error.to_string(),
        };
        tracing::warn!(error, path = %path.display(), "a sequence on disk was dropped: its file cannot be used");
        remove(path);
    }
}

const MAGIC: &[u8; 8] = b"NXTSEQ01";

/// Length and digest before each part.
const PART_BYTES: usize = 8 + 32;

/// How names end, and what unfinished ones have in them.
const SUFFIX: &str = ".seq";
const UNFINISHED: &str = ".unfinished-";

/// No file is being written for so long.
const LONGEST_WRITE: Duration = Duration::from_secs(600);

/// Bytes of a head at most: 16 million tokens.
const MAX_HEAD: u64 = 64 << 20;

/// Sequences that wait to be written.
const MAX_JOBS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_are_told_from_ours() {
        let ours = "0123456789abcdef-fedcba9876543210-417.seq";
        assert_eq!(n_tokens_in(ours), Some(417));
        assert!(is_unfinished(&format!("{ours}{UNFINISHED}99")));
        for others in
            ["frame-001.seq", "a-b-12.seq", "0123456789abcdef-12.seq", "0123456789abcdef-fedcba9876543210-x.seq"]
        {
            assert_eq!(n_tokens_in(others), None, "{others}");
            assert!(!is_unfinished(&format!("{others}{UNFINISHED}99")), "{others}");
        }
        assert!(!is_unfinished("thesis.unfinished-1"));
    }
}
