//! Models that come from a hub while the server runs, and go again.
//! Owns which downloads run and how far they are. Knows no hub: the program brings a [`ModelStore`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use serde_json::{Value, json};

use super::Registry;
use super::entry::{ModelEntry, Phase};
use super::events::ModelEvent;
use super::store::{Detail, Download, FileBytes, ModelStore};
use super::table::{Slot, State, Table};
use crate::error::ApiError;

impl Registry {
    /// From now on clients may download models and remove them.
    pub fn allow_downloads(&self, store: Box<dyn ModelStore>) {
        // A second store is a mistake of the program: the first one stays.
        let _ = self.inner.store.set(store);
    }

    /// What more there is to say of a model.
    pub fn detail(&self, name: &str) -> Detail {
        self.with(|table| match table.place(name).map(|i| &table.slots[i].state) {
            Some(State::Loading(_)) => {
                let files = table.place(name).map(|i| &table.slots[i].files);
                let told = files.filter(|files| files.percent().is_some());
                Detail { progress: told.map(FileBytes::progress), error: None }
            }
            Some(State::Downloading(download)) => Detail { progress: Some(download.files.progress()), error: None },
            Some(State::Failed(why)) => Detail { progress: None, error: Some(why.clone()) },
            _ => Detail::default(),
        })
    }

    /// Begins to download a model, and does not wait for it.
    ///
    /// # Errors
    /// 501 where that is not allowed; 400 for a name that is none; 409 for a model that is there; 503 while others are downloaded.
    pub fn download(&self, name: &str) -> Result<(), ApiError> {
        let store = self.store()?;
        let id = store.check(name).map_err(|why| ApiError::field("model", why))?;
        let stop = Arc::new(AtomicBool::new(false));
        let download = Download::new(Arc::clone(&stop));
        let i = self.with(|table| enter(table, &id, download))?;
        let registry = self.clone();
        let thread = std::thread::Builder::new().name("nextn-download".into());
        let started = thread.spawn(move || registry.bring_down(i, &id, &stop));
        if let Err(error) = started {
            let why = format!("no thread to download the model with: {error}");
            self.with(|table| table.slots[i].state = State::Failed(why.clone()));
            return Err(ApiError::server(why));
        }
        Ok(())
    }

    /// Stops a model's download, or unloads it and removes its files. Blocks while files are removed.
    ///
    /// # Errors
    /// 501 where that is not allowed; 404 for a name that is not known; 400 for a model of the configuration; 409 while it loads,
    /// and where its files cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), ApiError> {
        let store = self.store()?;
        let busy = |message: String| ApiError::refused(StatusCode::CONFLICT, message);
        let found = self.with(|table| {
            let Some(i) = table.place(name) else {
                let ids: Vec<String> = table.listed().map(|slot| slot.entry.id.clone()).collect();
                return Err(ApiError::no_model(name, &ids));
            };
            let id = table.slots[i].entry.id.clone();
            if !table.slots[i].entry.from_hub {
                let message =
                    format!("the model {id} is part of the server's configuration: only downloaded ones are removed");
                return Err(ApiError::field("model", message));
            }
            let was_there = match &table.slots[i].state {
                State::Downloading(download) => {
                    download.stop();
                    return Ok(None);
                }
                State::Waiting { .. } | State::Loading(_) => {
                    return Err(busy(format!("the model {id} is loading: try again when that is done")));
                }
                State::Failed(_) => false,
                _ => true,
            };
            table.unload(i);
            table.strike(i);
            Ok(Some((i, id, was_there)))
        })?;
        let Some((i, id, was_there)) = found else { return Ok(()) };
        match store.remove(&id) {
            Err(why) if was_there => {
                self.with(|table| table.list_again(i));
                Err(busy(why))
            }
            // Of a download that failed there may be nothing to remove.
            _ => {
                tracing::info!(model = %id, "model removed");
                self.tell(ModelEvent::new(&id, "model_remove", Value::Null));
                Ok(())
            }
        }
    }

    fn store(&self) -> Result<&dyn ModelStore, ApiError> {
        let store = self.inner.store.get().ok_or_else(|| {
            ApiError::not_supported(
                "this server was started without --allow-downloads: it downloads and removes no models",
            )
        })?;
        Ok(store.as_ref())
    }

    /// Downloads a model, on a thread of its own.
    fn bring_down(&self, i: usize, id: &str, stop: &Arc<AtomicBool>) {
        let start = Instant::now();
        let progress = |file: &str, done: u64, total: u64| self.progressed(i, file, done, total);
        let fetched = catch_unwind(AssertUnwindSafe(|| {
            self.store().map_err(|error| error.to_string()).and_then(|store| store.download(id, &progress, stop))
        }));
        let fetched = fetched.unwrap_or_else(|_| Err("the download panicked".to_owned()));
        let event = self.with(|table| match fetched {
            Ok(name) => {
                tracing::info!(model = %name, took_ms = start.elapsed().as_millis() as u64, "model downloaded");
                settle(table, i, &name);
                ModelEvent::new(id, "download_finished", Value::Null)
            }
            Err(why) if stop.load(Ordering::Relaxed) => {
                tracing::info!(model = %id, "download stopped");
                table.strike(i);
                ModelEvent::new(id, "download_failed", json!({ "error": why }))
            }
            Err(why) => {
                tracing::error!(model = %id, %why, "model not downloaded");
                table.slots[i].state = State::Failed(why.clone());
                ModelEvent::new(id, "download_failed", json!({ "error": why }))
            }
        });
        self.tell(event);
        self.tell(ModelEvent::reload());
    }

    fn progressed(&self, i: usize, file: &str, done: u64, total: u64) {
        let event = self.with(|table| {
            let slot = &mut table.slots[i];
            let State::Downloading(download) = &mut slot.state else { return None };
            let is_due = download.files.came(file, done, total);
            is_due.then(|| ModelEvent::new(&slot.entry.id, "download_progress", download.files.progress()))
        });
        if let Some(event) = event {
            self.tell(event);
        }
    }
}

/// Finds a place for a download.
fn enter(table: &mut Table, id: &str, download: Download) -> Result<usize, ApiError> {
    let n_running = table.listed().filter(|slot| slot.phase() == Phase::Downloading).count();
    let place = table.place(id);
    if let Some(i) = place.filter(|&i| !(table.slots[i].entry.from_hub && table.slots[i].phase() == Phase::Failed)) {
        let message = format!("the model {id} is there already ({})", table.slots[i].phase().word());
        return Err(ApiError { code: Some("model_exists"), ..ApiError::refused(StatusCode::CONFLICT, message) });
    }
    if n_running >= MAX_DOWNLOADS {
        let message = format!("{n_running} models are being downloaded, and no more at a time: try again later");
        return Err(ApiError::unavailable(message, Some(30)));
    }
    let i = place.unwrap_or_else(|| {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let entry = ModelEntry { id: id.to_owned(), from_hub: true, ..ModelEntry::default() };
        table.add(Slot::new(entry, created))
    });
    table.slots[i].state = State::Downloading(download);
    Ok(i)
}

/// A model has come, and is called `name`: what was asked for is another name for it.
fn settle(table: &mut Table, i: usize, name: &str) {
    let asked = table.slots[i].entry.id.clone();
    table.slots[i].state = State::Unloaded;
    if asked == name {
        return;
    }
    if let Some(other) = table.place(name) {
        table.strike(i);
        table.also_called(other, &asked);
        return;
    }
    table.slots[i].entry.id = name.to_owned();
    table.also_called(i, name);
    table.also_called(i, &asked);
}

/// Downloads at a time: the connection is shared, and each holds a thread.
const MAX_DOWNLOADS: usize = 4;
