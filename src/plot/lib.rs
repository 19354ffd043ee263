//! Simple pictures: a canvas of lines, bars and words, written as SVG or PNG, and the two charts that measurements need.
//! Knows nothing of what the numbers mean. plotters would bring these charts, but stacked bars, and its text without fonts of
//! the system is about to be replaced (its issues 735 and 736); a font and the crate that draws it are all that was missing.

#![forbid(unsafe_code)]

mod canvas;
mod chart;
mod png;
mod svg;

use std::path::Path;

use anyhow::bail;

pub use canvas::{Anchor, Canvas, Colour, Shape};
pub use chart::{Bars, Curves, Series};

/// How a picture is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Vectors.
    Svg,
    /// Pixels.
    Png,
}

impl Format {
    /// By the ending of a file's name.
    ///
    /// # Errors
    /// Another ending.
    pub fn of(path: &Path) -> anyhow::Result<Self> {
        match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("svg") => Ok(Format::Svg),
            Some("png") => Ok(Format::Png),
            _ => bail!("{}: pictures are .svg or .png files", path.display()),
        }
    }
}

/// The picture as a file's bytes.
///
/// # Errors
/// The picture is too large for its format.
pub fn bytes(canvas: &Canvas, format: Format) -> anyhow::Result<Vec<u8>> {
    match format {
        Format::Svg => Ok(svg::bytes(canvas)),
        Format::Png => png::bytes(canvas),
    }
}
