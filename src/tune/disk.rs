//! What the target makes of texts, on disk (`--cache-dir`): one file for a model, up to a size. Owns its records, which are found
//! by their tokens and checked when they are read. Knows nothing of trainings: whatever is not there is computed again.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use half::f16;
use program::sanitize;
use program::terminal::tell;
use sha2::{Digest, Sha256};
use text::{TokenId, hex};

use crate::known::Known;

/// Sizes of a record: hidden states have `n_embd` numbers for each token, and `n_words` of its likeliest words are known.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Numbers of a hidden state.
    pub n_embd: usize,
    /// Words of a token.
    pub n_words: usize,
}

impl Sizes {
    /// Bytes of what is known of a token.
    pub fn of_token(self) -> usize {
        2 * self.n_embd + 6 * self.n_words
    }
}

/// The file, open and locked.
#[derive(Debug)]
pub struct DiskCache {
    file: File,
    path: PathBuf,
    sizes: Sizes,
    /// Where the record of some tokens begins.
    begins: HashMap<[u8; 32], u64>,
    /// The end of the last whole record.
    end: u64,
    /// Bytes that the file may have.
    most: u64,
    /// A write has failed: nothing more is written.
    is_full: bool,
}

/// What a file begins with, before the digest of model and sizes.
const MAGIC: &[u8; 16] = b"nextn-tune-pass1";

/// Bytes before the first record.
const N_FRONT: u64 = 48;

/// The head of a record: the digest of its tokens, their number, the digest of its bytes, and 8 bytes of that of the head so far.
const N_HEAD: usize = 32 + 8 + 32 + 8;

fn head(key: &[u8; 32], n_tokens: u64, of_bytes: &[u8; 32]) -> [u8; N_HEAD] {
    let mut head = [0; N_HEAD];
    head[..32].copy_from_slice(key);
    head[32..40].copy_from_slice(&n_tokens.to_le_bytes());
    head[40..72].copy_from_slice(of_bytes);
    let digest = Sha256::digest(&head[..72]);
    head[72..].copy_from_slice(&digest[..8]);
    head
}

/// What tells the records of a text apart from those of others.
fn key(tokens: &[TokenId]) -> [u8; 32] {
    let mut digest = Sha256::new();
    tokens.iter().for_each(|token| digest.update(token.0.to_le_bytes()));
    digest.finalize().into()
}

impl DiskCache {
    /// The file of a model (its fingerprint) in `dir`, which is made where it is missing, of at most `most` bytes. What an
    /// earlier training left is taken up; a file with anything else in it is begun anew. `None` where another training has it
    /// open.
    ///
    /// # Errors
    /// The folder or the file cannot be made or read.
    pub fn open(dir: &Path, model: &[u8], sizes: Sizes, most: u64) -> anyhow::Result<Option<Self>> {
        let shown = dir.display();
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        // Texts can be guessed from the likeliest words.
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(dir).with_context(|| format!("{shown}: cannot be made"))?;
        let mut digest = Sha256::new_with_prefix(model);
        digest.update((sizes.n_embd as u64).to_le_bytes());
        digest.update((sizes.n_words as u64).to_le_bytes());
        let front = [&MAGIC[..], &digest.finalize()[..]].concat();
        let path = dir.join(format!("{}.passes", hex(&front[16..24])));
        let shown = path.display();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).with_context(|| format!("{shown}: cannot be opened"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                note(&format!("{shown}: another training writes it; this one keeps nothing on disk"));
                return Ok(None);
            }
            // Some file systems have no locks.
            Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::Error(e)) => return Err(e).with_context(|| format!("{shown}: cannot be locked")),
        }
        let mut cache = Self { file, path, sizes, begins: HashMap::new(), end: N_FRONT, most, is_full: false };
        if let Err(error) = cache.take_up(&front) {
            note(&format!("{}: {error}; nothing more is kept on disk", cache.path.display()));
            (cache.is_full, cache.end) = (true, 0);
            cache.begins.clear();
        }
        Ok(Some(cache))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds the records of an earlier training, and cuts off what comes after the last whole one.
    fn take_up(&mut self, front: &[u8]) -> std::io::Result<()> {
        let n_bytes = self.file.metadata()?.len();
        let mut found = vec![0; front.len()];
        let mut from = BufReader::new(&self.file);
        let is_ours = n_bytes >= N_FRONT && from.read_exact(&mut found).is_ok() && found == front;
        if !is_ours {
            if n_bytes > 0 {
                note(&format!("{}: not what this model left here; it is begun anew", self.path.display()));
            }
            self.file.set_len(0)?;
            self.file.rewind()?;
            return self.file.write_all(front);
        }
        let mut bytes = [0; N_HEAD];
        while self.end < n_bytes && from.read_exact(&mut bytes).is_ok() {
            let mut key = [0; 32];
            key.copy_from_slice(&bytes[..32]);
            let (mut n_tokens, mut of_bytes) = ([0; 8], [0; 32]);
            n_tokens.copy_from_slice(&bytes[32..40]);
            of_bytes.copy_from_slice(&bytes[40..72]);
            let n_tokens = u64::from_le_bytes(n_tokens);
            let n = n_tokens.checked_mul(self.sizes.of_token() as u64).and_then(|n| i64::try_from(n).ok());
            let Some(n) = n.filter(|_| head(&key, n_tokens, &of_bytes) == bytes) else { break };
            let end = self.end.saturating_add(N_HEAD as u64).saturating_add(n as u64);
            if end > n_bytes {
                break;
            }
            from.seek_relative(n)?;
            self.begins.insert(key, self.end);
            self.end = end;
        }
        if self.end < n_bytes {
            note(&format!("{}: damaged from byte {} on; that part is computed again", self.path.display(), self.end));
            self.file.set_len(self.end)?;
        }
        Ok(())
    }

    /// What is known of a text; `None` where nothing is, or what is there is damaged.
    pub fn get(&mut self, tokens: &[TokenId]) -> Option<Known> {
        let key = key(tokens);
        let begin = *self.begins.get(&key)?;
        match self.read(&key, begin, tokens.len()) {
            Ok(Some(known)) => return Some(known),
            Ok(None) => note(&format!("{}: damaged at byte {begin}; computed again", self.path.display())),
            Err(error) => note(&format!("{}: {error}; computed again", self.path.display())),
        }
        self.begins.remove(&key);
        None
    }

    fn read(&mut self, key: &[u8; 32], begin: u64, n_tokens: usize) -> std::io::Result<Option<Known>> {
        self.file.seek(SeekFrom::Start(begin))?;
        let mut bytes = vec![0; N_HEAD + n_tokens * self.sizes.of_token()];
        self.file.read_exact(&mut bytes)?;
        let (front, bytes) = bytes.split_at(N_HEAD);
        if front != head(key, n_tokens as u64, &Sha256::digest(bytes).into()) {
            return Ok(None);
        }
        let (hidden, words) = bytes.split_at(2 * n_tokens * self.sizes.n_embd);
        let (probs, ids) = words.split_at(2 * n_tokens * self.sizes.n_words);
        let halves = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x)).collect();
        let ids = ids.as_chunks().0.iter().map(|x| u32::from_le_bytes(*x)).collect();
        Ok(Some(Known { hidden: halves(hidden), ids, probs: halves(probs) }))
    }

    /// Keeps what is known of a text, where there is room for it.
    pub fn put(&mut self, tokens: &[TokenId], known: &Known) {
        let n = (N_HEAD + tokens.len() * self.sizes.of_token()) as u64;
        let key = key(tokens);
        // Texts may be the same.
        if self.is_full || self.end.saturating_add(n) > self.most || self.begins.contains_key(&key) {
            return;
        }
        let mut bytes = vec![0; N_HEAD];
        bytes.extend(known.hidden.iter().chain(&known.probs).flat_map(|x| x.to_le_bytes()));
        bytes.extend(known.ids.iter().flat_map(|x| x.to_le_bytes()));
        let front = head(&key, tokens.len() as u64, &Sha256::digest(&bytes[N_HEAD..]).into());
        bytes[..N_HEAD].copy_from_slice(&front);
        debug_assert_eq!(bytes.len() as u64, n);
        let written = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.write_all(&bytes));
        match written {
            Ok(()) => {
                self.begins.insert(key, self.end);
                self.end += n;
            }
            Err(error) => {
                note(&format!("{}: {error}; nothing more is kept on disk", self.path.display()));
                self.is_full = true;
                // Where this fails, the next training cuts it off.
                drop(self.file.set_len(self.end));
            }
        }
    }
}

fn note(words: &str) {
    tell(&format!("note: {}", sanitize::clean(words)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { n_embd: 3, n_words: 2 };

    fn tokens(n: usize) -> Vec<TokenId> {
        (0..n as u32).map(TokenId).collect()
    }

    fn known(n: usize) -> Known {
        let half = |i: usize| f16::from_f32(i as f32 / 8.0);
        Known {
            hidden: (0..3 * n).map(half).collect(),
            ids: (0..2 * n as u32).collect(),
            probs: (0..2 * n).map(half).collect(),
        }
    }

    fn open(dir: &Path, most: u64) -> DiskCache {
        DiskCache::open(dir, b"a model", SIZES, most).unwrap().expect("nobody else has it")
    }

    fn is_there(cache: &mut DiskCache, n: usize) -> bool {
        match cache.get(&tokens(n)) {
            Some(found) => {
                let wanted = known(n);
                assert!(found.hidden == wanted.hidden && found.ids == wanted.ids && found.probs == wanted.probs);
                true
            }
            None => false,
        }
    }

    #[test]
    fn what_was_kept_is_there_again_for_the_same_model_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = open(dir.path(), 1 << 20);
        (1..6).for_each(|n| cache.put(&tokens(n), &known(n)));
        assert!((1..6).all(|n| is_there(&mut cache, n)) && !is_there(&mut cache, 6));
        assert!(DiskCache::open(dir.path(), b"a model", SIZES, 1 << 20).unwrap().is_none(), "two write one file");
        drop(cache);
        let mut cache = open(dir.path(), 1 << 20);
        assert!((1..6).all(|n| is_there(&mut cache, n)));
        cache.put(&tokens(6), &known(6));
        assert!((1..7).all(|n| is_there(&mut cache, n)));
        for (model, sizes) in [(&b"another"[..], SIZES), (b"a model", Sizes { n_embd: 2, ..SIZES })] {
            let mut other = DiskCache::open(dir.path(), model, sizes, 1 << 20).unwrap().unwrap();
            assert!(other.get(&tokens(2)).is_none());
        }
    }

    #[test]
    fn a_file_stays_within_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = open(dir.path(), 300);
        (1..40).for_each(|n| cache.put(&tokens(n), &known(n)));
        let n_bytes = std::fs::metadata(cache.path()).unwrap().len();
        assert!((N_FRONT + 1..=300).contains(&n_bytes), "{n_bytes}");
        assert!(is_there(&mut cache, 1) && !is_there(&mut cache, 39));
    }

    #[test]
    fn damage_costs_what_it_touches() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = open(dir.path(), 1 << 20);
        (1..6).for_each(|n| cache.put(&tokens(n), &known(n)));
        let (path, begins) = (cache.path().to_owned(), [1, 2, 3, 4, 5].map(|n| cache.begins[&key(&tokens(n))]));
        drop(cache);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            let mut cache = open(dir.path(), 1 << 20);
            let there = [1, 2, 3, 4, 5].map(|n| is_there(&mut cache, n));
            // Before the first record all are gone; behind a broken head the rest; otherwise one.
            let hit = begins.iter().rposition(|begin| *begin <= at as u64);
            let in_head = hit.is_some_and(|i| (at as u64) < begins[i] + N_HEAD as u64);
            let wanted = [0, 1, 2, 3, 4].map(|i| match hit {
                None => false,
                Some(hit) => i < hit || (i > hit && !in_head),
            });
            assert_eq!(there, wanted, "byte {at}");
            (1..6).for_each(|n| cache.put(&tokens(n), &known(n)));
            assert!((1..6).all(|n| is_there(&mut cache, n)), "byte {at}");
        }
        for n in 0..whole.len() {
            std::fs::write(&path, &whole[..n]).unwrap();
            let mut cache = open(dir.path(), 1 << 20);
            let n_whole = begins.iter().skip(1).filter(|begin| **begin <= n as u64).count();
            assert_eq!([1, 2, 3, 4, 5].map(|i| is_there(&mut cache, i)), [1, 2, 3, 4, 5].map(|i| i <= n_whole), "{n}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_no_loss() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = open(dir.path(), 1 << 20);
        cache.put(&tokens(1), &known(1));
        let own =
            std::mem::replace(&mut cache.file, OpenOptions::new().read(true).write(true).open("/dev/full").unwrap());
        cache.put(&tokens(2), &known(2));
        assert!(cache.is_full);
        cache.file = own;
        assert!(is_there(&mut cache, 1) && !is_there(&mut cache, 2));
        cache.put(&tokens(2), &known(2));
        assert!(!is_there(&mut cache, 2), "after a failure nothing is written");
    }
}
