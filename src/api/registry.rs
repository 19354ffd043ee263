//! The models of a server: which there are, which are loaded, and getting one.
//! Owns loading on demand and unloading after idle time. Knows not how a model is loaded: the program brings a [`Loader`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use constrain::Compiler;
use engine::EngineHandle;
use engine::sample::SamplingParams;
use model::Model;
use text::template::ChatTemplate;
use tokio::sync::watch;

use crate::error::ApiError;

/// A model that answers.
pub struct Served {
    /// Its name for clients.
    pub id: String,
    /// Weights and vocabulary.
    pub model: Arc<Model>,
    /// Takes requests.
    pub engine: EngineHandle,
    /// Builds the grammars of its answers.
    pub grammars: Compiler,
    /// `None` where the file has no chat template.
    pub template: Option<ChatTemplate>,
    /// The template's source.
    pub template_source: String,
    /// Sampling where a request does not say.
    pub sampling: SamplingParams,
    /// The longest draft; 0 without speculation.
    pub max_draft: usize,
    /// Shorter drafts are not used where a request does not say.
    pub min_draft: usize,
    /// A draft ends before a token that the head finds less probable than this, where a request does not say.
    pub draft_p_min: f32,
    /// Sequences at a time.
    pub n_sequences: usize,
    /// The file, for people; empty for a model inside the program.
    pub path: String,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").field("id", &self.id).field("path", &self.path).finish_non_exhaustive()
    }
}

/// Makes a model ready. Called on a thread that may block.
pub trait Loader: Send + Sync {
    /// Loads the model that is configured under `id`.
    ///
    /// # Errors
    /// In words for the log and the client.
    fn load(&self, id: &str) -> Result<Served, String>;
}

/// A model that can be asked for.
#[derive(Clone, Debug, Default)]
pub struct ModelEntry {
    /// Its name.
    pub id: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    /// Unload after so long without a request.
    pub idle: Option<Duration>,
    /// Load when the server starts.
    pub at_start: bool,
}

/// Where a model is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    /// On disk only.
    Unloaded,
    /// On its way.
    Loading,
    /// Answers.
    Ready,
    /// Did not load.
    Failed,
}

enum State {
    Unloaded,
    Loading(watch::Receiver<()>),
    Ready(Arc<Served>),
    Failed(String),
}

struct Slot {
    entry: ModelEntry,
    state: State,
    last_used: Instant,
    created: u64,
}

/// All models. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    loader: Box<dyn Loader>,
    /// Names to places in `slots`.
    names: HashMap<String, usize>,
    slots: Vec<Mutex<Slot>>,
    /// Loaded at a time at most; the one unused for longest makes room.
    max_loaded: Option<usize>,
}

impl Registry {
    /// `entries` in the order in which they are listed; the first answers requests that name none.
    /// `max_loaded`: models in memory at a time.
    pub fn new(entries: Vec<ModelEntry>, loader: Box<dyn Loader>, max_loaded: Option<usize>) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let mut names = HashMap::new();
        for (i, entry) in entries.iter().enumerate() {
            for name in std::iter::once(&entry.id).chain(&entry.aliases) {
                names.entry(name.clone()).or_insert(i);
            }
        }
        let slot = |entry| Mutex::new(Slot { entry, state: State::Unloaded, last_used: Instant::now(), created });
        let slots = entries.into_iter().map(slot).collect();
        Self { inner: Arc::new(Inner { loader, names, slots, max_loaded }) }
    }

    /// A registry of one model that is loaded already.
    pub fn of(served: Served) -> Self {
        struct Never;
        impl Loader for Never {
            fn load(&self, id: &str) -> Result<Served, String> {
                Err(format!("{id} cannot be loaded again"))
            }
        }
        let entry = ModelEntry { id: served.id.clone(), ..ModelEntry::default() };
        let registry = Self::new(vec![entry], Box::new(Never), None);
        registry.lock(0).state = State::Ready(Arc::new(served));
        registry
    }

    /// Names, time of creation and phase of all models.
    pub fn list(&self) -> Vec<(ModelEntry, u64, Phase)> {
        let all = 0..self.inner.slots.len();
        all.map(|i| {
            let slot = self.lock(i);
            (slot.entry.clone(), slot.created, slot.state.phase())
        })
        .collect()
    }

    /// The models that are loaded now.
    pub fn loaded(&self) -> Vec<Arc<Served>> {
        let all = 0..self.inner.slots.len();
        all.filter_map(|i| match &self.lock(i).state {
            State::Ready(served) => Some(Arc::clone(served)),
            _ => None,
        })
        .collect()
    }

    /// Starts loading those that are to be there from the start, without waiting for them.
    pub fn start(&self) {
        for i in 0..self.inner.slots.len() {
            if self.lock(i).entry.at_start {
                self.begin(i);
            }
        }
        if self.inner.slots.iter().any(|slot| lock(slot).entry.idle.is_some()) {
            let registry = self.clone();
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(IDLE_CHECK).await;
                    registry.unload_idle();
                }
            });
        }
    }

    /// Why the only model that there is did not load at the start. Does not return where it did, or where there are others.
    pub async fn lost(&self) -> String {
        while let [slot] = &self.inner.slots[..] {
            let mut loading = match &lock(slot).state {
                State::Failed(why) => return why.clone(),
                State::Loading(done) => done.clone(),
                State::Unloaded | State::Ready(_) => break,
            };
            // An error means that the loading thread is gone: the state says how it ended.
            drop(loading.changed().await);
        }
        std::future::pending().await
    }

    /// The model that a request names; loads it if it has to. A server of one model answers to any name.
    ///
    /// # Errors
    /// 404 for a name that is not known; 503 while it loads at the start; 500 when it does not load.
    pub async fn get(&self, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
        let i = self.find(name)?;
        loop {
            let mut waiting = match &mut *self.lock(i) {
                Slot { state: State::Ready(served), last_used, .. } => {
                    *last_used = Instant::now();
                    return Ok(Arc::clone(served));
                }
                Slot { state: State::Failed(why), .. } => return Err(ApiError::server(why.clone())),
                Slot { state: State::Loading(_), entry, .. } if entry.at_start => {
                    return Err(ApiError::unavailable("the model is still loading: try again", Some(1)));
                }
                Slot { state: State::Loading(done), .. } => Some(done.clone()),
                Slot { state: State::Unloaded, .. } => None,
            };
            match &mut waiting {
                // An error means that the loading thread is gone: the state says how it ended.
                Some(done) => drop(done.changed().await),
                None => self.begin(i),
            }
        }
    }

    /// The model that a question names, if it is there: who only asks loads nothing, and keeps nothing loaded.
    ///
    /// # Errors
    /// 404 for a name that is not known; 503 where the model is not loaded.
    pub fn ready(&self, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
        let slot = self.lock(self.find(name)?);
        match &slot.state {
            State::Ready(served) => Ok(Arc::clone(served)),
            _ => {
                let message = format!("the model {} is not loaded: a request for an answer loads it", slot.entry.id);
                Err(ApiError::unavailable(message, None))
            }
        }
    }

    /// Loads a model without a request; true if there was something to do.
    ///
    /// # Errors
    /// 404 for a name that is not known.
    pub fn load(&self, name: &str) -> Result<bool, ApiError> {
        let i = self.find(Some(name))?;
        let idle = matches!(self.lock(i).state, State::Unloaded | State::Failed(_));
        if idle {
            self.begin(i);
        }
        Ok(idle)
    }

    /// Takes a model out; requests that run on it end first. True if it was loaded.
    ///
    /// # Errors
    /// 404 for a name that is not known.
    pub fn unload(&self, name: &str) -> Result<bool, ApiError> {
        let i = self.find(Some(name))?;
        let mut slot = self.lock(i);
        let was = matches!(slot.state, State::Ready(_));
        if was {
            slot.state = State::Unloaded;
        }
        Ok(was)
    }

    fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let known = name.and_then(|name| self.inner.names.get(name).copied());
        match (known, name) {
            (Some(i), _) => Ok(i),
            (None, Some(name)) if self.inner.slots.len() > 1 && !name.is_empty() => {
                let ids: Vec<String> = self.inner.slots.iter().map(|s| lock(s).entry.id.clone()).collect();
                Err(ApiError::no_model(name, &ids))
            }
            (None, _) => Ok(0),
        }
    }

    /// True when this name is one of ours.
    pub fn knows(&self, name: &str) -> bool {
        self.inner.names.contains_key(name)
    }

    fn begin(&self, i: usize) {
        let mut slot = self.lock(i);
        if matches!(slot.state, State::Ready(_) | State::Loading(_)) {
            return;
        }
        let (sender, receiver) = watch::channel(());
        slot.state = State::Loading(receiver);
        let id = slot.entry.id.clone();
        drop(slot);
        self.make_room(i);
        let registry = self.clone();
        std::thread::spawn(move || {
            let start = Instant::now();
            let loaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| registry.inner.loader.load(&id)));
            let loaded = loaded.unwrap_or_else(|_| Err("the loader panicked".to_owned()));
            let mut slot = registry.lock(i);
            slot.last_used = Instant::now();
            // Should it be loaded again, requests wait for it.
            slot.entry.at_start = false;
            slot.state = match loaded {
                Ok(served) => {
                    tracing::info!(model = %id, took_ms = start.elapsed().as_millis() as u64, "model ready");
                    State::Ready(Arc::new(served))
                }
                Err(why) => {
                    tracing::error!(model = %id, %why, "model not loaded");
                    State::Failed(why)
                }
            };
            let ready = matches!(slot.state, State::Ready(_));
            drop(slot);
            if ready {
                // Others may have been loaded at the same time.
                registry.make_room(i);
            }
            sender.send_replace(());
        });
    }

    /// Unloads those unused for longest until one more fits.
    fn make_room(&self, for_index: usize) {
        let Some(max) = self.inner.max_loaded else { return };
        loop {
            let others = (0..self.inner.slots.len()).filter(|&i| i != for_index);
            let loaded: Vec<(Instant, usize)> = others
                .filter_map(|i| {
                    let slot = self.lock(i);
                    matches!(slot.state, State::Ready(_)).then_some((slot.last_used, i))
                })
                .collect();
            if loaded.len() < max {
                return;
            }
            let Some((_, oldest)) = loaded.into_iter().min() else { return };
            self.lock(oldest).state = State::Unloaded;
        }
    }

    fn unload_idle(&self) {
        for i in 0..self.inner.slots.len() {
            let mut slot = self.lock(i);
            let State::Ready(served) = &slot.state else { continue };
            // Nobody else holds it: no request runs.
            let unused = Arc::strong_count(served) == 1;
            if unused && slot.entry.idle.is_some_and(|idle| slot.last_used.elapsed() >= idle) {
                tracing::info!(model = %slot.entry.id, "model unloaded after idle time");
                slot.state = State::Unloaded;
            }
        }
    }

    fn lock(&self, i: usize) -> MutexGuard<'_, Slot> {
        lock(&self.inner.slots[i])
    }
}

impl State {
    fn phase(&self) -> Phase {
        match self {
            Self::Unloaded => Phase::Unloaded,
            Self::Loading(_) => Phase::Loading,
            Self::Ready(_) => Phase::Ready,
            Self::Failed(_) => Phase::Failed,
        }
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("n_models", &self.inner.slots.len()).finish_non_exhaustive()
    }
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    // A panic under this lock leaves a state that is whole.
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

const IDLE_CHECK: Duration = Duration::from_secs(1);
