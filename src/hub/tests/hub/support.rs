//! A hub, a cache of its own, and somebody who follows.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use hub::{Cancel, Event, Hub, HubError, ModelFiles, Parts, Retry, Watch};
use tempfile::TempDir;
use test_support::FakeHub;

/// A program that asks a hub.
pub struct Client {
    pub hub: Hub,
    pub cache: TempDir,
    pub told: Mutex<Vec<String>>,
    pub cancel: Cancel,
}

impl Client {
    pub fn new(fake: &FakeHub) -> Self {
        Self::at(fake.address())
    }

    pub fn at(endpoint: &str) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let hub = Hub {
            endpoint: endpoint.to_owned(),
            cache: cache.path().to_owned(),
            token: None,
            offline: false,
            parts: Parts { head: true, projector: true },
            retry: Retry { n: 3, pause: Duration::from_millis(1) },
        };
        Self { hub, cache, told: Mutex::default(), cancel: Cancel::default() }
    }

    pub fn fetch(&self, name: &str) -> Result<ModelFiles, HubError> {
        self.fetch_and(name, &|_| {})
    }

    /// `also` hears every event too.
    pub fn fetch_and(&self, name: &str, also: &dyn Fn(&Event<'_>)) -> Result<ModelFiles, HubError> {
        let tell = |event: Event<'_>| {
            also(&event);
            self.told.lock().unwrap().push(match event {
                Event::Chosen { files } => format!("{} files, {} bytes", files.files().count(), files.size()),
                Event::Progress { file, done, size } => format!("{file} {done}/{size}"),
                Event::Waiting { file } => format!("waiting for {file}"),
                Event::Again { why, .. } => format!("again: {why}"),
            });
        };
        self.hub.fetch(&name.parse()?, &Watch { tell: &tell, cancel: &self.cancel })
    }

    /// A path in the cache.
    pub fn path(&self, path: &str) -> std::path::PathBuf {
        self.cache.path().join(path)
    }

    pub fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }
}

/// All files below a folder, sorted.
pub fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}
