//! The hub as the place where clients' models come from: `--allow-downloads`.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use api::{ModelEntry, ModelStore};
use hub::{Cancel, Event, Hub, HubError, HubOptions, ModelName, Part, Watch};

/// A hub and its cache.
pub(super) struct HubStore {
    hub: Hub,
    /// Repositories of configured models.
    configured: HashSet<String>,
}

impl HubStore {
    /// The hub of these options. `configured`: those of all configured models.
    ///
    /// # Errors
    /// As [`HubOptions::hub`].
    pub(super) fn new<'a>(
        options: &HubOptions,
        configured: impl Iterator<Item = &'a HubOptions>,
    ) -> Result<Self, HubError> {
        let hub = options.hub(|name| std::env::var(name).ok())?;
        // A name that is none is told when its model is loaded.
        let repos = configured.filter_map(|options| Some(options.name().ok()??.repo().to_owned()));
        Ok(Self { hub, configured: repos.collect() })
    }

    /// The models in the cache, except what is configured by the same name.
    pub(super) fn entries(&self, configured: &[ModelEntry]) -> Vec<ModelEntry> {
        let models = self.hub.models().unwrap_or_else(|error| {
            tracing::warn!(%error, "the hub's cache cannot be read: its models are not listed");
            Vec::new()
        });
        let is_taken = |name: &String| configured.iter().any(|entry| entry.id == *name || entry.aliases.contains(name));
        let entry = |id| ModelEntry { id, from_hub: true, ..ModelEntry::default() };
        models.into_iter().map(|model| model.name).filter(|name| !is_taken(name)).map(entry).collect()
    }
}

impl ModelStore for HubStore {
    fn check(&self, name: &str) -> Result<String, String> {
        name.parse::<ModelName>().map(|name| name.to_string()).map_err(|error| error.to_string())
    }

    fn download(
        &self,
        id: &str,
        progress: &(dyn Fn(&str, u64, u64) + Sync),
        stop: &Arc<AtomicBool>,
    ) -> Result<String, String> {
        let tell = |event: Event<'_>| match event {
            Event::Chosen { files } => files.files().for_each(|file| progress(&file.path, 0, file.size)),
            Event::Progress { file, done, size } => progress(file, done, size),
            Event::Waiting { file } => tracing::info!(model = %id, file, "waiting for another program that fetches it"),
            Event::Again { why, after } => {
                tracing::warn!(model = %id, why, after_ms = after.as_millis() as u64, "the hub is asked again");
            }
        };
        let cancel = Cancel::from(Arc::clone(stop));
        let name = id.parse::<ModelName>().map_err(|error| error.to_string())?;
        let files =
            self.hub.fetch(&name, &Watch { tell: &tell, cancel: &cancel }).map_err(|error| error.to_string())?;
        Ok(files.name.unwrap_or_else(|| id.to_owned()))
    }

    fn remove(&self, id: &str) -> Result<(), String> {
        let name: ModelName = id.parse().map_err(|error: HubError| error.to_string())?;
        if self.configured.contains(name.repo()) {
            return Err(format!("{}: a model of the server's configuration is in this repository", name.repo()));
        }
        // A name without quantisation would mean all models of the repository.
        let name = match name.part() {
            Part::Any => self.hub.cached(&name).ok().and_then(|files| files.name?.parse().ok()).unwrap_or(name),
            _ => name,
        };
        self.hub.remove(&name).map(drop).map_err(|error| error.to_string())
    }
}
