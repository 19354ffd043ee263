//! The models of a server: which there are, which are loaded, and getting one.
//! Owns loading on demand and unloading after idle time; which of them have room is `table.rs`, models that come and go are
//! `downloads.rs`. Knows not how a model is loaded: the program brings a [`Loader`].

mod downloads;
mod entry;
mod events;
mod store;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use session::FileProgress;
use tokio::sync::{broadcast, watch};

use crate::error::ApiError;
pub(crate) use entry::About;
pub use entry::{ModelEntry, Phase, Served};
pub use events::ModelEvent;
use store::FileBytes;
pub use store::{Detail, ModelStore};
use table::{Outcome, Slot, State, Table};

/// Makes a model ready. Called on a thread that may block.
pub trait Loader: Send + Sync {
    /// Loads the model that is configured under `id`, and tells how far its files are.
    ///
    /// # Errors
    /// In words for the log and the client.
    fn load(&self, id: &str, progress: FileProgress) -> Result<Served, String>;
}

/// All models. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    loader: Box<dyn Loader>,
    /// Where models come from that clients ask for; unset: nowhere.
    store: OnceLock<Box<dyn ModelStore>>,
    events: broadcast::Sender<ModelEvent>,
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
        let slots = entries.into_iter().map(|entry| Slot::new(entry, created)).collect();
        let table = Mutex::new(Table::new(slots, max_loaded));
        let (events, _) = broadcast::channel(EVENTS);
        Self { inner: Arc::new(Inner { loader, store: OnceLock::new(), events, table, patience }) }
    }

    /// A registry of one model that is loaded already.
    pub fn of(served: Served) -> Self {
        struct Never;
        impl Loader for Never {
            fn load(&self, id: &str, _progress: FileProgress) -> Result<Served, String> {
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
            table.listed().map(|slot| (slot.entry.clone(), slot.created, slot.phase())).collect()
        })
    }

    /// What whoever asks is told while a model loads at the start.
    pub(crate) fn still_loading(&self, name: &str) -> ApiError {
        self.with(|table| match table.place(name) {
            Some(i) => table.slots[i].still_loading(),
            None => ApiError::no_model(name, &[]),
        })
    }

    /// What happens to the models from now on.
    pub fn events(&self) -> broadcast::Receiver<ModelEvent> {
        self.inner.events.subscribe()
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

    /// Waits until no model is on its way that is to be there from the start: each is ready or has failed. True if one of all
    /// models can be had then.
    pub async fn started(&self) -> bool {
        loop {
            let loading = self.with(|table| {
                table.slots.iter().find_map(|slot| match &slot.state {
                    State::Waiting { done, .. } | State::Loading(done) if slot.entry.at_start => Some(done.clone()),
                    _ => None,
                })
            });
            // An error means that the loading thread is gone: nothing more will come of it.
            let gone = match loading {
                Some(mut done) => done.wait_for(Option::is_some).await.is_err(),
                None => true,
            };
            if gone {
                return self.with(|table| table.listed().any(|slot| !matches!(slot.state, State::Failed(_))));
            }
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
                    State::Downloading(_) => {
                        let message = format!("the model {} is being downloaded: try again later", slot.entry.id);
                        Next::Done(Err(ApiError::unavailable(message, Some(10))))
                    }
                    State::Removed => Next::Done(Err(ApiError::no_model(&slot.entry.id, &[]))),
                    State::Failed(why) => Next::Done(Err(ApiError::server(why.clone()))),
                    State::Waiting { .. } | State::Loading(_) if slot.entry.at_start => {
                        Next::Done(Err(slot.still_loading()))
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

    /// What is told of the model that a question names, with the model unless it sleeps after idle time. Loads nothing.
    ///
    /// # Errors
    /// As [`Registry::ready`].
    pub(crate) fn about(&self, name: Option<&str>) -> Result<(Option<Arc<Served>>, About), ApiError> {
        let i = self.find(name)?;
        let asleep = self.with(|table| {
            let slot = &table.slots[i];
            slot.asleep.clone().filter(|_| matches!(slot.state, State::Unloaded))
        });
        match asleep {
            Some(about) => Ok((None, About::clone(&about))),
            None => self.ready(name).map(|served| (Some(Arc::clone(&served)), About::new(&served))),
        }
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

    /// Takes a model out; requests that run on it end first. A download is stopped. True if there was something to do.
    ///
    /// # Errors
    /// 404 for a name that is not known.
    pub fn unload(&self, name: &str) -> Result<bool, ApiError> {
        let i = self.find(Some(name))?;
        Ok(self.with(|table| match &table.slots[i].state {
            State::Downloading(download) => download.stop(),
            _ => table.unload(i),
        }))
    }

    fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(0) };
        self.with(|table| match table.place(name) {
            Some(i) => Ok(i),
            // The first is configured, and never removed.
            None if table.listed().count() == 1 => Ok(0),
            None => {
                let ids: Vec<String> = table.listed().map(|slot| slot.entry.id.clone()).collect();
                Err(ApiError::no_model(name, &ids))
            }
        })
    }

    /// True when this name is one of ours.
    pub fn knows(&self, name: &str) -> bool {
        self.with(|table| table.place(name).is_some())
    }

    /// Starts a thread that waits for room and loads the model.
    fn begin(&self, table: &mut Table, i: usize) -> watch::Receiver<Outcome> {
        let (sender, done) = watch::channel(None);
        table.slots[i].state = State::Waiting { done: done.clone(), since: Instant::now() };
        table.slots[i].files = FileBytes::default();
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
        let loaded = catch_unwind(AssertUnwindSafe(|| self.inner.loader.load(&id, self.listen(i))));
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

    /// Takes note of how far the files of a model are that is loaded.
    fn listen(&self, i: usize) -> FileProgress {
        let registry = self.clone();
        FileProgress::new(move |file, done, total| {
            let name = file.file_name().map_or_else(|| file.to_string_lossy(), |name| name.to_string_lossy());
            let event = registry.with(|table| {
                let slot = &mut table.slots[i];
                let is_due = slot.files.came(&name, done, total);
                is_due.then(|| ModelEvent::new(&slot.entry.id, "load_progress", slot.files.progress()))
            });
            if let Some(event) = event {
                registry.tell(event);
            }
        })
    }

    /// Tells those who follow.
    fn tell(&self, event: ModelEvent) {
        // Without a reader there is nobody to tell.
        let _ = self.inner.events.send(event);
    }

    /// Works on the table, and tells what has become of the models. What was taken out of it is dropped without the lock.
    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        // A panic under this lock leaves a table that is whole.
        let mut table = self.inner.table.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work(&mut table);
        for slot in &mut table.slots {
            if let Some(phase) = slot.news() {
                self.tell(ModelEvent::status(&slot.entry.id, phase));
            }
        }
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

/// Events that wait for a reader; one that is further behind is told to read the list anew.
const EVENTS: usize = 256;

const IDLE_CHECK: Duration = Duration::from_secs(1);

/// Between looks for room, on a thread that does nothing else.
const ROOM_CHECK: Duration = Duration::from_millis(10);

/// Replies that hold up a model may take as long as this.
const PATIENCE: Duration = Duration::from_secs(60);
