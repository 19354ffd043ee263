//! One model of a server: what it is called, where it is, and the model itself while it is loaded.

use std::ops::Deref;
use std::time::Duration;

use engine::RequestOptions;
use session::LoadedModel;

/// A model that answers, under its name.
#[derive(Debug)]
pub struct Served {
    /// Its name for clients.
    pub id: String,
    /// The model.
    pub model: LoadedModel,
}

impl Deref for Served {
    type Target = LoadedModel;

    fn deref(&self) -> &LoadedModel {
        &self.model
    }
}

impl Served {
    /// The file, for people; empty for a model inside the program.
    pub fn file(&self) -> String {
        self.path().map(|path| path.display().to_string()).unwrap_or_default()
    }
}

/// What is told of a model, also while it sleeps.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) id: String,
    pub(crate) file: String,
    pub(crate) quantization: String,
    pub(crate) template: String,
    pub(crate) tool_use: Option<String>,
    pub(crate) bos_token: String,
    pub(crate) eos_token: String,
    pub(crate) n_ctx: usize,
    pub(crate) n_sequences: usize,
    pub(crate) n_draft_max: usize,
    /// It reads images.
    pub(crate) sees: bool,
    /// Of a request that says nothing.
    pub(crate) options: RequestOptions,
}

impl About {
    pub(crate) fn new(served: &Served) -> Self {
        let (bos_token, eos_token) = served.boundary_tokens();
        Self {
            id: served.id.clone(),
            file: served.file(),
            quantization: served.model().describe().quantization.clone(),
            template: served.template_source().to_owned(),
            tool_use: served.tool_use_source().map(str::to_owned),
            bos_token,
            eos_token,
            n_ctx: served.engine().limits().n_ctx,
            n_sequences: served.n_sequences(),
            n_draft_max: served.drafts().max,
            sees: served.sight().is_some(),
            options: served.request_options(),
        }
    }
}

/// A model that can be asked for.
#[derive(Clone, Debug, Default)]
pub struct ModelEntry {
    /// Its name.
    pub id: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    /// What clients are told to choose it by.
    pub tags: Vec<String>,
    /// Unload after so long without a request.
    pub idle: Option<Duration>,
    /// Load when the server starts.
    pub at_start: bool,
    /// It came from a hub and is in its cache: a client may remove it where downloads are allowed.
    pub from_hub: bool,
}

/// Where a model is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    /// On its way from a hub.
    Downloading,
    /// On disk only.
    Unloaded,
    /// On its way, or waiting for room.
    Loading,
    /// Answers.
    Ready,
    /// Taken out; its last replies run, or its memory is being freed.
    Unloading,
    /// Did not load, or did not come.
    Failed,
    /// Its engine has ended by itself; the next request loads it again.
    Ended,
}

impl Phase {
    /// As clients read it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Ready => "loaded",
            Self::Unloading => "unloading",
            Self::Failed | Self::Ended => "failed",
        }
    }
}
