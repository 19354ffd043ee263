//! Models that tell how often they were loaded and how many of them are in memory, and whose engines can be held and made
//! to panic.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use api::{AppState, Loader, ModelEntry, Phase, Registry, Served, Settings};
use engine::{DraftRequest, EngineConfig, Proposer, ProposerInfo, TargetState};
use model::{RunError, Runner};
use serde_json::{Value, json};
use session::FileProgress;
use text::TokenId;

use crate::support::{App, served_with};

/// What is known of the models of one server.
#[derive(Default)]
pub struct Log {
    /// In the order of their loading.
    loads: Mutex<Vec<String>>,
    /// Engines whose state is in memory, now and at most.
    n_alive: AtomicUsize,
    n_most: AtomicUsize,
    /// Engines panic at their next step.
    pub blown: AtomicBool,
    /// The engine of this model waits before its next step.
    held: Mutex<Option<String>>,
    changed: Condvar,
}

impl Log {
    pub fn loads(&self) -> Vec<String> {
        self.loads.lock().unwrap().clone()
    }

    pub fn n_most(&self) -> usize {
        self.n_most.load(Ordering::SeqCst)
    }
}

impl Log {
    pub fn hold(&self, model: &str) {
        *self.held.lock().unwrap() = Some(model.to_owned());
    }

    pub fn release(&self) {
        *self.held.lock().unwrap() = None;
        self.changed.notify_all();
    }
}

/// Drafts nothing. It belongs to an engine's state, and lives as long as that.
struct Witness {
    log: Arc<Log>,
    model: String,
}

impl Witness {
    fn new(log: &Arc<Log>, model: &str) -> Self {
        let n = log.n_alive.fetch_add(1, Ordering::SeqCst) + 1;
        log.n_most.fetch_max(n, Ordering::SeqCst);
        Self { log: Arc::clone(log), model: model.to_owned() }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.log.n_alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Proposer for Witness {
    fn info(&self) -> ProposerInfo {
        ProposerInfo { max_depth: 1, ..ProposerInfo::default() }
    }

    fn propose(
        &mut self,
        _runner: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let held = self.log.held.lock().unwrap();
        drop(self.log.changed.wait_while(held, |held| held.as_deref() == Some(&self.model)).unwrap());
        assert!(!self.log.blown.load(Ordering::SeqCst), "this engine was told to panic");
        Ok(vec![Vec::new(); requests.len()])
    }
}

struct Logged(Arc<Log>);

impl Loader for Logged {
    fn load(&self, id: &str, _progress: FileProgress) -> Result<Served, String> {
        self.0.loads.lock().unwrap().push(id.to_owned());
        let config = EngineConfig { n_sequences: 2, ..EngineConfig::default() };
        Ok(Served { id: id.to_owned(), ..served_with(config, Some(Box::new(Witness::new(&self.0, id)))) })
    }
}

/// A server of models that are loaded on demand, `max` at a time, each waiting for room as long as `patience`.
pub fn app(names: &[&str], max: Option<usize>, patience: Duration) -> (App, Arc<Log>) {
    over(names.iter().map(|&id| ModelEntry { id: id.into(), ..ModelEntry::default() }).collect(), max, patience)
}

/// As [`app`], of models with their settings.
pub fn over(entries: Vec<ModelEntry>, max: Option<usize>, patience: Duration) -> (App, Arc<Log>) {
    let log = Arc::new(Log::default());
    let registry = Registry::with_patience(entries, Box::new(Logged(Arc::clone(&log))), max, patience);
    let state = AppState::new(registry, Settings::default());
    (App { router: api::router(state.clone()), state }, log)
}

/// A request that is answered soon.
pub fn brief(model: &str) -> Value {
    json!({ "model": model, "prompt": "Hi", "max_tokens": 1 })
}

/// A request whose answer takes several steps.
pub fn long(model: &str) -> Value {
    json!({ "model": model, "prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": true })
}

/// Waits until a model has come so far.
pub async fn until(app: &App, model: &str, phase: Phase) {
    let there = || app.state.registry().list().iter().any(|m| m.0.id == model && m.2 == phase);
    let wait = async {
        while !there() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(300), wait).await;
    assert!(waited.is_ok(), "{model} is not {phase:?}: {:?}", app.state.registry().list());
}
