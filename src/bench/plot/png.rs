//! A canvas as PNG: everything is drawn by distance, at twice the size; words in an 8 by 8 font.

use anyhow::Context;
use font8x8::UnicodeFonts;

use super::canvas::{Anchor, Canvas, Colour, Shape};

/// Pixels for one unit of the canvas.
const SCALE: f64 = 2.0;

/// Units that a character takes.
const LETTER: f64 = 7.0;

struct Pixels {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

pub(super) fn bytes(canvas: &Canvas) -> anyhow::Result<Vec<u8>> {
    let (width, height) = ((canvas.width * SCALE) as usize, (canvas.height * SCALE) as usize);
    let mut pixels = Pixels { width, height, rgb: vec![255; 3 * width * height] };
    for shape in &canvas.shapes {
        pixels.draw(shape);
    }
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().context("PNG")?;
    writer.write_image_data(&pixels.rgb).context("PNG")?;
    writer.finish().context("PNG")?;
    Ok(out)
}

impl Pixels {
    fn draw(&mut self, shape: &Shape) {
        match shape {
            Shape::Bar { x, y, width, height, colour } => {
                let inside = |px: f64, py: f64| {
                    let dx = (px - x).min(x + width - px);
                    let dy = (py - y).min(y + height - py);
                    dx.min(dy)
                };
                self.cover((*x, *y), (x + width, y + height), *colour, inside);
            }
            Shape::Line { from, to, width, colour, dashed } => {
                let (dx, dy) = (to.0 - from.0, to.1 - from.1);
                let length = dx.hypot(dy).max(1e-9);
                let inside = |px: f64, py: f64| {
                    let along = (((px - from.0) * dx + (py - from.1) * dy) / length).clamp(0.0, length);
                    let gap = *dashed && along.rem_euclid(9.0) > 5.0;
                    let (cx, cy) = (from.0 + dx * along / length, from.1 + dy * along / length);
                    if gap { -1.0 } else { width / 2.0 - (px - cx).hypot(py - cy) }
                };
                let low = (from.0.min(to.0) - width, from.1.min(to.1) - width);
                self.cover(low, (from.0.max(to.0) + width, from.1.max(to.1) + width), *colour, inside);
            }
            Shape::Dot { at, radius, colour } => {
                let inside = |px: f64, py: f64| radius - (px - at.0).hypot(py - at.1);
                let low = (at.0 - radius, at.1 - radius);
                self.cover(low, (at.0 + radius, at.1 + radius), *colour, inside);
            }
            Shape::Words { at, anchor, bold, colour, text } => {
                let width = LETTER * text.chars().count() as f64;
                let left = match anchor {
                    Anchor::Start => at.0,
                    Anchor::Middle => at.0 - width / 2.0,
                    Anchor::End => at.0 - width,
                };
                for (i, letter) in text.chars().enumerate() {
                    self.letter((left + LETTER * i as f64, at.1), letter, *bold, *colour);
                }
            }
        }
    }

    /// A character whose lower left corner is at `at`, a dot of the font being 14 sixteenths of a unit wide.
    fn letter(&mut self, at: (f64, f64), letter: char, bold: bool, colour: Colour) {
        let rows = font8x8::BASIC_FONTS.get(letter).or_else(|| font8x8::BASIC_FONTS.get('?')).unwrap_or_default();
        let (step_x, step_y) = (LETTER / 8.0, 1.15);
        for (r, row) in rows.iter().enumerate() {
            for c in (0..8).filter(|c| row >> c & 1 == 1) {
                let (x, y) = (at.0 + step_x * f64::from(c), at.1 - step_y * (7.0 - r as f64));
                let (width, height) = (if bold { 1.5 } else { 1.0 } * step_x, step_y);
                self.draw(&Shape::Bar { x, y, width, height, colour });
            }
        }
    }

    /// Colours the pixels of a box by how far inside of something they lie.
    fn cover(&mut self, low: (f64, f64), high: (f64, f64), colour: Colour, inside: impl Fn(f64, f64) -> f64) {
        let span = |low: f64, high: f64, n: usize| {
            let first = (low * SCALE - 1.0).max(0.0) as usize;
            first.min(n)..((high * SCALE + 2.0).max(0.0) as usize).min(n)
        };
        for py in span(low.1, high.1, self.height) {
            for px in span(low.0, high.0, self.width) {
                let distance = inside((px as f64 + 0.5) / SCALE, (py as f64 + 0.5) / SCALE);
                let share = (distance * SCALE + 0.5).clamp(0.0, 1.0);
                let at = 3 * (py * self.width + px);
                for (pixel, &c) in self.rgb[at..at + 3].iter_mut().zip(&colour) {
                    *pixel = (f64::from(*pixel) * (1.0 - share) + f64::from(c) * share).round() as u8;
                }
            }
        }
    }
}
