//! Simple pictures: a canvas of lines, bars and words, written as SVG or PNG, and the two charts that measurements need.
//! Knows nothing of what the numbers mean.

mod chart;
mod png;
mod svg;

use std::path::Path;

use anyhow::bail;

pub(super) use chart::{Bars, Curves, Series};

/// A colour: red, green, blue.
pub(super) type Colour = [u8; 3];

/// How a picture is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Svg,
    Png,
}

impl Format {
    /// By the ending of a file's name.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("svg") => Ok(Format::Svg),
            Some("png") => Ok(Format::Png),
            _ => bail!("{}: pictures are .svg or .png files", path.display()),
        }
    }
}

/// Where words stand beside their point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// One thing on a canvas; points from the upper left corner.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Bar { x: f64, y: f64, width: f64, height: f64, colour: Colour },
    Line { from: (f64, f64), to: (f64, f64), width: f64, colour: Colour, dashed: bool },
    Dot { at: (f64, f64), radius: f64, colour: Colour },
    Words { at: (f64, f64), anchor: Anchor, bold: bool, colour: Colour, text: String },
}

/// A picture in the making.
#[derive(Clone, Debug)]
pub(super) struct Canvas {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) shapes: Vec<Shape>,
}

impl Canvas {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, shapes: Vec::new() }
    }

    pub(super) fn words(&mut self, at: (f64, f64), anchor: Anchor, text: impl Into<String>) {
        self.shapes.push(Shape::Words { at, anchor, bold: false, colour: INK, text: text.into() });
    }

    pub(super) fn title(&mut self, at: (f64, f64), text: impl Into<String>) {
        self.shapes.push(Shape::Words { at, anchor: Anchor::Start, bold: true, colour: INK, text: text.into() });
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64, colour: Colour) {
        self.shapes.push(Shape::Line { from, to, width, colour, dashed: false });
    }

    /// The file's bytes.
    pub(super) fn bytes(&self, format: Format) -> anyhow::Result<Vec<u8>> {
        match format {
            Format::Svg => Ok(svg::bytes(self)),
            Format::Png => png::bytes(self),
        }
    }
}

/// Text and axes.
pub(super) const INK: Colour = [40, 40, 48];

/// Grid lines.
pub(super) const FAINT: Colour = [222, 222, 228];

/// Told apart also by people who do not see all colours; Wong 2011.
pub(super) const COLOURS: [Colour; 7] =
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [230, 159, 0], [120, 120, 120]];
