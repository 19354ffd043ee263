//! From the options of a model to the model: fetched where it has to be, opened, named for clients.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::{Loader, Served};
use indicatif::{ProgressBar, ProgressStyle};
use session::options::SamplingOptions;
use session::{ModelOptions, TemplateSource};

use super::args::ModelFlags;
use super::hub::Hub;
use program::source;

/// Loads the models of the command line and the configuration file, by name.
pub(super) struct FromFlags {
    pub(super) models: HashMap<String, (ModelFlags, SamplingOptions)>,
    /// Make room for embeddings.
    pub(super) embeddings: bool,
}

impl Loader for FromFlags {
    fn load(&self, id: &str) -> Result<Served, String> {
        let (flags, sampling) = self.models.get(id).ok_or_else(|| format!("no model is called {id}"))?;
        let template = flags
            .chat_template_file
            .as_deref()
            .map(|path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display())));
        let options = ModelOptions {
            run: flags.run.clone(),
            adapters: flags.adapters.clone(),
            drafts: flags.drafts.clone(),
            capacity: flags.capacity.clone(),
            sampling: sampling.clone(),
            chat_template: template.transpose()?.map_or(TemplateSource::File, TemplateSource::Given),
            embeddings: self.embeddings,
            embedding: flags.embedding.clone(),
        };
        let path = match &flags.hf_repo {
            Some(name) => Some(fetch(name, flags.offline)?),
            None => flags.model.clone(),
        };
        let model = session::open(source(path.as_deref()), &options).map_err(|error| error.to_string())?;
        Ok(Served { id: id.to_owned(), model })
    }
}

/// A file of the hub, with a bar on a terminal and log lines elsewhere.
fn fetch(name: &str, offline: bool) -> Result<PathBuf, String> {
    let bar = ProgressBar::no_length();
    bar.set_style(ProgressStyle::with_template(BAR).expect("a constant template"));
    let told = Cell::new(Instant::now());
    let progress = |file: &str, done: u64, all: u64| {
        bar.set_length(all);
        bar.set_position(done);
        if bar.is_hidden() && told.get().elapsed() > LOG_EVERY {
            told.set(Instant::now());
            tracing::info!(file, done, all, "fetching");
        }
    };
    let path = Hub::from_env(|name| std::env::var(name).ok(), offline).file(name, &progress);
    bar.finish_and_clear();
    path.map_err(|error| error.to_string())
}

const BAR: &str = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const LOG_EVERY: Duration = Duration::from_secs(10);
