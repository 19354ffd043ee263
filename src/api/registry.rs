//! The models of a server: which there are, which are loaded, and getting one.
//! Owns loading on demand and unloading after idle time; which of them have room is `table.rs`. Knows not how a model is
//! loaded: the program brings a [`Loader`].

mod entry;
mod table;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::error::ApiError;
pub use entry::{ModelEntry, Phase, Served};
use table::{Outcome, Slot, State, Table};

/// Makes a model ready. Called on a thread that may block.
pub trait Loader: Send + Sync {
    /// Loads the model that is configured under `id`.
    ///
    /// # Errors
    /// In words for the log and the client.
    fn load(&self, id: &str) -> Result<Served, String>;
}

/// All models. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    loader: Box<dyn Loader>,
    /// Names to places in the table.
    names: HashMap<String, usize>,
    table: Mutex<Table>,
    /// How long a model waits for room.
    patience: Duration,
}

/// What becomes of a request for a model.
enum Next {
    Done(Result<Arc<Served>, ApiError>),
    /// The model is on its way.
    Load(watch::Receiver<Outcome>),
    /// The model takes no requests now. Ends when that has changed.
    Change(watch::Receiver<()>),
}

impl Registry {
    /// `entries` in the order in which they are listed; the first answers requests that name none.
    /// `max_loaded`: models in memory at a time; the one unused for longest makes room.
    pub fn new(entries: Vec<ModelEntry>, loader: Box<dyn Loader>, max_loaded: Option<usize>) -> Self {
        Self::with_patience(entries, loader, max_loaded, PATIENCE)
    }

    /// As [`Registry::new`]; a model that has no room after `patience` is not loaded.
    pub fn with_patience(
        entries: Vec<ModelEntry>,
        loader: Box<dyn Loader>,
        max_loaded: Option<usize>,
        patience: Duration,
    ) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let mut names = HashMap::new();
        for (i, entry) in entries.iter().enumerate() {
            for name in std::iter::once(&entry.id).chain(&entry.aliases) {
                names.entry(name.clone()).or_insert(i);
            }
        }
        let slots = entries.into_iter().map(|entry| Slot::new(entry, created)).collect();
        let table = Mutex::new(Table::new(slots, max_loaded));
        Self { inner: Arc::new(Inner { loader, names, table, patience }) }
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
        registry.with(|table| table.slots[0].state = State::Ready(Arc::new(served)));
        registry
    }

    /// Names, time of creation and phase of all models.
    pub fn list(&self) -> Vec<(ModelEntry, u64, Phase)> {
        self.with(|table| {
            (0..table.slots.len()).for_each(|i| table.settle(i));
            table.slots.iter().map(|slot| (slot.entry.clone(), slot.created, slot.phase())).collect()
        })
    }

    /// The models that are loaded now.
    pub fn loaded(&self) -> Vec<Arc<Served>> {
        self.with(|table| table.slots.iter().filter_map(|slot| slot.served().cloned()).collect())
    }

    /// Starts loading those that are to be there from the start, without waiting for them.
    pub fn start(&self) {
        let some_idle = self.with(|table| {
            for i in 0..table.slots.len() {
                if table.slots[i].entry.at_start && matches!(table.slots[i].state, State::Unloaded) {
                    self.begin(table, i);
                }
            }
            table.slots.iter().any(|slot| slot.entry.idle.is_some())
        });
        if some_idle {
            let registry = self.clone();
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(IDLE_CHECK).await;
                    registry.with(|table| (0..table.slots.len()).for_each(|i| table.unload_if_unused(i)));
                }
            });
        }
    }

    /// Why the only model that there is did not load at the start. Does not return where it did, or where there are others.
    pub async fn lost(&self) -> String {
        loop {
            let loading = self.with(|table| match &table.slots[..] {
                [Slot { state: State::Failed(why), .. }] => Some(Err(why.clone())),
                [Slot { state: State::Loading(done) | State::Waiting { done, .. }, .. }] => Some(Ok(done.clone())),
                _ => None,
            });
            match loading {
                Some(Err(why)) => return why,
                // An error means that the loading thread is gone: the state says how it ended.
                Some(Ok(mut done)) => drop(done.changed().await),
                None => std::future::pending().await,
            }
        }
    }

    /// The model that a request names; loads it if it has to. A server of one model answers to any name.
    ///
    /// # Errors
    /// 404 for a name that is not known; 503 while it loads at the start, and when there is no room for it; 500 when it does
    /// not load.
    pub async fn get(&self, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
        let i = self.find(name)?;
        loop {
            let next = self.with(|table| {
                table.settle(i);
                let slot = &mut table.slots[i];
                match &slot.state {
                    State::Ready(served) => {
                        slot.last_used = Instant::now();
                        Next::Done(Ok(Arc::clone(served)))
                    }
                    State::Failed(why) => Next::Done(Err(ApiError::server(why.clone()))),
                    State::Waiting { .. } | State::Loading(_) if slot.entry.at_start => {
                        let message = "the model is still loading: try again";
                        Next::Done(Err(ApiError::unavailable(message, Some(1))))
                    }
                    State::Waiting { done, .. } | State::Loading(done) => Next::Load(done.clone()),
                    State::Closing { changed, .. } => Next::Change(changed.subscribe()),
                    State::Unloaded | State::Ended => Next::Load(self.begin(table, i)),
                }
            });
            match next {
                Next::Done(done) => return done,
                Next::Load(mut done) => {
                    let done = done.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
                    let gone = || Err(ApiError::server("the model did not load: see the server's log"));
                    return done.unwrap_or_else(gone);
                }
                // An error is the change: whoever would tell is dropped then.
                Next::Change(mut changed) => drop(changed.changed().await),
            }
        }
    }

    /// The model that a question names, if it is there: who only asks loads nothing, and keeps nothing loaded.
    ///
    /// # Errors
    /// 404 for a name that is not known; 503 where the model is not loaded.
    pub fn ready(&self, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
        let i = self.find(name)?;
        self.with(|table| {
            table.settle(i);
            let slot = &table.slots[i];
            slot.served().cloned().ok_or_else(|| {
                let message = format!("the model {} is not loaded: a request for an answer loads it", slot.entry.id);
                ApiError::unavailable(message, None)
            })
        })
    }

    /// Loads a model without a request; true if there was something to do.
    ///
    /// # Errors
    /// 404 for a name that is not known.
    pub fn load(&self, name: &str) -> Result<bool, ApiError> {
        let i = self.find(Some(name))?;
        Ok(self.with(|table| {
            table.settle(i);
            let idle = matches!(table.slots[i].state, State::Unloaded | State::Failed(_) | State::Ended);
            if idle {
                self.begin(table, i);
            }
            idle
        }))
    }

    /// Takes a model out; requests that run on it end first. True if it was loaded.
    ///
    /// # Errors
    /// 404 for a name that is not known.
    pub fn unload(&self, name: &str) -> Result<bool, ApiError> {
        let i = self.find(Some(name))?;
        Ok(self.with(|table| table.unload(i)))
    }

    fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let known = name.and_then(|name| self.inner.names.get(name).copied());
        match (known, name) {
            (Some(i), _) => Ok(i),
            (None, Some(name)) if !name.is_empty() => self.with(|table| match &table.slots[..] {
                [_] => Ok(0),
                slots => {
                    let ids: Vec<String> = slots.iter().map(|slot| slot.entry.id.clone()).collect();
                    Err(ApiError::no_model(name, &ids))
                }
            }),
            (None, _) => Ok(0),
        }
    }

    /// True when this name is one of ours.
    pub fn knows(&self, name: &str) -> bool {
        self.inner.names.contains_key(name)
    }

    /// Starts a thread that waits for room and loads the model.
    fn begin(&self, table: &mut Table, i: usize) -> watch::Receiver<Outcome> {
        let (sender, done) = watch::channel(None);
        table.slots[i].state = State::Waiting { done: done.clone(), since: Instant::now() };
        let registry = self.clone();
        let thread = std::thread::Builder::new().name("nextn-load".into());
        let started = thread.spawn(move || sender.send_replace(Some(registry.bring(i))));
        if let Err(error) = started {
            table.slots[i].state = State::Failed(format!("no thread to load the model with: {error}"));
        }
        done
    }

    /// Waits for room and loads a model.
    fn bring(&self, i: usize) -> Result<Arc<Served>, ApiError> {
        let deadline = Instant::now() + self.inner.patience;
        while !self.with(|table| table.take_place(i)) {
            if Instant::now() >= deadline {
                return Err(self.with(|table| table.give_up(i)));
            }
            std::thread::sleep(ROOM_CHECK);
        }
        let start = Instant::now();
        let id = self.with(|table| table.slots[i].entry.id.clone());
        let loaded = catch_unwind(AssertUnwindSafe(|| self.inner.loader.load(&id)));
        let loaded = loaded.unwrap_or_else(|_| Err("the loader panicked".to_owned())).map(Arc::new);
        self.with(|table| {
            let slot = &mut table.slots[i];
            slot.last_used = Instant::now();
            // Should it be loaded again, requests wait for it.
            slot.entry.at_start = false;
            match loaded {
                Ok(served) => {
                    tracing::info!(model = %id, took_ms = start.elapsed().as_millis() as u64, "model ready");
                    slot.state = State::Ready(Arc::clone(&served));
                    Ok(served)
                }
                Err(why) => {
                    tracing::error!(model = %id, %why, "model not loaded");
                    slot.state = State::Failed(why.clone());
                    Err(ApiError::server(why))
                }
            }
        })
    }

    /// Works on the table. What was taken out of it is dropped without the lock.
    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        // A panic under this lock leaves a table that is whole.
        let mut table = self.inner.table.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work(&mut table);
        let dropped = std::mem::take(&mut table.dropped);
        drop(table);
        drop(dropped);
        done
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("n_models", &self.with(|table| table.slots.len())).finish_non_exhaustive()
    }
}

const IDLE_CHECK: Duration = Duration::from_secs(1);

/// Between looks for room, on a thread that does nothing else.
const ROOM_CHECK: Duration = Duration::from_millis(10);

/// Replies that hold up a model may take as long as this.
const PATIENCE: Duration = Duration::from_secs(60);
