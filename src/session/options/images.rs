//! The options of images: how large pictures are for a model.

use clap::Args;
use vision::ImageLimits;

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

    /// Scale images to at most N tokens [default: as published]
    #[arg(long, value_name = "N")]
    pub image_max_tokens: Option<usize>,
}

impl ImageLimitOptions {
    /// As preprocessing takes them.
    pub fn limits(&self) -> ImageLimits {
        ImageLimits {
            min_pixels: self.image_min_pixels,
            max_pixels: self.image_max_pixels,
            max_tokens: self.image_max_tokens,
        }
    }
}
