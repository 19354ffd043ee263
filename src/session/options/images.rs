//! The options of images: the projector that sees, where it computes, and how large pictures are for it.

use std::path::{Path, PathBuf};

use clap::Args;
use ggml::LoadProgress;
use model::{LoadError, Projector, ProjectorOptions};
use vision::ImageLimits;

use super::devices::{DeviceChoice, DeviceError, DeviceOptions};

/// How a model sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Images")]
pub struct ImageOptions {
    /// Projector (GGUF) [default: mmproj*.gguf beside the model]
    #[arg(long, value_name = "FILE", env = "NEXTN_MMPROJ", hide_env_values = true)]
    pub mmproj: Option<PathBuf>,

    /// Do not use the projector that lies beside the model
    #[arg(skip)]
    pub without: bool,

    /// Device of the projector: auto (the model's first), cpu, or a name from `nextn-bench devices` [default: auto]
    #[arg(long, value_name = "NAME", env = "NEXTN_MMPROJ_DEVICE", hide_env_values = true)]
    pub mmproj_device: Option<DeviceChoice>,

    /// Host memory for embeddings of images that were seen, in MiB; 0 keeps none [default: 256]
    #[arg(long, value_name = "MIB")]
    pub image_cache: Option<u32>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub limits: ImageLimitOptions,
}

/// How large pictures are for a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Images")]
pub struct ImageLimitOptions {
    /// Scale images up to at least N pixels (Qwen) [default: as published]
    #[arg(long, value_name = "N")]
    pub image_min_pixels: Option<usize>,

    /// Scale images down to at most N pixels (Qwen) [default: as published]
    #[arg(long, value_name = "N")]
    pub image_max_pixels: Option<usize>,

    /// Scale images up to at least N tokens (Qwen) [default: as published]
    #[arg(long, value_name = "N")]
    pub image_min_tokens: Option<usize>,

    /// Scale images to at most N tokens [default: as published]
    #[arg(long, value_name = "N")]
    pub image_max_tokens: Option<usize>,
}

/// Why there is no projector where one was to be.
#[derive(Debug, thiserror::Error)]
pub enum ProjectorError {
    /// The device.
    #[error("--mmproj-device: {0}")]
    Device(#[from] DeviceError),
    /// The file, whose name stands in the words.
    #[error("{0}")]
    File(String),
}

impl ImageOptions {
    /// Most bytes of rows that are kept.
    pub(crate) fn max_bytes(&self) -> usize {
        (self.image_cache.unwrap_or(256) as usize) << 20
    }

    /// Opens a projector, with the model's devices and so many threads of its own; `progress` is told how far it is.
    ///
    /// # Errors
    /// A device that is not here; a file that is no projector, or one of a kind that is not known.
    pub fn open(
        &self,
        file: &Path,
        devices: &DeviceOptions,
        n_threads: usize,
        progress: LoadProgress,
    ) -> Result<Projector, ProjectorError> {
        devices.load_backends()?;
        let chosen = match &self.mmproj_device {
            None | Some(DeviceChoice::Auto) => devices.chosen()?,
            Some(choice) => choice.devices()?,
        };
        let device = chosen.first().copied();
        let options = ProjectorOptions { device, n_threads, lock: devices.mlock, progress };
        Projector::open(file, &options).map_err(|error: LoadError| ProjectorError::File(error.in_file(file)))
    }
}

impl ImageLimitOptions {
    /// As preprocessing takes them.
    pub fn limits(&self) -> ImageLimits {
        ImageLimits {
            min_pixels: self.image_min_pixels,
            max_pixels: self.image_max_pixels,
            min_tokens: self.image_min_tokens,
            max_tokens: self.image_max_tokens,
        }
    }
}
