//! One model of a server: what it is called, where it is, and the model itself while it is loaded.

use std::ops::Deref;
use std::time::Duration;

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
