//! From the options of a model to the model: fetched where it has to be, opened, named for clients.

use std::collections::HashMap;
use std::io::IsTerminal;

use api::{Loader, Served};
use hub::{Cancel, ModelFiles, Watch};
use program::download::DownloadProgress;
use session::options::{ImageOptions, SamplingOptions};
use session::{FileProgress, LearnOptions, ModelOptions, TemplateSource};

use super::args::ModelFlags;
use program::source;

/// Loads the models of the command line and the configuration file, by name.
pub(super) struct FromFlags {
    pub(super) models: HashMap<String, (ModelFlags, SamplingOptions)>,
    /// How models run that are not listed there: those in the hub's cache.
    pub(super) others: Option<(ModelFlags, SamplingOptions)>,
    /// Make room for embeddings.
    pub(super) embeddings: bool,
    /// Keep replies to train on.
    pub(super) learn: Option<LearnOptions>,
}

impl Loader for FromFlags {
    fn load(&self, id: &str, progress: FileProgress) -> Result<Served, String> {
        let others = || self.others.as_ref().map(|(flags, sampling)| (flags.cached(id), sampling.clone()));
        let configured = self.models.get(id).cloned();
        let (flags, sampling) = configured.or_else(others).ok_or_else(|| format!("no model is called {id}"))?;
        let template = flags
            .chat_template_file
            .as_deref()
            .map(|path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display())));
        let files = find(&flags)?;
        for note in files.notes() {
            tracing::info!(model = %id, "{note}");
        }
        let options = ModelOptions {
            run: flags.run.clone(),
            adapters: flags.adapters.clone(),
            drafts: flags.drafts.clone(),
            capacity: flags.capacity.clone(),
            head_beside: files.head,
            learn: self.learn.clone(),
            images: ImageOptions { without: flags.hub.no_mmproj, ..flags.images.clone() },
            projector_beside: files.projector,
            sampling,
            chat_template: template
                .transpose()?
                .or(flags.chat_template)
                .map_or(TemplateSource::File, TemplateSource::Given),
            embeddings: self.embeddings,
            embedding: flags.embedding.clone(),
            progress,
        };
        let model = session::open(source(files.model.as_deref()), &options).map_err(|error| error.to_string())?;
        let model = model.with_max_tokens(usize::try_from(flags.n_predict).ok()).with_ignore_eos(flags.ignore_eos);
        let model = model.with_context_shift(flags.shift.shift());
        Ok(Served { id: id.to_owned(), model })
    }
}

/// The files of a model; those of a hub are fetched where they have to be, with a bar on a terminal and log lines elsewhere.
fn find(flags: &ModelFlags) -> Result<ModelFiles, String> {
    let progress = DownloadProgress::new(std::io::stderr().is_terminal(), |line| tracing::info!("{line}"));
    let watch = Watch { tell: &|event| progress.tell(event), cancel: &Cancel::default() };
    ModelFiles::find(flags.model.as_deref(), &flags.hub, &watch).map_err(|error| error.to_string())
}
