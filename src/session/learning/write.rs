//! Writing finished replies as they come: on a thread of its own, within a bound, the oldest file going first. Whatever the disk
//! does costs replies that are not kept, and never a request.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::private_files::{create, make_folder, remove};
use engine::{FinishedReply, ReplySink, Scope};
use model::Model;
use text::hex;

use super::counts::Counts;
use super::kept::{ENDING, Head, KeptReply, is_digest, is_ours, stem};
use super::live::{Live, LiveNumbers, Subject};
use super::options::LearnOptions;

/// What was kept of a model's replies since it was loaded.
#[derive(Debug)]
pub struct Learning {
    counts: Arc<Counts>,
    n_overrun: Arc<AtomicU64>,
    writer: JoinHandle<()>,
    live: OnceLock<Live>,
}

impl Learning {
    /// Starts the thread that writes the replies of `model`; it ends when the sink is gone. A folder that cannot be written is
    /// told in the log and costs no request.
    ///
    /// # Errors
    /// A sentence: the model's file has changed, or the system has no thread.
    pub(crate) fn start(options: &LearnOptions, model: &Model) -> Result<(ReplySink, Arc<Self>), String> {
        let fingerprint = model.fingerprint().map_err(|error| format!("--learn: {error}"))?;
        let mut writer = Writer {
            options: options.clone(),
            model: hex(&fingerprint),
            n_vocab: model.hparams().n_vocab,
            files: HashMap::new(),
            n_files: 0,
            is_failing: false,
        };
        let folder = options.folder.display();
        tracing::info!(
            folder = %folder,
            mib = options.n_bytes >> 20,
            "replies are kept to train the head on: token ids of prompt and reply, and where drafts were refused; \
             `nextn-tune head MODEL --from FOLDER` learns from them, removing the folder forgets them"
        );
        let (sink, replies) = ReplySink::new(MAX_WAITING);
        let counts = Arc::<Counts>::default();
        let told = Arc::clone(&counts);
        let work = move || {
            let begun = make_folder(&writer.options.folder).and_then(|()| writer.make_room(0));
            writer.tell(begun, &told);
            for reply in replies {
                let written = writer.write(&reply);
                let counted = if written.is_ok() { &told.n_kept } else { &told.n_lost };
                // Whoever sees a reply counted sees its bytes.
                writer.tell(written, &told);
                told.add(&reply);
                counted.fetch_add(1, Ordering::Release);
            }
        };
        let writer = std::thread::Builder::new().name("nextn-learn".into()).spawn(work);
        let writer = writer.map_err(|error| format!("--learn: no thread was started: {error}"))?;
        let n_overrun = sink.n_dropped();
        Ok((sink, Arc::new(Self { counts, n_overrun, writer, live: OnceLock::new() })))
    }

    /// Replies that were written.
    pub fn n_kept(&self) -> u64 {
        self.counts.n_kept.load(Ordering::Acquire)
    }

    /// Bytes of all files in the folder, when it was last written to.
    pub fn n_bytes(&self) -> u64 {
        self.counts.n_bytes.load(Ordering::Relaxed)
    }

    /// Replies that were not kept: the disk was slower than they came, or refused them.
    pub fn n_dropped(&self) -> u64 {
        self.counts.n_lost.load(Ordering::Relaxed) + self.n_overrun.load(Ordering::Relaxed)
    }

    /// The engine has ended, and all of it is written.
    pub fn is_done(&self) -> bool {
        self.writer.is_finished() && self.live.get().is_none_or(Live::is_done)
    }

    /// What has come of learning while no request waits, where that was asked for.
    pub fn live(&self) -> Option<LiveNumbers> {
        self.live.get().map(Live::numbers)
    }

    /// Starts learning while no request waits; `life` is of the model's engine.
    ///
    /// # Errors
    /// A sentence: the head cannot learn so, or the system has no thread.
    pub(crate) fn start_live(&self, learn: &LearnOptions, subject: Subject) -> Result<(), String> {
        let Some(options) = &learn.live else { return Ok(()) };
        let live = Live::start(learn, options, subject, Arc::clone(&self.counts))?;
        drop(self.live.set(live));
        Ok(())
    }
}

/// Where replies of this scope are, in the folder of `--learn`.
pub fn folder_of(scope: Scope) -> String {
    hex(&scope.0.to_le_bytes())
}

struct Writer {
    options: LearnOptions,
    /// The model's fingerprint.
    model: String,
    n_vocab: usize,
    /// The file that is written to, by scope.
    files: HashMap<u64, PathBuf>,
    /// Files that were made.
    n_files: u64,
    /// The last reply was not written: more of that is not told.
    is_failing: bool,
}

impl Writer {
    /// Writes a reply at the end of its scope's file, or of a new one. Gives the bytes in the folder.
    fn write(&mut self, reply: &FinishedReply) -> io::Result<u64> {
        let line = json_line(&KeptReply::of(reply))?;
        let head = json_line(&Head::of(&self.model, self.n_vocab))?;
        let more = (line.len() + head.len()) as u64;
        let folder = self.options.folder.join(folder_of(reply.scope));
        make_folder(&self.options.folder)?;
        make_folder(&folder)?;
        let mut all = self.make_room(more)? + line.len() as u64;
        let of_file = (self.options.n_bytes / N_PARTS).max(1);
        let has_room = |path: &&PathBuf| fs::metadata(path).is_ok_and(|file| file.len() + more <= of_file);
        let path = match self.files.get(&reply.scope.0).filter(has_room) {
            Some(path) => path.clone(),
            None => {
                let path = self.new_path(&folder);
                create(&path, File::options().write(true).create_new(true))?
                    .write_all(&head)
                    .inspect_err(|_| remove(&path))?;
                self.files.insert(reply.scope.0, path.clone());
                all += head.len() as u64;
                path
            }
        };
        let mut file = File::options().append(true).open(&path)?;
        let before = file.metadata()?.len();
        if let Err(error) = file.write_all(&line) {
            // Half a line would spoil the next one.
            if file.set_len(before).is_err() {
                self.files.remove(&reply.scope.0);
            }
            return Err(error);
        }
        Ok(all)
    }

    /// Names are in the order of their making.
    fn new_path(&mut self, folder: &Path) -> PathBuf {
        loop {
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
            let path = folder.join(format!("{}-{at}-{}{ENDING}", stem(&self.model), self.n_files));
            self.n_files += 1;
            if !path.exists() {
                return path;
            }
        }
    }

    /// Removes the files that were written to longest ago until `more` bytes fit. Gives the bytes of those that are left.
    fn make_room(&self, more: u64) -> io::Result<u64> {
        let mut files = Vec::new();
        for folder in fs::read_dir(&self.options.folder)? {
            let folder = folder?;
            if !folder.file_name().to_str().is_some_and(is_digest) || !folder.path().is_dir() {
                continue;
            }
            for file in fs::read_dir(folder.path())? {
                let file = file?;
                // Somebody may have removed it.
                let Ok(known) = file.metadata() else { continue };
                if file.file_name().to_str().is_some_and(is_ours) {
                    files.push((known.modified().unwrap_or(UNIX_EPOCH), file.file_name(), known.len(), file.path()));
                }
            }
        }
        files.sort();
        let mut all: u64 = files.iter().map(|(_, _, n, _)| n).sum();
        for (_, _, n, path) in files {
            if all.saturating_add(more) <= self.options.n_bytes {
                break;
            }
            remove(&path);
            all -= n;
        }
        Ok(all)
    }

    /// Tells of the first reply that is lost, and when they are kept again.
    fn tell(&mut self, outcome: io::Result<u64>, counts: &Counts) {
        let folder = self.options.folder.display();
        match outcome {
            Ok(n_bytes) => {
                counts.n_bytes.store(n_bytes, Ordering::Relaxed);
                if self.is_failing {
                    tracing::info!(folder = %folder, "--learn: replies are kept again");
                }
                self.is_failing = false;
            }
            Err(error) if !self.is_failing => {
                tracing::warn!(folder = %folder, %error, "--learn: replies are not kept while the folder cannot be written");
                self.is_failing = true;
            }
            Err(error) => tracing::debug!(%error, "--learn: a reply was not kept"),
        }
    }
}

fn json_line(value: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Replies that wait to be written.
const MAX_WAITING: usize = 64;

/// Files of the whole bound: so much goes at a time.
const N_PARTS: u64 = 16;
