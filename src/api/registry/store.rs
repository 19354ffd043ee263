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

/// A download that runs.
pub(super) struct Download {
    stop: Arc<AtomicBool>,
    /// Bytes that are there and in all, by file.
    files: BTreeMap<String, (u64, u64)>,
    /// When they were told last.
    told: Option<Instant>,
}

impl Download {
    /// True unless it was stopped before.
    pub(super) fn stop(&self) -> bool {
        !self.stop.swap(true, Ordering::Relaxed)
    }

    pub(super) fn new(stop: Arc<AtomicBool>) -> Self {
        Self { stop, files: BTreeMap::new(), told: None }
    }

    /// Bytes of a file are there. True when it is time to tell of it.
    pub(super) fn came(&mut self, file: &str, done: u64, total: u64) -> bool {
        self.files.insert(file.to_owned(), (done, total));
        let is_due = done == total || self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        if is_due {
            self.told = Some(Instant::now());
        }
        is_due
    }

    /// As clients read it.
    pub(super) fn progress(&self) -> Value {
        let file =
            |(name, &(done, total)): (&String, &(u64, u64))| (name.clone(), json!({ "done": done, "total": total }));
        Value::Object(self.files.iter().map(file).collect::<Map<String, Value>>())
    }
}

/// What more there is to say of a model.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    /// Of a download: `{FILE: {"done", "total"}}`.
    pub progress: Option<Value>,
    /// Why it failed.
    pub error: Option<String>,
}

/// Between events of one download.
const TELL_EVERY: Duration = Duration::from_millis(250);
