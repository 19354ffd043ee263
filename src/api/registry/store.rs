//! What the program brings for models that come and go, and how far those are that come.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

/// Where clients' models come from. Called on threads that may block.
pub trait ModelStore: Send + Sync {
    /// The name that a model is listed by, or why it is none.
    ///
    /// # Errors
    /// In words for the client.
    fn check(&self, name: &str) -> Result<String, String>;

    /// Fetches a model; `progress` takes a file, the bytes of it that are there, and all. Gives the name under which the loader
    /// knows it. Ends early when `stop` is set.
    ///
    /// # Errors
    /// In words for the log and the client.
    fn download(
        &self,
        id: &str,
        progress: &(dyn Fn(&str, u64, u64) + Sync),
        stop: &Arc<AtomicBool>,
    ) -> Result<String, String>;

    /// Removes a model's files.
    ///
    /// # Errors
    /// In words for the client.
    fn remove(&self, id: &str) -> Result<(), String>;
}

/// How far the files of a model are that comes or is loaded.
#[derive(Default)]
pub(super) struct FileBytes {
    /// Bytes that are there and in all, by file.
    files: BTreeMap<String, (u64, u64)>,
    /// When they were told last.
    told: Option<Instant>,
}

impl FileBytes {
    /// Bytes of a file are there. True when it is time to tell of it.
    pub(super) fn came(&mut self, file: &str, done: u64, total: u64) -> bool {
        self.files.insert(file.to_owned(), (done, total));
        let is_due = done == total || self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        if is_due {
            self.told = Some(Instant::now());
        }
        is_due
    }

    /// Of all files together; `None` while nothing is known of them.
    pub(super) fn percent(&self) -> Option<u64> {
        let [done, total] = self.files.values().fold([0, 0], |[a, b], (done, total)| [a + done, b + total]);
        (done * 100).checked_div(total)
    }

    /// As clients read it.
    pub(super) fn progress(&self) -> Value {
        let file =
            |(name, &(done, total)): (&String, &(u64, u64))| (name.clone(), json!({ "done": done, "total": total }));
        Value::Object(self.files.iter().map(file).collect::<Map<String, Value>>())
    }
}

/// A download that runs.
pub(super) struct Download {
    stop: Arc<AtomicBool>,
    pub(super) files: FileBytes,
}

impl Download {
    pub(super) fn new(stop: Arc<AtomicBool>) -> Self {
        Self { stop, files: FileBytes::default() }
    }

    /// True unless it was stopped before.
    pub(super) fn stop(&self) -> bool {
        !self.stop.swap(true, Ordering::Relaxed)
    }
}

/// What more there is to say of a model.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    /// Of a download, and of a load that locks or copies: `{FILE: {"done", "total"}}`.
    pub progress: Option<Value>,
    /// Why it failed.
    pub error: Option<String>,
}

/// Between events of one download.
const TELL_EVERY: Duration = Duration::from_millis(250);
