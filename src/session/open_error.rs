//! Why a model does not open, and whose fault that is.

use engine::EngineError;
use speculate::SpecError;
use text::template::TemplateError;

use crate::options::{DeviceError, ProjectorError};

/// Why a model is not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Where it was to compute.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Its file; the words name it.
    #[error("{0}")]
    Model(String),
    /// Its projector; the words name the file.
    #[error("{0}")]
    Projector(String),
    /// Its chat template.
    #[error("the chat template: {0}")]
    Template(#[from] TemplateError),
    /// Its drafts.
    #[error(transparent)]
    Drafts(#[from] SpecError),
    /// Its engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What has to change before a model opens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// The options.
    Options,
    /// The model file.
    File,
    /// The machine: room, devices, threads.
    Machine,
}

impl OpenError {
    /// Whose fault it was.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Device(_) | Self::Engine(EngineError::Config(_)) | Self::Drafts(SpecError::NoDraftModel) => {
                Fault::Options
            }
            Self::Drafts(SpecError::Run(_) | SpecError::Room(_)) | Self::Engine(_) => Fault::Machine,
            Self::Model(_) | Self::Projector(_) | Self::Template(_) | Self::Drafts(_) => Fault::File,
        }
    }
}

impl From<ProjectorError> for OpenError {
    fn from(error: ProjectorError) -> Self {
        match error {
            ProjectorError::Device(error) => Self::Device(error),
            ProjectorError::File(words) => Self::Projector(words),
        }
    }
}
