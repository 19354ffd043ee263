//! A canvas of lines, bars and words, before anybody knows how it is written.

/// A colour: red, green, blue.
pub(in super::super) type Colour = [u8; 3];

/// Where words stand beside their point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Anchor {
    Start,
    Middle,
    End,
}

/// One thing on a canvas; points from the upper left corner.
#[derive(Clone, Debug)]
pub(in super::super) enum Shape {
    Bar { x: f64, y: f64, width: f64, height: f64, colour: Colour },
    Line { from: (f64, f64), to: (f64, f64), width: f64, colour: Colour, dashed: bool },
    Dot { at: (f64, f64), radius: f64, colour: Colour },
    Words { at: (f64, f64), anchor: Anchor, bold: bool, colour: Colour, text: String },
}

/// A picture in the making.
#[derive(Clone, Debug)]
pub(in super::super) struct Canvas {
    pub(in super::super) width: f64,
    pub(in super::super) height: f64,
    pub(in super::super) shapes: Vec<Shape>,
}

impl Canvas {
    pub(in super::super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, shapes: Vec::new() }
    }

    pub(in super::super) fn words(&mut self, at: (f64, f64), anchor: Anchor, text: impl Into<String>) {
        self.shapes.push(Shape::Words { at, anchor, bold: false, colour: INK, text: text.into() });
    }

    pub(in super::super) fn title(&mut self, at: (f64, f64), text: impl Into<String>) {
        self.shapes.push(Shape::Words { at, anchor: Anchor::Start, bold: true, colour: INK, text: text.into() });
    }

    pub(in super::super) fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64, colour: Colour) {
        self.shapes.push(Shape::Line { from, to, width, colour, dashed: false });
    }
}

/// Text and axes.
pub(in super::super) const INK: Colour = [40, 40, 48];

/// Grid lines.
pub(in super::super) const FAINT: Colour = [222, 222, 228];

/// Told apart also by people who do not see all colours; Wong 2011.
pub(in super::super) const COLOURS: [Colour; 7] =
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [230, 159, 0], [120, 120, 120]];
