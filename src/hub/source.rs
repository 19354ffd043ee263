//! From the flags of a model to files: a path as it stands, a name that is in the cache, or a model of the hub.

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::cached::name_among;
use crate::choose::{Choice, RepoFile};
use crate::error::HubError;
use crate::name::ModelName;
use crate::options::HubOptions;
use crate::watch::Watch;

/// The files of a model on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFiles {
    /// The model; of several shards the first. `None` is the model inside the program.
    pub model: Option<PathBuf>,
    /// Its MTP layer, where a repository has it in a file of its own.
    pub head: Option<PathBuf>,
    /// Its projector of images.
    pub projector: Option<PathBuf>,
    /// The model's name, where it came from a hub: `USER/REPO:QUANT`.
    pub name: Option<String>,
}

impl ModelFiles {
    /// `choice` was made among `files`, which lie in `snapshot`.
    pub(crate) fn of(snapshot: &Path, files: &[RepoFile], choice: &Choice<'_>, name: &ModelName) -> Self {
        let first = |files: &[&RepoFile]| files.first().map(|file| snapshot.join(&file.path));
        Self {
            model: first(&choice.model),
            head: first(&choice.head),
            projector: first(&choice.projector),
            name: choice.model.first().map(|file| name_among(files, name, &file.path)),
        }
    }

    /// The files that `--model` and the hub's flags name: those of `--hf-repo`, fetched where they have to be; else `model`, which
    /// may be the name of a model in the cache where there is no such file.
    ///
    /// # Errors
    /// [`HubError`].
    pub fn find(model: Option<&Path>, options: &HubOptions, watch: &Watch<'_>) -> Result<Self, HubError> {
        let env = |name: &str| std::env::var(name).ok();
        if let Some(name) = options.name()? {
            return options.hub(env)?.fetch(&name, watch);
        }
        let Some(path) = model else { return Ok(Self::default()) };
        let as_it_stands = Self { model: Some(path.to_owned()), ..Self::default() };
        let name = path.to_str().filter(|_| !path.exists()).and_then(|text| text.parse::<ModelName>().ok());
        let Some(name) = name else { return Ok(as_it_stands) };
        let hub = options.hub(env)?;
        match hub.cached(&name) {
            Ok(found) => Ok(found),
            // The error of a file that is not there is better told by who opens it.
            Err(_) if path.extension().is_some_and(|end| end == "gguf") => Ok(as_it_stands),
            Err(HubError::NotCached { name, cache }) => Err(HubError::NoFileNorModel { name, cache }),
            Err(error) => Err(error),
        }
    }

    /// What is told of the parts that a model brings, a sentence each.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let head = self.head.as_ref().map(|path| format!("the model's MTP layer is in {}", path.display()));
        let projector = self
            .projector
            .as_ref()
            .map(|path| format!("the model's projector, which reads images, is {}", path.display()));
        head.into_iter().chain(projector)
    }
}

/// Which of `model` and `hf_repo` counts: what was typed goes before the environment. `Err`: both were given in one place.
///
/// # Errors
/// In words for the user.
pub fn one_source(matches: &ArgMatches, model: &mut Option<PathBuf>, hub: &mut HubOptions) -> Result<(), &'static str> {
    let source = |id: &str| matches.value_source(id).filter(|source| *source != ValueSource::DefaultValue);
    if hub.hf_repo.as_ref().is_some_and(String::is_empty) {
        hub.hf_repo = None;
        return Ok(());
    }
    match (source("model"), source("hf_repo")) {
        (Some(ValueSource::CommandLine), Some(ValueSource::EnvVariable)) => {
            hub.hf_repo = None;
            hub.hf_file = None;
        }
        (Some(ValueSource::EnvVariable), Some(ValueSource::CommandLine)) => *model = None,
        (Some(_), Some(_)) => {
            return Err("a file (--model) and a hub's model (--hf-repo) are both asked for: one of them is served");
        }
        _ => {}
    }
    Ok(())
}
