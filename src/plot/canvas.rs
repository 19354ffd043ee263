//! A canvas of lines, bars and words, before anybody knows how it is written.

/// A colour: red, green, blue.
pub type Colour = [u8; 3];

/// Where words stand beside their point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// They begin there.
    Start,
    /// Their middle is there.
    Middle,
    /// They end there.
    End,
}

/// One thing on a canvas; points from the upper left corner.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Shape {
    Bar { x: f64, y: f64, width: f64, height: f64, colour: Colour },
    Line { from: (f64, f64), to: (f64, f64), width: f64, colour: Colour, dashed: bool },
    Dot { at: (f64, f64), radius: f64, colour: Colour },
    Words { at: (f64, f64), anchor: Anchor, bold: bool, colour: Colour, text: String },
}

/// A picture in the making.
#[derive(Clone, Debug)]
pub struct Canvas {
    /// In points.
    pub width: f64,
    /// In points.
    pub height: f64,
    /// In the order of drawing.
    pub shapes: Vec<Shape>,
}

impl Canvas {
    /// An empty one.
    pub fn new(width: f64, height: f64) -> Self {
        Self { width, height, shapes: Vec::new() }
    }

    /// Adds words.
    pub fn words(&mut self, at: (f64, f64), anchor: Anchor, text: impl Into<String>) {
        self.shapes.push(Shape::Words { at, anchor, bold: false, colour: INK, text: text.into() });
    }

    /// Adds words in bold.
    pub fn title(&mut self, at: (f64, f64), text: impl Into<String>) {
        self.shapes.push(Shape::Words { at, anchor: Anchor::Start, bold: true, colour: INK, text: text.into() });
    }

    /// Adds a line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64, colour: Colour) {
        self.shapes.push(Shape::Line { from, to, width, colour, dashed: false });
    }
}

/// Text and axes.
pub const INK: Colour = [40, 40, 48];

/// Grid lines.
pub const FAINT: Colour = [222, 222, 228];

/// Told apart also by people who do not see all colours; Wong 2011.
pub const COLOURS: [Colour; 7] =
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [230, 159, 0], [120, 120, 120]];
